// Limits of the format and layout of memory.

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <tuple>

#include "plans/rules.h"

namespace refit {
namespace {

constexpr auto kForm = Fault::Rule::kForm;

// One dimension of the question whether two shards meet: the difference of their indices there is
// in [lo, hi].
struct Term {
  int64_t stride, lo, hi;
};

// Can `rest` be written as sum(k[i] * stride[i]) with k[i] in [lo, hi]? Terms go from large strides
// to small ones, so each leaves few values for its k; `budget` ends what might not be short (then:
// yes).
bool is_sum(std::span<const Term> terms, int64_t rest, int& budget) {
  if (--budget < 0) return true;
  if (terms.empty()) return rest == 0;
  int64_t least = 0, most = 0;  // of all terms but the first
  for (const Term& term : terms.subspan(1)) {
    least += term.lo * term.stride;
    most += term.hi * term.stride;
  }
  const auto floor_div = [](int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); };
  const Term& term = terms.front();
  const int64_t first = std::max(term.lo, -floor_div(most - rest, term.stride));
  const int64_t last = std::min(term.hi, floor_div(rest - least, term.stride));
  for (int64_t k = first; k <= last; ++k) {
    if (is_sum(terms.subspan(1), rest - k * term.stride, budget)) return true;
  }
  return false;
}

// Do two shards of one buffer share an element of memory? Errs on the side of yes for strides that
// no dense layout has.
bool share_memory(const Shard& a, const Shard& b) {
  std::vector<Term> terms;
  for (int dim = 0; dim < a.box.dims(); ++dim) {
    if (a.stride[dim] > 0) terms.push_back({a.stride[dim], 0, a.box.extent(dim) - 1});
  }
  for (int dim = 0; dim < b.box.dims(); ++dim) {
    if (b.stride[dim] > 0) terms.push_back({b.stride[dim], 1 - b.box.extent(dim), 0});
  }
  std::sort(terms.begin(), terms.end(), [](const Term& x, const Term& y) {
    return std::tie(y.stride, x.lo, x.hi) < std::tie(x.stride, y.lo, y.hi);
  });
  std::vector<Term> merged;  // equal strides: their ranges add up
  for (const Term& term : terms) {
    if (!merged.empty() && merged.back().stride == term.stride) {
      merged.back().lo += term.lo;
      merged.back().hi += term.hi;
    } else {
      merged.push_back(term);
    }
  }
  int budget = 10'000;
  return is_sum(merged, b.offset - a.offset, budget);
}

// Has every element of a shard its own place? True when each stride steps over all that the smaller
// ones span.
bool is_injective(const Shard& shard) {
  std::vector<std::pair<int64_t, int64_t>> steps;  // stride, extent
  for (int dim = 0; dim < shard.box.dims(); ++dim) {
    if (shard.box.extent(dim) > 1) steps.emplace_back(shard.stride[dim], shard.box.extent(dim));
  }
  std::sort(steps.begin(), steps.end());
  int64_t span = 0;
  for (const auto& [stride, extent] : steps) {
    if (stride <= span) return false;
    span += stride * (extent - 1);
  }
  return true;
}

void check_buffer_dtypes(const Plan& plan, Faults& faults) {
  for (const Side side : {Side::kTrain, Side::kGen}) {
    std::vector<std::optional<Dtype>> dtypes(plan.buffers.size());
    for (const PlanTensor& tensor : plan.tensors) {
      const bool train = side == Side::kTrain;
      const int32_t buffer = train ? tensor.train_buffer : tensor.gen_buffer;
      const Dtype dtype = train ? tensor.train_dtype : tensor.gen_dtype;
      if (buffer < 0) continue;
      std::optional<Dtype>& known = dtypes[static_cast<size_t>(buffer)];
      if (known.value_or(dtype) != dtype) {
        faults.add(kForm, -1, nullptr,
                   fmt::format("tensor '{}' is {} in buffer '{}', which holds {}", tensor.name,
                               dtype_name(dtype), plan.buffers[static_cast<size_t>(buffer)],
                               dtype_name(*known)));
      }
      known = dtype;
    }
  }
}

void check_gen_memory(const Plan& plan, int32_t rank, Faults& faults) {
  struct Entry {
    int32_t buffer, tensor;
    const Shard* shard;
  };
  std::vector<Entry> entries;
  for (int32_t index = 0; index < std::ssize(plan.tensors); ++index) {
    const PlanTensor& tensor = plan.tensors[static_cast<size_t>(index)];
    if (tensor.gen_map < 0) continue;
    const std::vector<Shard>* shards = plan.maps[static_cast<size_t>(tensor.gen_map)].find(rank);
    if (shards == nullptr) continue;
    for (const Shard& shard : *shards) {
      if (shard.box.empty()) continue;
      if (!is_injective(shard)) {
        faults.add(
            kForm, rank, nullptr,
            fmt::format("gen shard {} overlaps itself", print_piece(plan, index, shard.box)));
      }
      entries.push_back({tensor.gen_buffer, index, &shard});
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tuple(a.buffer, a.shard->offset, a.tensor) <
           std::tuple(b.buffer, b.shard->offset, b.tensor);
  });
  std::vector<const Entry*> open;  // of the same buffer, reaching past the current offset
  for (const Entry& entry : entries) {
    std::erase_if(open, [&](const Entry* other) {
      return other->buffer != entry.buffer || shard_end(*other->shard) <= entry.shard->offset;
    });
    for (const Entry* other : open) {
      if (!share_memory(*other->shard, *entry.shard)) continue;
      faults.add(kForm, rank, nullptr,
                 fmt::format("gen shards {} and {} overlap in buffer '{}'",
                             print_piece(plan, other->tensor, other->shard->box),
                             print_piece(plan, entry.tensor, entry.shard->box),
                             plan.buffers[static_cast<size_t>(entry.buffer)]));
    }
    open.push_back(&entry);
  }
}

// Why a piece may not be sent, or received, at its place and in its dtype; or "". Values are cast
// once, from train to gen dtype: quantised ones by their sender, others at either end. What was
// widened may be passed on in its train dtype.
std::string find_wrong_end(const Plan& plan, int32_t rank, const Piece& piece, bool sends) {
  if (!sends && piece.place == Place::kTrain) return "into a train shard";
  const AreaView area = view_area(plan, rank, piece);
  if (piece.tensor == area.tensor && piece.wire == area.dtype) return {};
  const PlanTensor& tensor = plan.tensors[static_cast<size_t>(piece.tensor)];
  const PlanTensor& held = plan.tensors[static_cast<size_t>(area.tensor)];
  const std::string change = fmt::format("as {} {} {}", dtype_name(piece.wire),
                                         sends ? "from" : "into", dtype_name(area.dtype));
  if (sends && piece.place == Place::kGen) {  // back, where that is exact
    return is_widening(tensor.train_dtype, tensor.gen_dtype) ? std::string() : change;
  }
  if (sends) {
    const bool from_train = area.dtype == held.train_dtype;
    return from_train && piece.wire == tensor.gen_dtype ? std::string() : change;
  }
  if (area.tensor != piece.tensor || tensor.format != Format::kNone) return change;
  return piece.wire == tensor.train_dtype && area.dtype == tensor.gen_dtype ? std::string()
                                                                            : change;
}

// What a step sends, or what it receives.
void check_peers(const Plan& plan, int32_t rank, const Step& step, bool sends, Faults& faults) {
  const Program& program = plan.programs[static_cast<size_t>(rank)];
  const int32_t first = sends ? step.first_send : step.first_recv;
  const int32_t last = sends ? step.first_recv : step.last_message;
  const char* verb = sends ? "sends to" : "receives from";
  int peers = 0;
  for (int32_t m = first; m < last; ++m) {
    const Message& message = program.messages[static_cast<size_t>(m)];
    if (m > first && program.messages[static_cast<size_t>(m - 1)].peer >= message.peer) {
      faults.add(kForm, rank, &step,
                 fmt::format("{} rank {} twice or out of order", verb, message.peer));
    }
    if (message.peer != rank) ++peers;
    const Lane lane = plan.channels[static_cast<size_t>(step.channel)].lane;
    if (lane == Lane::kNvlink && !same_domain(plan, rank, message.peer)) {
      faults.add(kForm, rank, &step,
                 fmt::format("{} rank {} of another NVLink domain on an nvlink channel", verb,
                             message.peer));
    }
    for (int32_t p = message.first_piece; p < message.last_piece; ++p) {
      const Piece& piece = program.pieces[static_cast<size_t>(p)];
      const std::string what = find_wrong_end(plan, rank, piece, sends);
      if (what.empty()) continue;
      faults.add(kForm, rank, &step,
                 fmt::format(
                     "{} {} {}", sends ? "sends" : "receives",
                     print_piece(plan, piece.tensor, program.boxes[static_cast<size_t>(piece.box)]),
                     what));
    }
  }
  if (peers > kMaxPeersPerStep) {
    faults.add(kForm, rank, &step,
               fmt::format("{} {} ranks in one step, at most {} are allowed", verb, peers,
                           kMaxPeersPerStep));
  }
}

void check_waits(const Program& program, int32_t rank, const Step& step, Faults& faults) {
  for (int32_t w = step.first_wait; w < step.last_wait; ++w) {
    const Wait& wait = program.waits[static_cast<size_t>(w)];
    if (wait.channel == step.channel) {
      faults.add(kForm, rank, &step,
                 fmt::format("waits for step {} of its own channel", wait.step));
    } else if (find_step(program, wait.channel, wait.step) < 0) {
      faults.add(kForm, rank, &step,
                 fmt::format("waits for channel {}, step {}, which the rank does not have",
                             wait.channel, wait.step));
    }
  }
}

}  // namespace

