#include "sim/search/builder.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"

namespace refit {

Plan make_frame(const Problem& problem) {
  Plan plan;
  plan.inputs = problem.inputs;
  plan.ranks.resize(problem.gpu_of_rank.size());
  for (const int32_t rank : problem.train.ranks) plan.ranks[static_cast<size_t>(rank)].train = true;
  for (const int32_t rank : problem.gen.ranks) plan.ranks[static_cast<size_t>(rank)].gen = true;
  const Fabric& fabric = problem.fabric;
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    PlanRank& entry = plan.ranks[rank];
    entry.gpu = problem.gpu_of_rank[rank];
    if (entry.gpu < 0) continue;
    const Gpu& gpu = fabric.gpus[static_cast<size_t>(entry.gpu)];
    entry.node = fabric.nodes[static_cast<size_t>(gpu.node)].name;
    entry.nvlink_domain = fabric.domain_names[static_cast<size_t>(gpu.domain)];
    entry.device = gpu.device;
    for (const int32_t nic : gpu.nics)
      entry.rails.push_back(fabric.nics[static_cast<size_t>(nic)].rail);
  }
  plan.maps = problem.train.maps;
  const auto gen_offset = static_cast<int32_t>(plan.maps.size());
  plan.maps.insert(plan.maps.end(), problem.gen.maps.begin(), problem.gen.maps.end());
  std::map<std::string, int32_t> buffers;
  const auto buffer_of = [&](const Layout& layout, size_t t) {
    // Companions of quantised tensors, which follow the model's own, have buffers of their own.
    const std::string& name =
        t < layout.tensor_buffer.size() ? layout.tensor_buffer[t] : problem.model.tensors[t].name;
    const auto [it, is_new] = buffers.try_emplace(name, static_cast<int32_t>(plan.buffers.size()));
    if (is_new) plan.buffers.push_back(name);
    return it->second;
  };
  for (size_t t = 0; t < problem.model.tensors.size(); ++t) {
    const Tensor& tensor = problem.model.tensors[t];
    const Cast cast =
        problem.casts.empty() ? Cast{.train = tensor.dtype, .gen = tensor.dtype} : problem.casts[t];
    const bool trained = cast.source < 0;
    plan.tensors.push_back({.name = tensor.name,
                            .shape = tensor.shape,
                            .train_dtype = cast.train,
                            .gen_dtype = cast.gen,
                            .train_map = trained ? problem.train.tensor_map[t] : -1,
                            .gen_map = gen_offset + problem.gen.tensor_map[t],
                            .train_buffer = trained ? buffer_of(problem.train, t) : -1,
                            .gen_buffer = buffer_of(problem.gen, t),
                            .format = cast.format,
                            .output = cast.output,
                            .source = cast.source});
  }
  return plan;
}

size_t Builder::BoxHash::operator()(const Box& box) const {
  uint64_t hash = static_cast<uint64_t>(box.dims());
  for (int d = 0; d < box.dims(); ++d) {
    hash = (hash ^ static_cast<uint64_t>(box.lo[d])) * 0x9E3779B97F4A7C15ULL;
    hash = (hash ^ (hash >> 29) ^ static_cast<uint64_t>(box.hi[d])) * 0xBF58476D1CE4E5B9ULL;
  }
  return static_cast<size_t>(hash ^ (hash >> 32));
}

Builder::Builder(const Problem& problem, Plan* plan)
    : problem_(problem), plan_(plan), ranks_(plan->ranks.size()) {
  plan_->programs.assign(plan_->ranks.size(), {});
}

int32_t Builder::shard_with(Side side, int32_t tensor, int32_t rank, const Box& box) const {
  const PlanTensor& entry = plan_->tensors[static_cast<size_t>(tensor)];
  const bool train = side == Side::kTrain;
  const PlanTensor& held =
      train && entry.source >= 0 ? plan_->tensors[static_cast<size_t>(entry.source)] : entry;
  const Box part = train && entry.format != Format::kNone
                       ? source_box(entry.format, entry.output, held.shape, box)
                       : box;
  const int32_t map = train ? held.train_map : held.gen_map;
  const std::vector<Shard>* shards = plan_->maps[static_cast<size_t>(map)].find(rank);
  REFIT_CHECK(shards != nullptr);
  for (size_t i = 0; i < shards->size(); ++i) {
    if (contains((*shards)[i].box, part)) return static_cast<int32_t>(i);
  }
  REFIT_CHECK(false && "no shard of the rank contains the box");
  return -1;
}

int32_t Builder::intern(int32_t rank, const Box& box) {
  auto& ids = ranks_[static_cast<size_t>(rank)].box_ids;
  auto& boxes = plan_->programs[static_cast<size_t>(rank)].boxes;
  const auto [it, added] = ids.try_emplace(box, static_cast<int32_t>(boxes.size()));
  if (added) boxes.push_back(box);
  return it->second;
}

