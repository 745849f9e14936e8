#include "random_plan.h"

#include <algorithm>
#include <array>
#include <string>

namespace refit {
namespace {

bool is_even(const Plan& plan, int32_t tensor) {
  return dtype_bits(plan.tensors[static_cast<size_t>(tensor)].train_dtype) < 8;
}

// Some of the ranks, at least one, at most two.
std::vector<int32_t> pick_ranks(Random& random, const std::vector<int32_t>& from) {
  std::vector<int32_t> left = from, picked;
  for (int64_t n = pick(random, 1, std::min<int64_t>(2, std::ssize(from))); n > 0; --n) {
    const auto at = left.begin() + pick(random, 0, std::ssize(left) - 1);
    picked.push_back(*at);
    left.erase(at);
  }
  return picked;
}

// Where a piece can be read, and the steps of that rank that have to be over by then.
struct Source {
  int32_t rank;
  Place place;
  int32_t area;
  std::vector<Wait> after;
};

struct Arrival {
  int32_t tensor, rank, area;
  Box box;
  Wait at;
};

// When a slot is used, so that later ones may lie over it.
struct SlotUse {
  int64_t offset, bytes;
  std::vector<Wait> writes, reads;
};

class Maker {
 public:
  explicit Maker(Random& random) : random_(random) {}

  FlatPlan make() {
    make_ranks();
    const int64_t tensors = roll(1, 3);
    for (int32_t tensor = 0; tensor < tensors; ++tensor) make_tensor(tensor);
    std::shuffle(needs_.begin(), needs_.end(), random_);
    for (const Need& need : needs_) deliver(need);
    Plan& frame = flat_.frame;
    const Plan plan = make_plan(flat_);
    frame.staging_bytes = plan_totals(plan).peak_staging_bytes;
    return std::move(flat_);
  }

 private:
  struct Need {
    int32_t tensor, rank, area;
    Box box;
    std::vector<Source> holders;
  };

  int64_t roll(int64_t lo, int64_t hi) { return pick(random_, lo, hi); }

  void make_ranks() {
    Plan& plan = flat_.frame;
    plan.strategy = "random";
    const auto world = static_cast<int32_t>(roll(3, 6));
    flat_.slots.resize(static_cast<size_t>(world));
    uses_.resize(static_cast<size_t>(world));
    for (int32_t rank = 0; rank < world; ++rank) {
      const bool train = rank == 0 || roll(0, 1) == 0;
      const bool gen = rank == 1 || !train || roll(0, 2) == 0;
      const std::string name = std::to_string(rank / 2);
      plan.ranks.push_back({train, gen, "n" + name, "d" + name, rank, rank % 2, {}});
      if (train) train_.push_back(rank);
      if (gen) gen_.push_back(rank);
    }
    plan.channels.resize(static_cast<size_t>(roll(1, 3)));
  }

  RankMap make_map(const std::vector<std::pair<Box, std::vector<int32_t>>>& parts) {
    RankMap map;
    for (int32_t rank = 0; rank < std::ssize(flat_.frame.ranks); ++rank) {
      std::vector<Shard> shards;
      int64_t offset = 2 * roll(0, 2);
      for (const auto& [box, ranks] : parts) {
        if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
        Dims stride = dense_strides(box.extents());
        if (roll(0, 2) == 0) {  // rows further apart than they are long
          for (int dim = 0; dim + 1 < box.dims(); ++dim) stride[dim] *= 2;
        }
        shards.push_back({box, offset, stride});
        offset = shard_end(shards.back()) + 2 * roll(0, 1);
        offset += offset % 2;
      }
      if (!shards.empty()) map.shards.emplace_back(rank, shards);
    }
    return map;
  }

  void make_tensor(int32_t index) {
    constexpr std::array<Dtype, 4> kSome = {Dtype::kBf16, Dtype::kFp32, Dtype::kFp8E4m3,
                                            Dtype::kFp4E2m1};
    Plan& plan = flat_.frame;
    PlanTensor tensor;
    tensor.name = "t" + std::to_string(index);
    tensor.train_dtype = tensor.gen_dtype = kSome[static_cast<size_t>(roll(0, 3))];
    const bool even = dtype_bits(tensor.train_dtype) < 8;
    tensor.shape.count = static_cast<int32_t>(roll(even ? 1 : 0, 3));
    for (int dim = 0; dim < tensor.shape.count; ++dim) tensor.shape[dim] = roll(1, 4);
    if (even) tensor.shape[tensor.shape.count - 1] *= 2;
    tensor.train_map = static_cast<int32_t>(plan.maps.size());
    tensor.gen_map = tensor.train_map + 1;
    tensor.train_buffer = tensor.gen_buffer = index;
    plan.tensors.push_back(tensor);
    plan.buffers.push_back(tensor.name);

    const Box all = whole(tensor.shape);
    std::vector<std::pair<Box, std::vector<int32_t>>> train, gen;
    for (const Box& box : cut_box(random_, all, roll(0, 3), even)) {
      train.emplace_back(box, pick_ranks(random_, train_));
    }
    for (const Box& box : cut_box(random_, all, roll(0, 3), even)) {
      gen.emplace_back(box, pick_ranks(random_, gen_));
    }
    plan.maps.push_back(make_map(train));
    plan.maps.push_back(make_map(gen));
    for (const auto& [rank, shards] : plan.maps.back().shards) {
      for (int32_t area = 0; area < std::ssize(shards); ++area) {
        for (const auto& [box, holders] : train) {
          const Box common = intersect(box, shards[static_cast<size_t>(area)].box);
          if (common.empty()) continue;
          Need need{index, rank, area, common, {}};
          for (const int32_t holder : holders) {
            const std::vector<Shard>& held =
                *plan.maps[static_cast<size_t>(tensor.train_map)].find(holder);
            for (int32_t from = 0; from < std::ssize(held); ++from) {
              if (held[static_cast<size_t>(from)].box != box) continue;
              need.holders.push_back({holder, Place::kTrain, from, {}});
            }
          }
          for (const Box& part : cut_box(random_, common, roll(0, 1), even)) {
            need.box = part;
            needs_.push_back(need);
          }
        }
      }
    }
  }

