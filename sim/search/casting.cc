#include "sim/search/casting.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "base/error.h"
#include "base/units.h"
#include "sim/search/builder.h"

namespace refit {
namespace {

constexpr int64_t kSlotAlignment = 256;
constexpr int64_t kUnitsWanted =
    8;  // in a caster's share of a wave: so many casters can share a large weight

/// Whole blocks of a weight that one rank puts together.
struct Unit {
  int32_t tensor = -1;
  Box box;
  std::vector<int32_t> needers;  // gen ranks that want a part of it
  int64_t bytes = 0;             // in the train dtype
};

/// A unit in the staging memory of its caster.
struct Placed {
  const Unit* unit = nullptr;
  int32_t caster = -1;
  int64_t offset = 0;
};

int64_t align(int64_t bytes) {
  return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

/// The box in parts of at most `bytes`, cut between blocks; larger ones where a block is.
void cut_blocks(const Cast& cast, const Dims& shape, const Box& box, int64_t bytes,
                std::vector<Box>& parts) {
  const int64_t size = dtype_bytes(cast.train, box.volume());
  for (int dim = 0; size > bytes && dim < box.dims(); ++dim) {
    // The middle that is a border between blocks: of the block at it, the beginning.
    Box second = box;
    second.lo[dim] = box.lo[dim] + box.extent(dim) / 2;
    Box probe = second;
    probe.hi[dim] = probe.lo[dim] + 1;
    const int64_t border = source_box(cast.format, Output::kData, shape, probe).lo[dim];
    const int64_t next = source_box(cast.format, Output::kData, shape, probe).hi[dim];
    const int64_t cut = border > box.lo[dim] ? border : next;
    if (cut <= box.lo[dim] || cut >= box.hi[dim]) continue;
    Box first = box;
    first.hi[dim] = second.lo[dim] = cut;
    cut_blocks(cast, shape, first, bytes, parts);
    cut_blocks(cast, shape, second, bytes, parts);
    return;
  }
  parts.push_back(box);
}

class WavePlanner {
 public:
  /// `share`: messages may be packed into this part of the staging memory that slots leave.
  WavePlanner(const Problem& problem, const Strategy& strategy, const SearchOptions& options,
              int64_t share)
      : problem_(problem), strategy_(strategy), options_(options), share_(share) {
    Problem whole_problem = problem;
    for (size_t t = 0; t < problem.casts.size(); ++t) {
      whole_problem.gen.tensor_map[t] = cast(t).wanted;
    }
    plan_ = make_frame(whole_problem);
  }

  Plan run() {
    plan_.strategy = options_.strategy;
    plan_.seed = options_.seed;
    plan_.staging_bytes = options_.staging_bytes;
    plan_.programs.assign(plan_.ranks.size(), {});
    make_units();
    auto unit = units_.begin();
    bool first = true;
    do {
      const std::vector<Placed> wave = fill_wave(unit);
      plan_arrivals(wave, first);
      if (!wave.empty()) plan_casts(wave);
      first = false;
    } while (unit != units_.end());
    return std::move(plan_);
  }

 private:
  const Cast& cast(size_t tensor) const { return problem_.casts[tensor]; }

  const RankMap& wanted(size_t tensor) const {
    return problem_.gen.maps[static_cast<size_t>(cast(tensor).wanted)];
  }

  void make_units() {
    const int64_t largest = std::max<int64_t>(slot_budget() / kUnitsWanted, 1);
    for (size_t t = 0; t < problem_.casts.size(); ++t) {
      if (!cast(t).assembled || cast(t).source >= 0) continue;
      const Dims& shape = problem_.model.tensors[t].shape;
      std::vector<Box> whole_boxes;  // apart: what gen ranks have, grown to blocks
      for (const auto& [rank, shards] : wanted(t).shards) {
        for (const Shard& shard : shards) {
          if (!shard.box.empty()) {
            whole_boxes.push_back(source_box(cast(t).format, Output::kData, shape, shard.box));
          }
        }
      }
      std::vector<Box> parts;
      for (const Box& box : cut_apart(whole_boxes)) {
        cut_blocks(cast(t), shape, box, largest, parts);
      }
      for (const Box& box : parts) add_unit(static_cast<int32_t>(t), box);
    }
  }

  /// The union of boxes as boxes that are apart, in a grid of all their borders. What is cut are
  /// borders between blocks.
  static std::vector<Box> cut_apart(std::vector<Box> boxes) {
    std::sort(boxes.begin(), boxes.end());
    boxes.erase(std::unique(boxes.begin(), boxes.end()), boxes.end());
    std::vector<Box> apart;
    for (const Box& box : boxes) {
      std::vector<Box> rest = {box};
      for (const Box& other : boxes) {
        if (other >= box) break;  // those before have been given away
        std::vector<Box> left;
        for (const Box& part : rest) subtract(part, other, left);
        rest = std::move(left);
      }
      apart.insert(apart.end(), rest.begin(), rest.end());
    }
    return apart;
  }

  static void subtract(Box box, const Box& other, std::vector<Box>& left) {
    const Box common = intersect(box, other);
    if (common.empty()) return left.push_back(box);
    for (int dim = 0; dim < box.dims(); ++dim) {
      Box below = box, above = box;
      below.hi[dim] = common.lo[dim];
      above.lo[dim] = common.hi[dim];
      if (below.lo[dim] < below.hi[dim]) left.push_back(below);
      if (above.lo[dim] < above.hi[dim]) left.push_back(above);
      box.lo[dim] = common.lo[dim];
      box.hi[dim] = common.hi[dim];
    }
  }

  void add_unit(int32_t tensor, const Box& box) {
    const auto t = static_cast<size_t>(tensor);
    Unit unit{tensor, box, {}, dtype_bytes(cast(t).train, box.volume())};
    for (const auto& [rank, shards] : wanted(t).shards) {
      if (std::any_of(shards.begin(), shards.end(),
                      [&](const Shard& shard) { return !intersect(shard.box, box).empty(); })) {
        unit.needers.push_back(rank);
      }
    }
    if (align(unit.bytes) > slot_budget()) {
      fail(fmt::format("--staging, tensor {}, box {}", problem_.model.tensors[t].name,
                       print_box(box)),
           fmt::format("a block of {} to be put together on a gen rank",
                       print_bytes(static_cast<double>(unit.bytes))),
           fmt::format("at least {}", print_bytes(2.0 * static_cast<double>(align(unit.bytes)))));
    }
    units_.push_back(std::move(unit));
  }

  int64_t slot_budget() const { return options_.staging_bytes / 2; }

  /// The next units as long as they fit; moves `unit` behind them.
  std::vector<Placed> fill_wave(std::vector<Unit>::iterator& unit) {
    std::vector<Placed> wave;
    std::map<int32_t, int64_t> used;
    for (; unit != units_.end(); ++unit) {
      int32_t caster = -1;
      for (const int32_t rank : unit->needers) {
        if (used[rank] + unit->bytes > slot_budget()) continue;
        if (caster < 0 || work_[rank] < work_[caster]) caster = rank;
      }
      if (caster < 0) break;
      wave.push_back({&*unit, caster, used[caster]});
      used[caster] = align(used[caster] + unit->bytes);
      work_[caster] += unit->bytes;
    }
    return wave;
  }

  /// The problem in which nothing moves.
  Problem idle_problem() const {
    Problem idle = problem_;
    idle.train.maps.emplace_back();
    idle.gen.maps.emplace_back();
    const auto count = idle.model.tensors.size();
    idle.train.tensor_map.assign(count, static_cast<int32_t>(idle.train.maps.size()) - 1);
    idle.gen.tensor_map.assign(count, static_cast<int32_t>(idle.gen.maps.size()) - 1);
    return idle;
  }

  /// Where the units of a wave are, by tensor: to its casters, as shards in order of the wave.
  std::map<int32_t, RankMap> map_units(const std::vector<Placed>& wave) const {
    std::map<int32_t, std::map<int32_t, std::vector<Shard>>> shards;
    for (const Placed& placed : wave) {
      const Box& box = placed.unit->box;
      shards[placed.unit->tensor][placed.caster].push_back({box, 0, dense_strides(box.extents())});
    }
    std::map<int32_t, RankMap> maps;
    for (auto& [tensor, by_rank] : shards) {
      for (auto& [rank, list] : by_rank) {
        maps[tensor].shards.emplace_back(rank, std::move(list));
      }
    }
    return maps;
  }

  void plan_arrivals(const std::vector<Placed>& wave, bool with_all_others) {
    Problem phase = idle_problem();
    for (size_t t = 0; with_all_others && t < problem_.casts.size(); ++t) {
      if (cast(t).assembled) continue;
      phase.train.tensor_map[t] = cast(t).supply;
      phase.gen.tensor_map[t] = cast(t).wanted;
    }
    for (auto& [tensor, map] : map_units(wave)) {
      const auto t = static_cast<size_t>(tensor);
      phase.train.tensor_map[t] = problem_.train.tensor_map[t];
      phase.gen.tensor_map[t] = static_cast<int32_t>(phase.gen.maps.size());
      phase.gen.maps.push_back(map);
      phase.model.tensors[t].dtype = cast(t).train;
      phase.casts[t] = {.train = cast(t).train, .gen = cast(t).train};
    }
    for (size_t t = 0; t < phase.casts.size(); ++t) {  // companions of what travels as it is
      Cast& companion = phase.casts[t];
      if (companion.source >= 0 && companion.assembled) {
        companion = {.train = companion.gen, .gen = companion.gen};
      }
    }
    append(phase, wave, true);
  }

  void plan_casts(const std::vector<Placed>& wave) {
    Problem phase = idle_problem();
    const std::map<int32_t, RankMap> units = map_units(wave);
    for (size_t t = 0; t < problem_.casts.size(); ++t) {
      const int32_t weight = cast(t).source >= 0 ? cast(t).source : static_cast<int32_t>(t);
      const auto found = units.find(weight);
      if (found == units.end()) continue;
      RankMap supply = found->second, wanted_now;
      for (auto& [rank, shards] : supply.shards) {
        for (Shard& shard : shards) {
          shard.box = output_box(cast(t).format, cast(t).output, shard.box);
          shard.stride = dense_strides(shard.box.extents());
        }
      }
      phase.train.tensor_map[t] = static_cast<int32_t>(phase.train.maps.size());
      phase.train.maps.push_back(supply);
      phase.gen.tensor_map[t] = static_cast<int32_t>(phase.gen.maps.size());
      phase.gen.maps.push_back(wanted_of(t, supply));
    }
    append(phase, wave, false);
  }

  /// Of what gen ranks want of a tensor the part that is supplied now; every shard stays one shard
  /// or more, at its place.
  RankMap wanted_of(size_t tensor, const RankMap& supply) const {
    std::vector<Box> supplied;
    for (const auto& [rank, shards] : supply.shards) {
      for (const Shard& shard : shards) supplied.push_back(shard.box);
    }
    std::sort(supplied.begin(), supplied.end());
    supplied.erase(std::unique(supplied.begin(), supplied.end()), supplied.end());
    RankMap now;
    for (const auto& [rank, shards] : wanted(tensor).shards) {
      std::vector<Shard> parts;
      for (const Shard& shard : shards) {
        for (const Box& box : supplied) {
          Shard part = shard;
          part.box = intersect(shard.box, box);
          if (part.box.empty()) continue;
          for (int dim = 0; dim < part.box.dims(); ++dim) {
            part.offset += (part.box.lo[dim] - shard.box.lo[dim]) * shard.stride[dim];
          }
          parts.push_back(part);
        }
      }
      if (!parts.empty()) now.shards.emplace_back(rank, std::move(parts));
    }
    return now;
  }

  /// Plans a phase and appends it, its places turned into those of the whole plan. `arrives`: into
  /// slots, else out of them.
  void append(Problem& phase, const std::vector<Placed>& wave, bool arrives) {
    phase.demand = make_demand(phase.model, phase.train, phase.gen);
    SearchOptions options = options_;
    int64_t slots = 0;
    for (const Placed& placed : wave) slots = std::max(slots, placed.offset + placed.unit->bytes);
    options.staging_bytes = (options.staging_bytes - slots) / share_;
    Plan part = strategy_.plan(phase, options);
    const std::vector<std::vector<int32_t>> slot_of = add_slots(wave, arrives);
    for (size_t rank = 0; rank < part.programs.size(); ++rank) {
      Program& program = part.programs[rank];
      for (Piece& piece : program.pieces) {
        const auto t = static_cast<size_t>(piece.tensor);
        const Box& box = program.boxes[static_cast<size_t>(piece.box)];
        if (!cast(t).assembled) {
          if (cast(t).format != Format::kNone && piece.place == Place::kTrain) {
            piece.area = find_source(static_cast<int32_t>(rank), t, box);
          }
          continue;
        }
        const bool staged = arrives == (piece.place == Place::kGen);
        if (!staged) {
          if (!arrives)
            piece.area = find_shard(wanted(t), static_cast<int32_t>(rank), part, piece, box);
          continue;
        }
        piece.place = Place::kStaging;
        piece.area = find_slot(slot_of[rank], wave, cast(t), t, box);
      }
    }
    append_programs(plan_, part);
  }

  /// Gives the ranks' programs the slots of a wave (the second phase uses those of the first); by
  /// rank: slot of each placed unit.
  std::vector<std::vector<int32_t>> add_slots(const std::vector<Placed>& wave, bool arrives) {
    std::vector<std::vector<int32_t>> slot_of(plan_.programs.size(),
                                              std::vector<int32_t>(wave.size(), -1));
    if (arrives) slots_.clear();
    for (size_t i = 0; i < wave.size(); ++i) {
      const auto rank = static_cast<size_t>(wave[i].caster);
      Program& program = plan_.programs[rank];
      if (arrives) {
        const Unit& unit = *wave[i].unit;
        program.slots.push_back({unit.tensor, static_cast<int32_t>(program.boxes.size()),
                                 wave[i].offset, unit.bytes,
                                 cast(static_cast<size_t>(unit.tensor)).train});
        program.boxes.push_back(unit.box);
        slots_.push_back(static_cast<int32_t>(program.slots.size()) - 1);
      }
      slot_of[rank][i] = slots_[i];
    }
    return slot_of;
  }

  int32_t find_slot(const std::vector<int32_t>& slots, const std::vector<Placed>& wave,
                    const Cast& of, size_t tensor, const Box& box) const {
    const auto weight = of.source >= 0 ? of.source : static_cast<int32_t>(tensor);
    for (size_t i = 0; i < wave.size(); ++i) {
      if (slots[i] < 0 || wave[i].unit->tensor != weight) continue;
      const Box part = output_box(of.format, of.output, wave[i].unit->box);
      if (contains(part, box)) return slots[i];
    }
    REFIT_CHECK(false && "no slot contains the box");
    return -1;
  }

  /// The train shard of a quantised weight that has all that a box of it, or of a companion, is
  /// made of.
  int32_t find_source(int32_t rank, size_t tensor, const Box& box) const {
    const auto weight =
        cast(tensor).source >= 0 ? static_cast<size_t>(cast(tensor).source) : tensor;
    const Box part = source_box(cast(tensor).format, cast(tensor).output,
                                problem_.model.tensors[weight].shape, box);
    const auto map = static_cast<size_t>(problem_.train.tensor_map[weight]);
    const std::vector<Shard>& shards = *problem_.train.maps[map].find(rank);
    const auto found = std::find_if(shards.begin(), shards.end(),
                                    [&](const Shard& shard) { return contains(shard.box, part); });
    REFIT_CHECK(found != shards.end());
    return static_cast<int32_t>(found - shards.begin());
  }

  /// The shard of the whole plan's gen map that a piece of a phase is in: the one with the same
  /// memory.
  static int32_t find_shard(const RankMap& map, int32_t rank, const Plan& part, const Piece& piece,
                            const Box& box) {
    const auto offset_of = [&](const Shard& shard) {
      int64_t offset = shard.offset;
      for (int dim = 0; dim < box.dims(); ++dim) {
        offset += (box.lo[dim] - shard.box.lo[dim]) * shard.stride[dim];
      }
      return offset;
    };
    const int64_t wanted = offset_of(piece_area(part, rank, piece));
    const std::vector<Shard>& shards = *map.find(rank);
    for (int32_t s = 0; s < std::ssize(shards); ++s) {
      const Shard& shard = shards[static_cast<size_t>(s)];
      if (contains(shard.box, box) && offset_of(shard) == wanted) return s;
    }
    REFIT_CHECK(false && "no shard contains the box");
    return -1;
  }

  const Problem& problem_;
  const Strategy& strategy_;
  const SearchOptions& options_;
  const int64_t share_;
  Plan plan_;
  std::vector<Unit> units_;
  std::map<int32_t, int64_t> work_;  // bytes, by caster
  std::vector<int32_t> slots_;       // of the current wave, unit by unit
};

}  // namespace

void append_programs(Plan& plan, const Plan& more) {
  std::vector<int32_t> next_id(kMaxChannels, 0);  // by channel
  for (const Program& program : plan.programs) {
    for (const Step& step : program.steps) {
      int32_t& next = next_id[static_cast<size_t>(step.channel)];
      next = std::max(next, step.id + 1);
    }
  }
  for (size_t c = 0; c < more.channels.size(); ++c) {
    if (c == plan.channels.size()) plan.channels.push_back(more.channels[c]);
    if (plan.channels[c] != more.channels[c]) plan.channels[c].lane = Lane::kAny;
  }
  for (size_t rank = 0; rank < plan.programs.size(); ++rank) {
    Program& to = plan.programs[rank];
    const Program& from = more.programs[rank];
    const auto boxes = static_cast<int32_t>(to.boxes.size());
    const auto pieces = static_cast<int32_t>(to.pieces.size());
    const auto messages = static_cast<int32_t>(to.messages.size());
    std::vector<int32_t> last_id(kMaxChannels, -1);  // of this rank so far
    for (const Step& step : to.steps) {
      int32_t& last = last_id[static_cast<size_t>(step.channel)];
      last = std::max(last, step.id);
    }
    if (!from.slots.empty()) {
      fail("strategy " + more.strategy, "staged boxes of its own",
           "one without: quantised weights are assembled in staging");
    }
    to.boxes.insert(to.boxes.end(), from.boxes.begin(), from.boxes.end());
    for (Piece piece : from.pieces) {
      piece.box += boxes;
      to.pieces.push_back(piece);
    }
    for (Message message : from.messages) {
      message.first_piece += pieces;
      message.last_piece += pieces;
      to.messages.push_back(message);
    }
    std::array<bool, kMaxChannels> begun{};
    for (Step step : from.steps) {
      const int32_t first_wait = step.first_wait, last_wait = step.last_wait;
      step.first_wait = static_cast<int32_t>(to.waits.size());
      std::array<bool, kMaxChannels> awaited{};
      for (int32_t w = first_wait; w < last_wait; ++w) {
        Wait wait = from.waits[static_cast<size_t>(w)];
        wait.step += next_id[static_cast<size_t>(wait.channel)];
        awaited[static_cast<size_t>(wait.channel)] = true;
        to.waits.push_back(wait);
      }
      bool& on_channel = begun[static_cast<size_t>(step.channel)];
      for (int32_t channel = 0; !on_channel && channel < kMaxChannels; ++channel) {
        const int32_t last = last_id[static_cast<size_t>(channel)];
        if (channel == step.channel || last < 0 || awaited[static_cast<size_t>(channel)]) continue;
        to.waits.push_back({channel, last});
      }
      on_channel = true;
      std::sort(to.waits.begin() + step.first_wait, to.waits.end());
      step.last_wait = static_cast<int32_t>(to.waits.size());
      step.id += next_id[static_cast<size_t>(step.channel)];
      step.first_send += messages;
      step.first_recv += messages;
      step.last_message += messages;
      to.steps.push_back(step);
    }
    std::stable_sort(to.steps.begin(), to.steps.end(), [](const Step& a, const Step& b) {
      return std::tie(a.channel, a.id) < std::tie(b.channel, b.id);
    });
  }
}

Plan plan_with_casts(const Problem& problem, const Strategy& strategy,
                     const SearchOptions& options) {
  const bool quantises = std::any_of(problem.casts.begin(), problem.casts.end(),
                                     [](const Cast& cast) { return cast.format != Format::kNone; });
  if (!quantises) return strategy.plan(problem, options);
  SearchOptions phase = options;
  phase.relays = false;  // their slots and those of assembly do not know of each other
  phase.attempts = 1;    // what is fastest for one phase on its own need not be for the whole
  phase.attempted = {};
  phase.max_peers = 0;  // of the whole: search() judges it
  // Phases use channels differently, and packing counts the most of each: together they may need
  // more than one.
  constexpr int64_t kLeastShare = 8;
  for (int64_t share = 1;; share *= 2) {
    Plan plan = WavePlanner(problem, strategy, phase, share).run();
    plan.prediction = {};  // whatever a phase on its own took
    if (peak_staging(plan) <= options.staging_bytes || share == kLeastShare) return plan;
  }
}

}  // namespace refit
