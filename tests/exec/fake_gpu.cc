#include "tests/exec/fake_gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "tests/exec/fake_streams.h"

namespace refit::testing {

class FakeCluster::Device final : public GpuApi {
 public:
  Device(State& state, int32_t rank) : state_(state), rank_(rank) {}

  void make_current() override {}
  std::string describe() const override { return "test double of CUDA and NCCL"; }
  int32_t multiprocessors() const override { return state_.multiprocessors; }

  std::byte* allocate(int64_t bytes) override {
    const std::lock_guard lock(state_.mutex);
    std::vector<std::byte> block(static_cast<size_t>(bytes) + 256, std::byte{0xab});
    std::byte* at = block.data();
    at += (256 - reinterpret_cast<uintptr_t>(at) % 256) % 256;
    own().memory.emplace(at, std::move(block));
    ++state_.use.allocations;
    state_.use.bytes += bytes;
    return at;
  }
  void release(std::byte* memory) override {
    const std::lock_guard lock(state_.mutex);
    const auto block = own().memory.find(memory);
    if (block == own().memory.end()) refuse("release of what was not allocated");
    state_.advance();  // a real release waits for the device
    for (const auto& [key, stream] : own().streams) {
      if (!stream->ops.empty()) refuse("a release that waits for work that does not end");
    }
    --state_.use.allocations;
    state_.use.bytes -= std::ssize(block->second) - 256;
    own().memory.erase(block);
  }
  std::byte* allocate_host(int64_t bytes) override {
    std::byte* at = allocate(bytes);
    std::memset(at, 0, static_cast<size_t>(bytes));
    return at;
  }
  void release_host(std::byte* memory) override { release(memory); }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    const std::lock_guard lock(state_.mutex);
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }

  Stream make_stream() override {
    const std::lock_guard lock(state_.mutex);
    auto stream = std::make_shared<FakeStream>();
    own().streams[stream.get()] = stream;
    ++state_.use.streams;
    return stream.get();
  }
  void destroy_stream(Stream stream) override {
    const std::lock_guard lock(state_.mutex);
    if (!find(stream)->ops.empty()) refuse("a stream is destroyed while it works");
    own().streams.erase(static_cast<FakeStream*>(stream));
    --state_.use.streams;
  }
  bool is_done(Stream stream) override {
    const std::lock_guard lock(state_.mutex);
    const auto found = find(stream);
    if (found->capture != nullptr) refuse("a stream that captures is asked whether it is done");
    state_.advance();
    if (found->ops.empty()) return true;
    state_.poll(rank_);
    return found->ops.empty();
  }

  Event make_event() override {
    const std::lock_guard lock(state_.mutex);
    ++state_.use.events;
    return new FakeEvent;
  }
  void destroy_event(Event event) override {
    const std::lock_guard lock(state_.mutex);
    --state_.use.events;
    delete static_cast<FakeEvent*>(event);
  }
  void record(Event event, Stream stream) override {
    const std::lock_guard lock(state_.mutex);
    auto& into = *static_cast<FakeEvent*>(event);
    const auto found = find(stream);
    into = {found, found->capture, found->branch, found->enqueued};
    if (found->capture != nullptr) {
      into.stream = nullptr;
      into.seq = std::ssize(found->capture->branches[static_cast<size_t>(found->branch)]);
    }
  }
  void wait(Stream stream, Event event) override {
    const std::lock_guard lock(state_.mutex);
    const auto& on = *static_cast<FakeEvent*>(event);
    const auto found = find(stream);
    if (on.capture != nullptr && !on.capture->capturing)
      refuse("a wait for a capture that is over");
    if (on.capture != nullptr && found->capture == nullptr) {  // joins
      found->capture = on.capture;
      found->branch = static_cast<int32_t>(on.capture->branches.size());
      on.capture->branches.emplace_back();
    }
    if (found->capture != on.capture)
      refuse("a captured stream waits for work outside the capture");
    if (on.capture == nullptr && on.stream == nullptr) return;  // never recorded
    FakeOp op;
    op.kind = FakeOp::Kind::kWait;
    op.stream = on.stream;
    op.branch = on.branch;
    op.seq = on.seq;
    enqueue(*found, std::move(op));
  }

