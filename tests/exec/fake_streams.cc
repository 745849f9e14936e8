#include "tests/exec/fake_streams.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace refit::testing {

namespace {

constexpr int64_t kPollsOfDeadlock =
    500;  // more than a poller needs to hear of a failure elsewhere

/// Where the transfers of its pair of ranks wait for those of the other end.
std::deque<FakeSharedComm::End>& ends_of(FakeSharedComm& shared, int32_t rank,
                                         const FakeTransfer& transfer) {
  return transfer.is_send ? shared.sends[{rank, transfer.peer}]
                          : shared.recvs[{transfer.peer, rank}];
}

}  // namespace

void refuse(const std::string& what) { throw Error("test double: " + what, ErrorKind::kWork); }

bool FakeCluster::State::take_ctas(int32_t rank, int32_t ctas) {
  Rank& owner = at(rank);
  if (owner.ctas + ctas > multiprocessors) return false;
  owner.ctas += ctas;
  most_ctas = std::max(most_ctas, owner.ctas);
  return true;
}

void FakeCluster::State::match(FakeSharedComm& comm) {
  for (auto& [pair, sends] : comm.sends) {
    std::deque<FakeSharedComm::End>& recvs = comm.recvs[pair];
    while (!sends.empty() && !recvs.empty()) {
      const FakeSharedComm::End from = sends.front(), to = recvs.front();
      if (from.bytes != to.bytes) {
        refuse(fmt::format("rank {} sends {} bytes, rank {} receives {}",
                           comm.members[static_cast<size_t>(pair.first)], from.bytes,
                           comm.members[static_cast<size_t>(pair.second)], to.bytes));
      }
      std::memmove(to.at, from.at, static_cast<size_t>(from.bytes));
      --*from.left;
      --*to.left;
      ++counts.messages;
      sends.pop_front();
      recvs.pop_front();
    }
  }
  if (!comm.gathering.empty() && comm.gathering.size() == comm.members.size()) {
    for (const auto& [rank, into] : comm.gathering) {
      for (size_t i = 0; i < comm.gathering.size(); ++i) {
        const auto from = static_cast<int64_t>(comm.gathering[i].first);
        std::memcpy(into.at + from * into.bytes, comm.gathered_from[i],
                    static_cast<size_t>(into.bytes));
      }
    }
    for (const auto& [rank, into] : comm.gathering) --*into.left;
    comm.gathering.clear();
    comm.gathered_from.clear();
  }
}

/// Begins once the thread blocks are there; runs until all of its messages have moved.
bool FakeCluster::State::run_group(int32_t rank, FakeOp& op) {
  FakeComm& comm = *op.comm;
  if (comm.aborted) {
    if (op.left != nullptr) at(rank).ctas -= comm.ctas;
    return true;
  }
  if (op.left == nullptr) {
    if (!take_ctas(rank, comm.ctas)) return false;
    touch();
    offer(op);
    match(*comm.shared);
  }
  if (*op.left > 0) return false;
  at(rank).ctas -= comm.ctas;
  return true;
}

void FakeCluster::State::offer(FakeOp& op) {
  const int32_t rank = op.comm->rank;
  FakeSharedComm& shared = *op.comm->shared;
  if (op.kind == FakeOp::Kind::kGather) {
    op.left = std::make_shared<int32_t>(1);
    shared.gathering.push_back({rank, {op.transfers[1].at, op.transfers[0].bytes, op.left}});
    shared.gathered_from.push_back(op.transfers[0].at);
    return;
  }
  op.left = std::make_shared<int32_t>(static_cast<int32_t>(op.transfers.size()));
  for (const FakeTransfer& transfer : op.transfers) {
    ends_of(shared, rank, transfer).push_back({transfer.at, transfer.bytes, op.left});
  }
}