void Builder::add_piece(int32_t channel, int32_t step, int32_t from, int32_t to, int32_t tensor,
                        const Box& box, Spot source, Spot target) {
  const PlanTensor& entry = plan_->tensors[static_cast<size_t>(tensor)];
  const bool narrowed = source.place == Place::kGen && entry.train_dtype != entry.gen_dtype &&
                        !is_widening(entry.train_dtype, entry.gen_dtype);
  const Dtype wire =
      narrowed ? entry.gen_dtype : problem_.model.tensors[static_cast<size_t>(tensor)].dtype;
  const auto add = [&](int32_t rank, int32_t peer, bool recv, Spot spot) {
    auto& entries = ranks_[static_cast<size_t>(rank)].entries;
    entries.push_back({channel,
                       step,
                       recv,
                       peer,
                       static_cast<int32_t>(entries.size()),
                       {tensor, intern(rank, box), spot.area, spot.place, wire}});
  };
  add(from, to, false, source);
  add(to, from, true, target);
  auto& last = last_step_[static_cast<size_t>(channel)];
  last = std::max(last, step);
  if (target.place == Place::kGen) find_repeats(channel, to, tensor, box, target.area);
}

void Builder::find_repeats(int32_t channel, int32_t rank, int32_t tensor, const Box& box,
                           int32_t area) {
  const int32_t map = plan_->tensors[static_cast<size_t>(tensor)].gen_map;
  const std::vector<Shard>& shards = *plan_->maps[static_cast<size_t>(map)].find(rank);
  for (int32_t other = 0; other < std::ssize(shards); ++other) {
    if (other == area || !contains(shards[static_cast<size_t>(other)].box, box)) continue;
    repeats_.push_back({channel, rank, tensor, area, other, box});
  }
}

void Builder::add_repeats() {
  const std::vector<Repeat> repeats = std::move(repeats_);
  repeats_.clear();
  const std::vector<int32_t> last = last_step_;
  for (const Repeat& r : repeats) {
    // Steps of a channel run in order: what arrived on it is in place by then.
    add_piece(r.channel, last[static_cast<size_t>(r.channel)] + 1, r.rank, r.rank, r.tensor, r.box,
              {Place::kGen, r.from_area}, {Place::kGen, r.to_area});
  }
  repeats_.clear();  // of the repeats themselves
}

void Builder::add_wait(int32_t rank, int32_t channel, int32_t step, Wait on) {
  ranks_[static_cast<size_t>(rank)].waits.push_back({channel, step, on});
}

int32_t Builder::add_slot(int32_t rank, int32_t tensor, const Box& box, int64_t offset,
                          int64_t bytes) {
  auto& slots = plan_->programs[static_cast<size_t>(rank)].slots;
  slots.push_back({tensor, intern(rank, box), offset, bytes,
                   problem_.model.tensors[static_cast<size_t>(tensor)].dtype});
  return static_cast<int32_t>(slots.size()) - 1;
}

void Builder::finish() {
  add_repeats();
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    RankState& state = ranks_[rank];
    Program& program = plan_->programs[rank];
    std::sort(state.entries.begin(), state.entries.end(), [](const Entry& a, const Entry& b) {
      return std::tie(a.channel, a.step, a.recv, a.peer, a.order) <
             std::tie(b.channel, b.step, b.recv, b.peer, b.order);
    });
    std::sort(state.waits.begin(), state.waits.end(), [](const WaitEntry& a, const WaitEntry& b) {
      return std::tie(a.channel, a.step, a.on) < std::tie(b.channel, b.step, b.on);
    });
    program.pieces.reserve(state.entries.size());
    size_t wait = 0;
    for (size_t i = 0; i < state.entries.size();) {
      const Entry& head = state.entries[i];
      Step step{.id = head.step, .channel = head.channel};
      step.first_send = step.first_recv = static_cast<int32_t>(program.messages.size());
      while (i < state.entries.size() && state.entries[i].channel == head.channel &&
             state.entries[i].step == head.step) {
        const Entry first = state.entries[i];
        Message message{.peer = first.peer,
                        .first_piece = static_cast<int32_t>(program.pieces.size())};
        for (; i < state.entries.size() && state.entries[i].channel == first.channel &&
               state.entries[i].step == first.step && state.entries[i].recv == first.recv &&
               state.entries[i].peer == first.peer;
             ++i) {
          program.pieces.push_back(state.entries[i].piece);
        }
        message.last_piece = static_cast<int32_t>(program.pieces.size());
        program.messages.push_back(message);
        if (!first.recv) step.first_recv = static_cast<int32_t>(program.messages.size());
      }
      step.last_message = static_cast<int32_t>(program.messages.size());
      step.first_wait = static_cast<int32_t>(program.waits.size());
      for (; wait < state.waits.size() && state.waits[wait].channel == step.channel &&
             state.waits[wait].step == step.id;
           ++wait) {
        // Of several waits on one channel only the last step counts: steps of a channel run in
        // order.
        const Wait on = state.waits[wait].on;
        if (static_cast<int32_t>(program.waits.size()) > step.first_wait &&
            program.waits.back().channel == on.channel) {
          program.waits.back() = on;
        } else {
          program.waits.push_back(on);
        }
      }
      step.last_wait = static_cast<int32_t>(program.waits.size());
      program.steps.push_back(step);
    }
    REFIT_CHECK(wait == state.waits.size());
    state = {};
  }
}

}  // namespace refit
