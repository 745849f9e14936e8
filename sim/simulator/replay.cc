#include "sim/simulator/replay.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "base/error.h"
#include "sim/simulator/fluid.h"

namespace refit {
namespace {

/// What happens to a step or a transfer. The order is that of events at one instant.
enum class Kind : uint8_t { kStartedUp, kPack, kCopy, kUnpack, kTransfer };

/// kStartedUp: the step's start-up is over. Others: the bytes begin to flow (an event) or flow (a
/// flow).
struct Event {
  double time = 0;
  int64_t turn = 0;  // at one instant: by kind, then by number
  int32_t id = -1;   // node, or transfer

  Event(double when, Kind kind, int32_t number, int32_t what)
      : time(when), turn(static_cast<int64_t>(kind) << 32 | number), id(what) {}
  Kind kind() const { return static_cast<Kind>(turn >> 32); }
  bool operator>(const Event& other) const {
    return time > other.time || (time == other.time && turn > other.turn);
  }
};

/// What a step still lacks.
struct Missing {
  int32_t before = 0;       // steps that have to end first
  int32_t until_ready = 0;  // start-up, packing
  int32_t recvs = 0;
  int32_t pending = 0;  // sends, receives, copies, unpacking
};

class Run {
 public:
  Run(const Plan& plan, const Fabric& fabric, const CostModel& cost, const SimulateOptions& options,
      bool holders)
      : plan_(plan),
        cost_(cost),
        graph_(make_step_graph(plan, fabric, cost, options.stragglers)),
        fluid_(graph_.capacity, static_cast<int32_t>(graph_.width), options.error),
        holders_(holders),
        missing_(graph_.nodes.size()),
        ends_ready_(graph_.transfers.size()),
        ways_left_(graph_.transfers.size()),
        nodes_(graph_.nodes.size()),
        transfers_(graph_.transfers.size()),
        carried_(fabric.links.size()),
        carrying_since_(fabric.links.size()),
        link_bytes_(fabric.links.size()),
        link_busy_s_(fabric.links.size()) {
    if (holders_) fluid_.record_holders();
  }

  Replay run() {
    for (size_t node = 0; node < nodes_.size(); ++node) {
      missing_[node].before = graph_.nodes[node].before;
      if (missing_[node].before == 0) begin_step(static_cast<int32_t>(node));
    }
    std::vector<int32_t> ended;
    while (true) {
      // Everything that happens at this instant, with what follows from it at once, before rates
      // are solved again.
      while (!events_.empty() && events_.top().time <= now_ * (1 + Fluid::kSimultaneous)) {
        const Event event = events_.top();
        events_.pop();
        ++event_count_;
        happen(event);
      }
      fluid_.settle(now_);
      const double next =
          std::min(fluid_.next_end(), events_.empty() ? kNever : events_.top().time);
      if (next == kNever) break;
      now_ = std::max(now_, next);
      ended.clear();
      fluid_.finish(now_, ended);
      for (const int32_t flow : ended) {
        ++event_count_;
        const auto [kind, id] = flowing_[static_cast<size_t>(flow)];
        if (holders_ && kind == Kind::kTransfer)
          transfers_[static_cast<size_t>(id)].holder = fluid_.holder(flow).resource;
        done(kind, id);
      }
    }
    for (const NodeTimes& node : nodes_) {
      if (node.end == kNever) fail_stuck();
    }
    return {std::move(graph_),      std::move(nodes_),       std::move(transfers_),
            std::move(link_bytes_), std::move(link_busy_s_), event_count_};
  }

 private:
  const StepNode& node_of(int32_t id) const { return graph_.nodes[static_cast<size_t>(id)]; }
  const Step& step_of(const StepNode& node) const { return refit::step_of(plan_, node); }

  void schedule(double delay, Kind kind, int32_t id) {
    const auto i = static_cast<size_t>(id);
    const int32_t number =
        kind == Kind::kTransfer ? graph_.transfers[i].number : graph_.nodes[i].number;
    events_.emplace(now_ + delay, kind, number, id);
  }

  void begin_step(int32_t id) {
    const StepNode& node = node_of(id);
    Missing& missing = missing_[static_cast<size_t>(id)];
    nodes_[static_cast<size_t>(id)].begin = now_;
    missing.recvs = node.recvs;
    const bool copies = node.copies > 0;
    const bool packs = node.pack_bytes > 0;
    missing.pending = node.sends + node.recvs + (copies ? 1 : 0) + (node.unpack_bytes > 0 ? 1 : 0);
    missing.until_ready = packs ? 2 : 1;
    schedule(node.start_up, Kind::kStartedUp, id);
    if (packs) schedule(cost_.copy_start, Kind::kPack, id);
    if (copies) schedule(cost_.copy_start, Kind::kCopy, id);
  }