/// Copies the graph's branches onto streams of their own; runs until all of those are empty.
bool FakeCluster::State::run_graph(int32_t rank, FakeOp& op) {
  auto& running = at(rank).running;
  if (op.branches.empty()) {
    for (const std::vector<FakeOp>& branch : op.graph->branches) {
      auto stream = std::make_shared<FakeStream>();
      stream->ops.assign(branch.begin(), branch.end());
      stream->enqueued = std::ssize(branch);
      op.branches.push_back(stream);
    }
    for (const auto& stream : op.branches) {
      for (FakeOp& inner : stream->ops) {
        if (inner.kind != FakeOp::Kind::kWait) continue;
        inner.stream = op.branches[static_cast<size_t>(inner.branch)];
      }
      running.push_back(stream);
    }
    touch();
  }
  for (const auto& stream : op.branches) {
    if (!stream->ops.empty()) return false;
  }
  for (const auto& stream : op.branches) {
    running.erase(std::find(running.begin(), running.end(), stream));
  }
  return true;
}

/// Whether the operation, the first of its stream, has ended.
bool FakeCluster::State::run(int32_t rank, FakeOp& op) {
  switch (op.kind) {
    case FakeOp::Kind::kSweep:
      if (op.marker != nullptr) *op.marker = op.mark;
      run_sweep(op.sweep);
      return true;
    case FakeOp::Kind::kWait:
      return op.stream->ended >= op.seq;
    case FakeOp::Kind::kGroup:
    case FakeOp::Kind::kGather:
      return run_group(rank, op);
    case FakeOp::Kind::kGraph:
      return run_graph(rank, op);
  }
  return false;
}

bool FakeCluster::State::advance(int32_t rank, FakeStream& stream) {
  bool moved = false;
  while (!stream.ops.empty() && run(rank, stream.ops.front())) {
    stream.ops.pop_front();
    ++stream.ended;
    touch();
    moved = true;
  }
  return moved;
}

void FakeCluster::State::advance() {
  while (changed) {
    changed = false;
    for (int32_t rank = 0; rank < std::ssize(ranks); ++rank) {
      Rank& owner = at(rank);
      for (auto& [key, stream] : owner.streams) advance(rank, *stream);
      for (size_t i = 0; i < owner.running.size(); ++i) {
        const std::shared_ptr<FakeStream> stream = owner.running[i];
        advance(rank, *stream);
      }
    }
  }
}

std::string FakeCluster::State::describe(const FakeStream& stream) {
  if (stream.ops.empty()) return {};
  const FakeOp& op = stream.ops.front();
  if (op.kind == FakeOp::Kind::kGather) return "all ranks to gather";
  if (op.kind != FakeOp::Kind::kGroup) return {};
  if (op.left == nullptr) return "thread blocks";
  FakeSharedComm& shared = *op.comm->shared;
  std::string text;
  for (const FakeTransfer& transfer : op.transfers) {
    for (const FakeSharedComm::End& end : ends_of(shared, op.comm->rank, transfer)) {
      if (end.left != op.left) continue;
      text += fmt::format("{}{} rank {}", text.empty() ? "" : ", ",
                          transfer.is_send ? "to send to" : "to receive from",
                          shared.members[static_cast<size_t>(transfer.peer)]);
    }
  }
  return text;
}

std::string FakeCluster::State::describe() const {
  std::string text;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto add = [&](const FakeStream& stream) {
      const std::string what = describe(stream);
      if (!what.empty()) text += fmt::format("; rank {} waits {}", rank, what);
    };
    for (const auto& [key, stream] : ranks[rank].streams) add(*stream);
    for (const auto& stream : ranks[rank].running) add(*stream);
  }
  return "deadlock" + text;
}

/// A rank has asked whether something has ended: whatever can, moves.
void FakeCluster::State::poll(int32_t rank) {
  advance();
  Rank& owner = at(rank);
  if (owner.polled_at != epoch) owner.polls = 0;
  owner.polled_at = epoch;
  ++owner.polls;
  if (!deadlock.empty()) refuse(deadlock);
  if (owner.polls < kPollsOfDeadlock) return;
  for (const Rank& other : ranks) {
    if (!other.gone && (other.polled_at != epoch || other.polls < kPollsOfDeadlock)) return;
  }
  deadlock = describe();
  refuse(deadlock);
}

}  // namespace refit::testing
