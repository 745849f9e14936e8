#include "sim/simulator/critical.h"

#include <algorithm>
#include <span>

#include "base/error.h"

namespace refit {
namespace {

std::span<const Piece> pieces_of(const Program& program, const Message& message) {
  return {program.pieces.data() + message.first_piece,
          static_cast<size_t>(message.last_piece - message.first_piece)};
}

/// Does the step send, or copy, from a slot that `before` fills, or from an inference buffer that
/// it writes?
bool needs_data_of(const Program& program, const Step& step, const Step& before) {
  for (int32_t s = step.first_send; s < step.first_recv; ++s) {
    for (const Piece& sent : pieces_of(program, program.messages[static_cast<size_t>(s)])) {
      if (sent.place == Place::kTrain) continue;
      for (int32_t r = before.first_recv; r < before.last_message; ++r) {
        for (const Piece& got : pieces_of(program, program.messages[static_cast<size_t>(r)])) {
          if (got.place == sent.place && got.tensor == sent.tensor && got.area == sent.area)
            return true;
        }
      }
    }
  }
  return false;
}

/// Goes back in time from the end of a step, part by part.
class Walk {
 public:
  Walk(const Plan& plan, const Replay& replay) : plan_(plan), replay_(replay) {}

  std::vector<ChainPart> from_node(int32_t node) { return finish(back_from_end(node)); }

  std::vector<ChainPart> from_transfer(int32_t id) {
    const Transfer& transfer = replay_.graph.transfers[static_cast<size_t>(id)];
    return finish(back_from_transfer(id, transfer.receiver));
  }

 private:
  /// Goes on from the beginning of a node.
  std::vector<ChainPart> finish(int32_t node) {
    while (true) {
      const Begin begin = begin_of(plan_, replay_, node);
      parts_.back().cause = begin.cause;
      if (begin.after < 0) break;
      node = back_from_end(begin.after);
    }
    std::reverse(parts_.begin(), parts_.end());
    return std::move(parts_);
  }

  const NodeTimes& times(int32_t node) const { return replay_.nodes[static_cast<size_t>(node)]; }
  const TransferTimes& transfer_times(int32_t t) const {
    return replay_.transfers[static_cast<size_t>(t)];
  }

  void add(PartKind part, double from, double to, int32_t node, int32_t transfer = -1) {
    parts_.push_back({part, Cause::kFollows, from, to, node, transfer});
  }

  /// Did it end later; of two that ended together the first counts.
  bool later(int32_t a, int32_t b) const {
    const auto number = [&](int32_t t) {
      return replay_.graph.transfers[static_cast<size_t>(t)].number;
    };
    return transfer_times(a).end > transfer_times(b).end ||
           (transfer_times(a).end == transfer_times(b).end && number(a) < number(b));
  }

  /// Of the step's transfers, or its receives alone, the one that ended last; -1: none.
  int32_t last_transfer(int32_t node, bool receives) const {
    int32_t last = -1;
    for (const int32_t t : replay_.graph.transfers_of[node]) {
      const bool receive = replay_.graph.transfers[static_cast<size_t>(t)].receiver == node;
      if (receives && !receive) continue;
      if (last < 0 || later(t, last)) last = t;
    }
    return last;
  }

  /// Adds the parts within steps that led to the end of this one; returns the node of the first.
  int32_t back_from_end(int32_t node) {
    const StepNode& step = replay_.graph.nodes[static_cast<size_t>(node)];
    const NodeTimes& t = times(node);
    if (step.unpack_bytes > 0 && t.unpacked == t.end) {
      add(PartKind::kUnpack, t.arrived, t.unpacked, node);
      return back_from_transfer(last_transfer(node, true), node);
    }
    if (step.copies > 0 && t.copied == t.end) {
      add(PartKind::kCopy, t.begin, t.copied, node);
      return node;
    }
    const int32_t last = last_transfer(node, false);
    if (last >= 0 && transfer_times(last).end == t.end) return back_from_transfer(last, node);
    return back_from_ready(node);
  }

  int32_t back_from_transfer(int32_t id, int32_t node) {
    const Transfer& transfer = replay_.graph.transfers[static_cast<size_t>(id)];
    const TransferTimes& t = transfer_times(id);
    add(PartKind::kWire, t.start, t.end, node, id);
    add(PartKind::kMessage, t.ready, t.start, node, id);
    const int32_t other = transfer.sender == node ? transfer.receiver : transfer.sender;
    const bool peer = ready_time(replay_, other) > ready_time(replay_, node);
    if (peer) parts_.back().cause = Cause::kPeer;
    return back_from_ready(peer ? other : node);
  }