  void begin_capture(Stream stream) override {
    const std::lock_guard lock(state_.mutex);
    const auto found = find(stream);
    if (found->capture != nullptr) refuse("a stream captures already");
    found->capture = std::make_shared<FakeGraph>();
    found->capture->branches.emplace_back();
    found->branch = 0;
    ++state_.counts.captures;
  }
  Graph end_capture(Stream stream) override {
    const std::lock_guard lock(state_.mutex);
    const auto found = find(stream);
    const std::shared_ptr<FakeGraph> graph = found->capture;
    if (graph == nullptr || found->branch != 0) refuse("the end of no capture of this stream");
    // Everything has to be joined back: reachable from the end of the origin over waits.
    std::vector<int64_t> reached(graph->branches.size(), 0);
    reached[0] = std::ssize(graph->branches[0]);
    for (bool again = true; again;) {
      again = false;
      for (size_t b = 0; b < reached.size(); ++b) {
        for (int64_t i = 0; i < reached[b]; ++i) {
          const FakeOp& op = graph->branches[b][static_cast<size_t>(i)];
          if (op.kind != FakeOp::Kind::kWait) continue;
          int64_t& other = reached[static_cast<size_t>(op.branch)];
          again |= op.seq > other;
          other = std::max(other, op.seq);
        }
      }
    }
    graph->capturing = false;
    for (auto& [key, other] : own().streams) {
      if (other->capture == graph) {
        other->capture = nullptr;
        other->branch = -1;
      }
    }
    for (size_t b = 0; b < reached.size(); ++b) {
      if (reached[b] != std::ssize(graph->branches[b])) refuse("a captured stream is not joined");
    }
    ++state_.use.graphs;
    return new std::shared_ptr<FakeGraph>(graph);
  }
  void launch(Graph graph, Stream stream) override {
    const std::lock_guard lock(state_.mutex);
    FakeOp op;
    op.kind = FakeOp::Kind::kGraph;
    op.graph = *static_cast<std::shared_ptr<FakeGraph>*>(graph);
    ++state_.counts.graph_launches;
    enqueue(*find(stream), std::move(op));
  }
  void destroy_graph(Graph graph) override {
    const std::lock_guard lock(state_.mutex);
    --state_.use.graphs;
    delete static_cast<std::shared_ptr<FakeGraph>*>(graph);
  }

  void launch_sweep(const SweepView& sweep, int32_t* marker, int32_t mark, Stream stream) override {
    const std::lock_guard lock(state_.mutex);
    FakeOp op;
    op.sweep = sweep;
    op.marker = marker;
    op.mark = mark;
    ++state_.counts.sweeps;
    enqueue(*find(stream), std::move(op));
  }