  void end_step(int32_t id) {
    nodes_[static_cast<size_t>(id)].end = now_;
    for (const int32_t next : graph_.next[id]) {
      if (--missing_[static_cast<size_t>(next)].before == 0) begin_step(next);
    }
  }

  void happen(const Event& event) {
    const auto id = static_cast<size_t>(event.id);
    switch (event.kind()) {
      case Kind::kStartedUp:
        return done(event.kind(), event.id);
      case Kind::kPack:
        return flow_memory(event, graph_.nodes[id].pack_bytes);
      case Kind::kCopy:
        return flow_memory(event, graph_.nodes[id].copy_bytes);
      case Kind::kUnpack:
        return flow_memory(event, graph_.nodes[id].unpack_bytes);
      case Kind::kTransfer:
        return flow_transfer(event);
    }
  }

  void flow_memory(const Event& event, int64_t bytes) {
    if (graph_.first_memory < 0) return done(event.kind(), event.id);
    const int32_t rank = node_of(event.id).rank;
    const int32_t memory = graph_.first_memory + plan_.ranks[static_cast<size_t>(rank)].gpu;
    flow(event, static_cast<double>(bytes), {&memory, 1}, kNever);
  }

  void flow_transfer(const Event& event) {
    const Transfer& transfer = graph_.transfers[static_cast<size_t>(event.id)];
    transfers_[static_cast<size_t>(event.id)].start = now_;
    for (const int32_t crossed : graph_.links_of(transfer)) {
      const auto link = static_cast<size_t>(crossed);
      if (carried_[link]++ == 0) carrying_since_[link] = now_;
    }
    const std::span<const Way> ways = graph_.ways_of(transfer);
    const auto count = static_cast<double>(ways.size());
    ways_left_[static_cast<size_t>(event.id)] = static_cast<int32_t>(ways.size());
    for (const Way& way : ways)
      flow(event, static_cast<double>(transfer.bytes) / count, graph_.resources_of(way),
           transfer.cap / count);
  }

  void flow(const Event& event, double bytes, std::span<const int32_t> resources, double cap) {
    if (bytes == 0) return done(event.kind(), event.id);
    const auto id = static_cast<size_t>(fluid_.start(bytes, resources, cap));
    if (id >= flowing_.size()) flowing_.resize(id + 1);
    flowing_[id] = {event.kind(), event.id};
  }

  /// The start-up is over, or the last byte has passed.
  void done(Kind kind, int32_t id) {
    switch (kind) {
      case Kind::kStartedUp:
        return became_ready(id);
      case Kind::kPack:
        nodes_[static_cast<size_t>(id)].packed = now_;
        return became_ready(id);
      case Kind::kCopy:
        nodes_[static_cast<size_t>(id)].copied = now_;
        return message_done(id);
      case Kind::kUnpack:
        nodes_[static_cast<size_t>(id)].unpacked = now_;
        return message_done(id);
      case Kind::kTransfer:
        if (--ways_left_[static_cast<size_t>(id)] == 0) arrived(id);
        return;
    }
  }

  void became_ready(int32_t id) {
    Missing& missing = missing_[static_cast<size_t>(id)];
    if (--missing.until_ready > 0) return;
    for (const int32_t t : graph_.transfers_of[id]) {
      if (++ends_ready_[static_cast<size_t>(t)] < 2) continue;
      transfers_[static_cast<size_t>(t)].ready = now_;
      schedule(graph_.transfers[static_cast<size_t>(t)].start_up, Kind::kTransfer, t);
    }
    if (missing.pending == 0 && nodes_[static_cast<size_t>(id)].end == kNever) end_step(id);
  }

  void arrived(int32_t id) {
    const Transfer& transfer = graph_.transfers[static_cast<size_t>(id)];
    transfers_[static_cast<size_t>(id)].end = now_;
    const std::span<const Way> ways = graph_.ways_of(transfer);
    const double part = static_cast<double>(transfer.bytes) / static_cast<double>(ways.size());
    for (const Way& way : ways) {
      for (const int32_t link : graph_.links_of(way))
        link_bytes_[static_cast<size_t>(link)] += part;
    }
    for (const int32_t crossed : graph_.links_of(transfer)) {
      const auto link = static_cast<size_t>(crossed);
      if (--carried_[link] == 0) link_busy_s_[link] += now_ - carrying_since_[link];
    }
    const auto receiver = static_cast<size_t>(transfer.receiver);
    if (--missing_[receiver].recvs == 0 && graph_.nodes[receiver].unpack_bytes > 0) {
      nodes_[receiver].arrived = now_;
      schedule(cost_.copy_start, Kind::kUnpack, transfer.receiver);
    }
    message_done(transfer.receiver);
    message_done(transfer.sender);
  }