  int32_t back_from_ready(int32_t node) {
    const StepNode& step = replay_.graph.nodes[static_cast<size_t>(node)];
    const NodeTimes& t = times(node);
    if (step.pack_bytes > 0 && t.packed > t.begin + step.start_up) {
      add(PartKind::kPack, t.begin, t.packed, node);
    } else {
      add(PartKind::kStart, t.begin, t.begin + step.start_up, node);
    }
    return node;
  }

  const Plan& plan_;
  const Replay& replay_;
  std::vector<ChainPart> parts_;
};

}  // namespace

const char* part_name(PartKind part) {
  switch (part) {
    case PartKind::kStart:
      return "step start-up";
    case PartKind::kPack:
      return "packing";
    case PartKind::kMessage:
      return "message start-up";
    case PartKind::kWire:
      return "wire";
    case PartKind::kUnpack:
      return "unpacking";
    case PartKind::kCopy:
      return "copy";
  }
  check_failed("a part", __FILE__, __LINE__);
}

const char* cause_name(Cause cause) {
  switch (cause) {
    case Cause::kBarrier:
      return "barrier";
    case Cause::kFollows:
      return "follows";
    case Cause::kLane:
      return "lane";
    case Cause::kData:
      return "data";
    case Cause::kSlot:
      return "slot";
    case Cause::kPeer:
      return "peer";
  }
  check_failed("a cause", __FILE__, __LINE__);
}

Begin begin_of(const Plan& plan, const Replay& replay, int32_t node) {
  const StepNode& here = replay.graph.nodes[static_cast<size_t>(node)];
  const Program& program = plan.programs[static_cast<size_t>(here.rank)];
  const Step& step = program.steps[static_cast<size_t>(here.index)];
  Begin begin;
  double latest = -1;
  const auto consider = [&](int32_t index, Cause cause) {
    const int32_t before = replay.graph.nodes_of(here.rank)[static_cast<size_t>(index)];
    const double end = replay.nodes[static_cast<size_t>(before)].end;
    if (end <= latest) return;
    latest = end;
    begin = {cause, before};
  };
  const bool first =
      here.index == 0 || program.steps[static_cast<size_t>(here.index) - 1].channel != step.channel;
  if (!first) consider(here.index - 1, Cause::kLane);
  for (int32_t w = step.first_wait; w < step.last_wait; ++w) {
    const Wait& wait = program.waits[static_cast<size_t>(w)];
    const int32_t index = find_step(program, wait.channel, wait.step);
    const bool data = needs_data_of(program, step, program.steps[static_cast<size_t>(index)]);
    consider(index, data ? Cause::kData : Cause::kSlot);
  }
  return begin;
}

Begin begin_of_transfer(const Plan& plan, const Replay& replay, int32_t transfer) {
  const Transfer& ends = replay.graph.transfers[static_cast<size_t>(transfer)];
  const bool sender = ready_time(replay, ends.sender) >= ready_time(replay, ends.receiver);
  return begin_of(plan, replay, sender ? ends.sender : ends.receiver);
}

std::vector<ChainPart> critical_chain(const Plan& plan, const Replay& replay, int32_t node) {
  return Walk(plan, replay).from_node(node);
}

std::vector<ChainPart> critical_chain_to(const Plan& plan, const Replay& replay, int32_t transfer) {
  return Walk(plan, replay).from_transfer(transfer);
}

int32_t last_node(const Replay& replay, int32_t rank) {
  int32_t last = -1;
  const auto& graph = replay.graph;
  for (const int32_t n :
       rank < 0 ? std::span<const int32_t>(graph.node_of) : graph.nodes_of(rank)) {
    if (last < 0 ||
        replay.nodes[static_cast<size_t>(n)].end > replay.nodes[static_cast<size_t>(last)].end)
      last = n;
  }
  return last;
}

double alone_s(const Replay& replay, int32_t transfer) {
  const Transfer& t = replay.graph.transfers[static_cast<size_t>(transfer)];
  const double rate = std::min(t.cap, path_rate(replay.graph, t));
  return rate < kNever ? static_cast<double>(t.bytes) / rate : 0;
}

}  // namespace refit