  std::string make_unique_id() override {
    const std::lock_guard lock(state_.mutex);
    return fmt::format("id {}", state_.by_id.size());
  }
  Comm make_comm(const std::string& unique_id, int32_t world, int32_t rank,
                 const CommSettings& settings) override {
    const std::lock_guard lock(state_.mutex);
    auto& shared = state_.by_id[unique_id];
    if (shared == nullptr) {
      shared = std::make_shared<FakeSharedComm>();
      shared->members.assign(static_cast<size_t>(world), -1);
    }
    auto comm = std::make_shared<FakeComm>();
    comm->shared = shared;
    comm->rank = rank;
    comm->ctas = settings.max_ctas;
    own().settings.push_back(settings);
    shared->members[static_cast<size_t>(rank)] = rank_;
    ++shared->joined;
    return keep(comm);
  }
  Comm split_comm(Comm parent, int32_t colour, int32_t key, const CommSettings& settings) override {
    const std::lock_guard lock(state_.mutex);
    FakeComm& from = settled(parent);
    from.polls_left = kPollsInProgress;
    auto comm = std::make_shared<FakeComm>();
    comm->ctas = settings.max_ctas;
    own().settings.push_back(settings);
    State::Split& split = state_.splits[{from.shared.get(), from.splits++}];
    split.calls.push_back({{colour, key}, comm});
    split.callers.push_back(rank_);
    if (split.calls.size() == from.shared->members.size()) {
      std::map<std::pair<int32_t, int32_t>, size_t> order;
      for (size_t i = 0; i < split.calls.size(); ++i) order[split.calls[i].first] = i;
      std::shared_ptr<FakeSharedComm> shared;
      int32_t last = -1;
      for (const auto& [place, i] : order) {
        if (shared == nullptr || place.first != last) shared = std::make_shared<FakeSharedComm>();
        last = place.first;
        FakeComm& child = *split.calls[i].second;
        child.shared = shared;
        child.rank = static_cast<int32_t>(shared->members.size());
        shared->members.push_back(split.callers[i]);
        ++shared->joined;
      }
      split = {};
    }
    return keep(comm);
  }
  bool is_settled(Comm comm) override {
    const std::lock_guard lock(state_.mutex);
    FakeComm& found = *find_comm(comm);
    if (found.shared != nullptr && found.shared->joined == found.shared->members.size()) {
      if (found.polls_left == 0) return true;
      --found.polls_left;
      return false;
    }
    state_.poll(rank_);
    return false;
  }
  void begin_group() override {
    if (in_group_) refuse("a group within a group");
    in_group_ = true;
  }
  void end_group() override {
    const std::lock_guard lock(state_.mutex);
    if (!in_group_) refuse("the end of no group");
    in_group_ = false;
    if (own().groups_left == 0) {
      group_ = {};
      refuse(fmt::format("the device of rank {} is broken", rank_));
    }
    if (own().groups_left > 0) --own().groups_left;
    if (group_.transfers.empty()) return;
    FakeComm& comm = *group_.comm;
    std::set<std::pair<bool, int32_t>> seen;
    for (const FakeTransfer& transfer : group_.transfers) {
      // What a rank sends to itself is matched in order; with peers a step has one message each
      // way.
      if (comm.shared->members.size() > 1 &&
          !seen.insert({transfer.is_send, transfer.peer}).second) {
        refuse("two messages of a group to or from one peer");
      }
    }
    comm.polls_left = kPollsInProgress;
    ++state_.counts.groups;
    FakeOp op = std::move(group_);
    group_ = {};
    enqueue(*find(group_stream_), std::move(op));
  }
  void send(const std::byte* from, int64_t bytes, int32_t peer, Comm comm, Stream stream) override {
    add({true, const_cast<std::byte*>(from), bytes, peer}, comm, stream);  // only read
  }
  void receive(std::byte* to, int64_t bytes, int32_t peer, Comm comm, Stream stream) override {
    add({false, to, bytes, peer}, comm, stream);
  }
  void all_gather(const std::byte* from, std::byte* to, int64_t bytes, Comm comm,
                  Stream stream) override {
    const std::lock_guard lock(state_.mutex);
    FakeComm& found = settled(comm);
    FakeOp op;
    op.kind = FakeOp::Kind::kGather;
    op.comm = find_comm(comm);
    op.transfers = {{true, const_cast<std::byte*>(from), bytes, -1}, {false, to, bytes, -1}};
    found.polls_left = kPollsInProgress;
    enqueue(*find(stream), std::move(op));
  }
  void* register_memory(Comm comm, std::byte*, int64_t) override {
    const std::lock_guard lock(state_.mutex);
    settled(comm);
    ++state_.use.registrations;
    return &state_;
  }
  void deregister_memory(Comm, void*) override {
    const std::lock_guard lock(state_.mutex);
    --state_.use.registrations;
  }
  void abort_comm(Comm comm) override {
    const std::lock_guard lock(state_.mutex);
    const auto found = find_comm(comm);
    found->aborted = true;
    if (found->shared != nullptr) {
      // Its kernels end: what they have offered is offered no more.
      const auto drop = [&](auto& ends, bool first) {
        for (auto& [pair, queue] : ends) {
          if ((first ? pair.first : pair.second) == found->rank) queue.clear();
        }
      };
      drop(found->shared->sends, true);
      drop(found->shared->recvs, false);
      auto& gathering = found->shared->gathering;
      for (size_t i = gathering.size(); i-- > 0;) {
        if (gathering[i].first != found->rank) continue;
        gathering.erase(gathering.begin() + static_cast<std::ptrdiff_t>(i));
        found->shared->gathered_from.erase(found->shared->gathered_from.begin() +
                                           static_cast<std::ptrdiff_t>(i));
      }
    }
    own().comms.erase(comm);
    --state_.use.comms;
    own().gone = true;
    state_.touch();
  }
  void destroy_comm(Comm comm) override {
    const std::lock_guard lock(state_.mutex);
    const auto found = find_comm(comm);
    state_.advance();
    for (const auto& [key, stream] : own().streams) {
      for (const FakeOp& op : stream->ops) {
        if (op.comm == found) refuse("a communicator is destroyed while it works");
      }
    }
    own().comms.erase(comm);
    --state_.use.comms;
  }

