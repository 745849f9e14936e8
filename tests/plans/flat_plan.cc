#include "flat_plan.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace refit {
namespace {

int32_t size_of(const auto& vector) { return static_cast<int32_t>(vector.size()); }

int32_t add_box(Program& program, const Box& box) {
  const auto at = std::find(program.boxes.begin(), program.boxes.end(), box);
  if (at != program.boxes.end()) return static_cast<int32_t>(at - program.boxes.begin());
  program.boxes.push_back(box);
  return size_of(program.boxes) - 1;
}

RankMap make_map(const std::vector<std::vector<Box>>& boxes) {
  RankMap map;
  for (int32_t rank = 0; rank < std::ssize(boxes); ++rank) {
    std::vector<Shard> shards;
    int64_t offset = 0;
    for (const Box& box : boxes[static_cast<size_t>(rank)]) {
      shards.push_back({box, offset, dense_strides(box.extents())});
      offset += box.volume();
    }
    if (!shards.empty()) map.shards.emplace_back(rank, shards);
  }
  return map;
}

}  // namespace

void FlatPlan::transfer(int32_t from, Place src, int32_t src_area, int32_t to, Place dst,
                        int32_t dst_area, int32_t tensor, const Box& box, int32_t channel,
                        int32_t step) {
  const auto add = [&](bool sends, const FlatPiece& piece) {
    const int32_t rank = sends ? from : to;
    const int32_t peer = sends ? to : from;
    const auto at = std::find_if(ends.begin(), ends.end(), [&](const FlatEnd& end) {
      return std::tie(end.sends, end.rank, end.peer, end.channel, end.step) ==
             std::tie(sends, rank, peer, channel, step);
    });
    if (at != ends.end()) {
      at->pieces.push_back(piece);
    } else {
      ends.push_back({sends, rank, peer, channel, step, {piece}});
    }
  };
  add(true, {tensor, box, src, src_area});
  add(false, {tensor, box, dst, dst_area});
}

Plan make_plan(const FlatPlan& flat) {
  Plan plan = flat.frame;
  plan.programs.assign(plan.ranks.size(), {});
  for (int32_t rank = 0; rank < size_of(plan.ranks); ++rank) {
    Program& program = plan.programs[static_cast<size_t>(rank)];
    for (const FlatSlot& slot : flat.slots[static_cast<size_t>(rank)]) {
      const Dtype dtype = plan.tensors[static_cast<size_t>(slot.tensor)].train_dtype;
      program.slots.push_back({slot.tensor, add_box(program, slot.box), slot.offset,
                               dtype_bytes(dtype, slot.box.volume()), dtype});
    }
    std::vector<const FlatEnd*> ends;
    for (const FlatEnd& end : flat.ends) {
      if (end.rank == rank) ends.push_back(&end);
    }
    std::stable_sort(ends.begin(), ends.end(), [](const FlatEnd* a, const FlatEnd* b) {
      return std::tuple(a->channel, a->step, !a->sends, a->peer) <
             std::tuple(b->channel, b->step, !b->sends, b->peer);
    });
    for (size_t i = 0; i < ends.size();) {
      Step step{ends[i]->step,
                ends[i]->channel,
                size_of(program.messages),
                0,
                0,
                size_of(program.waits),
                0};
      int32_t sends = 0;
      for (; i < ends.size() && ends[i]->channel == step.channel && ends[i]->step == step.id; ++i) {
        if (ends[i]->sends) ++sends;
        const int32_t first = size_of(program.pieces);
        for (const FlatPiece& piece : ends[i]->pieces) {
          const Dtype wire = plan.tensors[static_cast<size_t>(piece.tensor)].train_dtype;
          program.pieces.push_back(
              {piece.tensor, add_box(program, piece.box), piece.area, piece.place, wire});
        }
        program.messages.push_back({ends[i]->peer, first, size_of(program.pieces)});
      }
      step.first_recv = step.first_send + sends;
      step.last_message = size_of(program.messages);
      std::set<Wait> waits;
      for (const FlatWait& wait : flat.waits) {
        if (std::tie(wait.rank, wait.channel, wait.step) == std::tie(rank, step.channel, step.id)) {
          waits.insert(wait.on);
        }
      }
      program.waits.insert(program.waits.end(), waits.begin(), waits.end());
      step.last_wait = size_of(program.waits);
      program.steps.push_back(step);
    }
  }
  return plan;
}

FlatPlan make_frame(const Dims& shape, const std::vector<std::vector<Box>>& train,
                    const std::vector<std::vector<Box>>& gen) {
  FlatPlan flat;
  Plan& plan = flat.frame;
  plan.strategy = "test";
  plan.staging_bytes = int64_t{1} << 40;
  plan.channels = {{Lane::kAny}, {Lane::kAny}};
  for (size_t rank = 0; rank < train.size(); ++rank) {
    plan.ranks.push_back({true,
                          true,
                          "n0",
                          "d0",
                          static_cast<int32_t>(rank),
                          static_cast<int32_t>(rank),
                          {static_cast<int32_t>(rank)}});
  }
  plan.buffers = {"w"};
  plan.maps = {make_map(train), make_map(gen)};
  plan.tensors = {{"w", shape, Dtype::kBf16, Dtype::kBf16, 0, 1, 0, 0}};
  flat.slots.resize(train.size());
  return flat;
}

}  // namespace refit