  void message_done(int32_t id) {
    Missing& missing = missing_[static_cast<size_t>(id)];
    // A copy may be over before the start-up; a step does not end before it.
    if (--missing.pending == 0 && missing.until_ready == 0) end_step(id);
  }

  [[noreturn]] void fail_stuck() const;

  const Plan& plan_;
  const CostModel& cost_;
  StepGraph graph_;
  Fluid fluid_;
  const bool holders_;
  double now_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<std::pair<Kind, int32_t>> flowing_;  // by flow: what it is
  std::vector<Missing> missing_;                   // by node
  std::vector<int8_t> ends_ready_;                 // by transfer
  std::vector<int32_t> ways_left_;                 // by transfer: on which it still flows
  std::vector<NodeTimes> nodes_;
  std::vector<TransferTimes> transfers_;
  std::vector<int32_t> carried_;        // by link: transfers that flow over it
  std::vector<double> carrying_since_;  // by link
  std::vector<double> link_bytes_, link_busy_s_;
  int64_t event_count_ = 0;
};

void Run::fail_stuck() const {
  // A step that has begun tells more than one that waits for it.
  const auto times = [&](int32_t id) -> const NodeTimes& {
    return nodes_[static_cast<size_t>(id)];
  };
  int32_t id = -1;
  for (const int32_t n : graph_.node_of) {
    if (times(n).end < kNever) continue;
    if (id < 0 || (times(n).begin < kNever && times(id).begin == kNever)) id = n;
  }
  const StepNode& node = node_of(id);
  const Program& program = plan_.programs[static_cast<size_t>(node.rank)];
  const Step& step = step_of(node);
  const std::span<const int32_t> own = graph_.nodes_of(node.rank);
  std::string reason;
  if (times(id).begin == kNever) {
    const auto index_before = static_cast<size_t>(node.index - 1);
    const bool first = node.index == 0 || program.steps[index_before].channel != step.channel;
    if (!first && times(own[index_before]).end == kNever)
      reason = fmt::format("the step before it, {}", program.steps[index_before].id);
    for (int32_t w = step.first_wait; w < step.last_wait && reason.empty(); ++w) {
      const Wait& wait = program.waits[static_cast<size_t>(w)];
      const int32_t index = find_step(program, wait.channel, wait.step);
      if (index >= 0 && times(own[static_cast<size_t>(index)]).end < kNever) continue;
      reason = fmt::format("its channel {}, step {}, which {}", wait.channel, wait.step,
                           index < 0 ? "does not exist" : "never ends");
    }
  } else {
    for (const int32_t t : graph_.transfers_of[id]) {
      const Transfer& transfer = graph_.transfers[static_cast<size_t>(t)];
      if (transfers_[static_cast<size_t>(t)].ready < kNever) continue;
      const bool sends = transfer.sender == id;
      const bool paired = transfer.sender >= 0 && transfer.receiver >= 0;
      reason = fmt::format("rank {} to {}, which {}", sends ? transfer.to : transfer.from,
                           sends ? "receive" : "send", paired ? "never gets there" : "does not");
      break;
    }
  }
  throw Error(fmt::format("rank {}, channel {}, step {}: never ends, waits for {}", node.rank,
                          step.channel, step.id, reason),
              ErrorKind::kWork);
}

}  // namespace

Replay replay(const Plan& plan, const Fabric& fabric, const CostModel& cost,
              const SimulateOptions& options, bool holders) {
  if (!(options.error >= 0 && options.error < 1))
    fail("error", fmt::format("{:g}", options.error), "0 or more, below 1");
  return Run(plan, fabric, cost, options, holders).run();
}

const Step& step_of(const Plan& plan, const StepNode& node) {
  return plan.programs[static_cast<size_t>(node.rank)].steps[static_cast<size_t>(node.index)];
}

double ready_time(const Replay& replay, int32_t node) {
  const NodeTimes& times = replay.nodes[static_cast<size_t>(node)];
  const StepNode& step = replay.graph.nodes[static_cast<size_t>(node)];
  const double started = times.begin + step.start_up;
  return step.pack_bytes > 0 ? std::max(started, times.packed) : started;
}

}  // namespace refit