  // Sends one piece in a step after all that either end depends on, and makes other channels wait
  // for that.
  Wait send(const Source& source, int32_t to, Place place, int32_t area, int32_t tensor,
            const Box& box, const std::vector<Wait>& after_there) {
    int32_t step = 0;
    for (const auto& list : {source.after, after_there}) {
      for (const Wait& wait : list) step = std::max(step, wait.step + kStepGap);
    }
    step += kStepGap * static_cast<int32_t>(roll(0, 1));
    const auto channel = static_cast<int32_t>(roll(0, std::ssize(flat_.frame.channels) - 1));
    flat_.transfer(source.rank, source.place, source.area, to, place, area, tensor, box, channel,
                   step);
    wait_for(source.rank, channel, step, source.after);
    wait_for(to, channel, step, after_there);
    return {channel, step};
  }

  void wait_for(int32_t rank, int32_t channel, int32_t step, const std::vector<Wait>& waits) {
    for (const Wait& wait : waits) {
      if (wait.channel != channel) flat_.waits.push_back({rank, channel, step, wait});
    }
  }

  void deliver(const Need& need) {
    std::vector<Source> sources = need.holders;
    for (const Arrival& arrival : arrivals_) {
      if (arrival.tensor == need.tensor && contains(arrival.box, need.box) &&
          !(arrival.rank == need.rank && arrival.area == need.area)) {
        sources.push_back({arrival.rank, Place::kGen, arrival.area, {arrival.at}});
      }
    }
    Source source = sources[static_cast<size_t>(roll(0, std::ssize(sources) - 1))];
    if (roll(0, 2) == 0) {
      relay(source, need);
      return;
    }
    arrive(need, need.box,
           send(source, need.rank, Place::kGen, need.area, need.tensor, need.box, {}));
  }

  void arrive(const Need& need, const Box& box, const Wait& at) {
    arrivals_.push_back({need.tensor, need.rank, need.area, box, at});
  }

  // Over a slot on some rank: filled in some parts, emptied in others.
  void relay(const Source& source, const Need& need) {
    const bool even = is_even(flat_.frame, need.tensor);
    const auto rank = static_cast<int32_t>(roll(0, std::ssize(flat_.frame.ranks) - 1));
    std::vector<FlatSlot>& slots = flat_.slots[static_cast<size_t>(rank)];
    const auto slot = static_cast<int32_t>(slots.size());
    const PlanTensor& tensor = flat_.frame.tensors[static_cast<size_t>(need.tensor)];
    const Box box = roll(0, 3) == 0 ? whole(tensor.shape) : need.box;

    SlotUse use{0, dtype_bytes(tensor.train_dtype, box.volume()), {}, {}};
    std::vector<SlotUse>& uses = uses_[static_cast<size_t>(rank)];
    std::vector<Wait> before;  // readers of what it lies over
    int64_t end = 0;
    for (const SlotUse& other : uses) end = std::max(end, other.offset + other.bytes);
    use.offset = roll(0, 2) == 0 ? end : roll(0, end);
    for (const SlotUse& other : uses) {
      if (other.offset >= use.offset + use.bytes || use.offset >= other.offset + other.bytes)
        continue;
      before.insert(before.end(), other.reads.begin(), other.reads.end());
    }
    slots.push_back({need.tensor, box, use.offset});

    std::vector<std::pair<Box, Wait>> filled;
    for (const Box& part : cut_box(random_, need.box, roll(0, 1), even)) {
      filled.emplace_back(part,
                          send(source, rank, Place::kStaging, slot, need.tensor, part, before));
      use.writes.push_back(filled.back().second);
    }
    for (const Box& part : cut_box(random_, need.box, roll(0, 1), even)) {
      Source from{rank, Place::kStaging, slot, {}};
      for (const auto& [box_there, at] : filled) {
        if (!intersect(box_there, part).empty()) from.after.push_back(at);
      }
      const Wait at = send(from, need.rank, Place::kGen, need.area, need.tensor, part, {});
      use.reads.push_back(at);
      arrive(need, part, at);
    }
    uses.push_back(use);
  }

  Random& random_;
  FlatPlan flat_;
  std::vector<int32_t> train_, gen_;
  std::vector<Need> needs_;
  std::vector<Arrival> arrivals_;
  std::vector<std::vector<SlotUse>> uses_;  // by rank
};

}  // namespace

std::vector<Box> cut_box(Random& random, const Box& box, int64_t cuts, bool even) {
  std::vector<Box> parts = {box};
  for (; cuts > 0 && box.dims() > 0; --cuts) {
    Box& part = parts[static_cast<size_t>(pick(random, 0, std::ssize(parts) - 1))];
    const auto dim = static_cast<int>(pick(random, 0, box.dims() - 1));
    const int64_t grain = even && dim == box.dims() - 1 ? 2 : 1;
    const int64_t grains = part.extent(dim) / grain;
    if (grains < 2) continue;
    Box rest = part;
    part.hi[dim] = rest.lo[dim] = part.lo[dim] + grain * pick(random, 1, grains - 1);
    parts.push_back(rest);
  }
  return parts;
}

FlatPlan make_random_plan(Random& random) { return Maker(random).make(); }

}  // namespace refit