 private:
  State::Rank& own() { return state_.at(rank_); }
  std::shared_ptr<FakeStream> find(Stream stream) {
    const auto found = own().streams.find(static_cast<FakeStream*>(stream));
    if (found == own().streams.end()) refuse("no such stream");
    return found->second;
  }
  std::shared_ptr<FakeComm> find_comm(Comm comm) {
    const auto found = own().comms.find(comm);
    if (found == own().comms.end()) refuse("no such communicator");
    return found->second;
  }
  FakeComm& settled(Comm comm) {
    const auto found = find_comm(comm);
    if (found->shared == nullptr || found->polls_left > 0) {
      refuse("a communicator is used while it is in progress");
    }
    return *found;
  }
  Comm keep(const std::shared_ptr<FakeComm>& comm) {
    own().comms[comm.get()] = comm;
    ++state_.use.comms;
    state_.touch();
    return comm.get();
  }
  void enqueue(FakeStream& stream, FakeOp op) {
    if (stream.capture != nullptr) {
      if (op.kind == FakeOp::Kind::kGraph) refuse("a graph is launched in a capture");
      stream.capture->branches[static_cast<size_t>(stream.branch)].push_back(std::move(op));
      return;
    }
    stream.ops.push_back(std::move(op));
    ++stream.enqueued;
    state_.touch();
  }
  void add(const FakeTransfer& transfer, Comm comm, Stream stream) {
    const std::lock_guard lock(state_.mutex);
    if (!in_group_) refuse("a message outside of a group");
    FakeComm& found = settled(comm);
    if (transfer.peer < 0 || transfer.peer >= std::ssize(found.shared->members)) {
      refuse("no such peer");
    }
    const auto on = find(stream);
    if (found.stream != nullptr && found.stream != on.get()) {
      refuse("a communicator is used on two streams");
    }
    found.stream = on.get();
    if (group_.comm != nullptr && group_.comm.get() != &found)
      refuse("two communicators in a group");
    group_.kind = FakeOp::Kind::kGroup;
    group_.comm = find_comm(comm);
    group_.transfers.push_back(transfer);
    group_stream_ = stream;
  }

  State& state_;
  const int32_t rank_;
  bool in_group_ = false;
  FakeOp group_;
  Stream group_stream_ = nullptr;
};

FakeCluster::FakeCluster(int32_t ranks, int32_t multiprocessors)
    : state_(std::make_unique<State>()) {
  state_->multiprocessors = multiprocessors;
  state_->ranks.resize(static_cast<size_t>(ranks));
  for (int32_t rank = 0; rank < ranks; ++rank) {
    state_->devices.push_back(std::make_unique<Device>(*state_, rank));
  }
}

FakeCluster::~FakeCluster() {
  for (State::Rank& rank : state_->ranks) {
    for (const auto& stream : rank.running) stream->ops.clear();  // they point to each other
  }
}

GpuApi& FakeCluster::gpu(int32_t rank) { return *state_->devices[static_cast<size_t>(rank)]; }

void FakeCluster::leave(int32_t rank) {
  const std::lock_guard lock(state_->mutex);
  state_->at(rank).gone = true;
}

void FakeCluster::break_device(int32_t rank, int64_t groups) {
  const std::lock_guard lock(state_->mutex);
  state_->at(rank).groups_left = groups;
}

FakeCluster::Use FakeCluster::use() const {
  const std::lock_guard lock(state_->mutex);
  return state_->use;
}

FakeCluster::Counts FakeCluster::counts() const {
  const std::lock_guard lock(state_->mutex);
  return state_->counts;
}

std::vector<CommSettings> FakeCluster::settings(int32_t rank) const {
  const std::lock_guard lock(state_->mutex);
  return state_->at(rank).settings;
}

int32_t FakeCluster::most_ctas() const {
  const std::lock_guard lock(state_->mutex);
  return state_->most_ctas;
}

}  // namespace refit::testing