void check_limits(const Plan& plan, Faults& faults) {
  check_buffer_dtypes(plan, faults);
  for (int32_t rank = 0; rank < std::ssize(plan.programs); ++rank) {
    check_gen_memory(plan, rank, faults);
    const Program& program = plan.programs[static_cast<size_t>(rank)];
    std::set<int32_t> network_peers;
    for (const Step& step : program.steps) {
      check_peers(plan, rank, step, true, faults);
      check_peers(plan, rank, step, false, faults);
      check_waits(program, rank, step, faults);
      if (step.first_send == step.last_message) {
        faults.add(kForm, rank, &step, "has no messages");
      }
      for (int32_t m = step.first_send; plan.max_peers > 0 && m < step.last_message; ++m) {
        const int32_t peer = program.messages[static_cast<size_t>(m)].peer;
        if (!same_domain(plan, rank, peer)) network_peers.insert(peer);
      }
    }
    if (plan.max_peers > 0 && std::ssize(network_peers) > plan.max_peers) {
      faults.add(kForm, rank, nullptr,
                 fmt::format("{} network peers, at most {} are allowed", network_peers.size(),
                             plan.max_peers));
    }
    const StagingUse use = staging_use(plan, rank);
    if (use.total() > plan.staging_bytes) {
      faults.add(Fault::Rule::kStaging, rank, nullptr,
                 fmt::format("{} bytes of slots and {} of packing, at most {} are allowed",
                             use.slots, use.packing, plan.staging_bytes));
    }
  }
}

}  // namespace refit
