#pragma once

// What happens inside of the test double (fake_gpu.h): streams with their operations, graphs,
// communicators, and how all of them move when some rank polls.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/exec/fake_gpu.h"

namespace refit::testing {

inline constexpr int32_t kPollsInProgress = 3;  // of a communicator after each call

[[noreturn]] void refuse(const std::string& what);

struct FakeStream;
struct FakeGraph;

/// A communicator as its members share it.
struct FakeSharedComm {
  std::vector<int32_t> members;  // world ranks, by rank of the communicator
  size_t joined = 0;
  struct End {
    std::byte* at = nullptr;
    int64_t bytes = 0;
    std::shared_ptr<int32_t> left;  // messages of its group still to move
  };
  std::map<std::pair<int32_t, int32_t>, std::deque<End>> sends, recvs;  // by (from, to)
  std::vector<std::pair<int32_t, End>> gathering;                       // (rank, receive buffer)
  std::vector<const std::byte*> gathered_from;
};

struct FakeComm {
  std::shared_ptr<FakeSharedComm> shared;  // null until a split has come together
  int32_t rank = -1;                       // in it
  int32_t ctas = 0;
  int32_t polls_left = kPollsInProgress;
  bool aborted = false;
  FakeStream* stream = nullptr;  // the one that it is used on
  int64_t splits = 0;
};

struct FakeTransfer {
  bool is_send = false;
  std::byte* at = nullptr;
  int64_t bytes = 0;
  int32_t peer = -1;
};

struct FakeOp {
  enum class Kind { kSweep, kWait, kGroup, kGather, kGraph };
  Kind kind = Kind::kSweep;
  // Sweep.
  SweepView sweep;
  int32_t* marker = nullptr;
  int32_t mark = 0;
  // Wait: until `seq` operations of the stream (of the graph's branch) have ended.
  std::shared_ptr<FakeStream> stream;
  int32_t branch = -1;
  int64_t seq = 0;
  // Group, gather.
  std::shared_ptr<FakeComm> comm;
  std::vector<FakeTransfer> transfers;
  std::shared_ptr<int32_t> left;  // once it runs
  // Graph.
  std::shared_ptr<FakeGraph> graph;
  std::vector<std::shared_ptr<FakeStream>> branches;  // once it runs
};

struct FakeGraph {
  std::vector<std::vector<FakeOp>> branches;
  bool capturing = true;
};

struct FakeStream {
  std::deque<FakeOp> ops;
  int64_t enqueued = 0, ended = 0;
  std::shared_ptr<FakeGraph> capture;  // while it captures
  int32_t branch = -1;
};

struct FakeEvent {
  std::shared_ptr<FakeStream> stream;
  std::shared_ptr<FakeGraph> capture;
  int32_t branch = -1;
  int64_t seq = 0;
};

struct FakeCluster::State {
  struct Rank {
    std::map<FakeStream*, std::shared_ptr<FakeStream>> streams;
    std::vector<std::shared_ptr<FakeStream>> running;  // branches of graphs
    std::map<void*, std::shared_ptr<FakeComm>> comms;
    std::map<std::byte*, std::vector<std::byte>> memory;
    std::vector<CommSettings> settings;  // of communicators, as they were made
    int32_t ctas = 0;
    int64_t polls = 0, polled_at = -1;
    int64_t groups_left = -1;  // until its device breaks; -1: it does not
    bool gone = false;
  };
  struct Split {
    std::vector<std::pair<std::pair<int32_t, int32_t>, std::shared_ptr<FakeComm>>> calls;
    std::vector<int32_t> callers;
  };

  std::mutex mutex;
  int32_t multiprocessors = 0;
  int32_t most_ctas = 0;
  std::vector<Rank> ranks;
  std::vector<std::unique_ptr<Device>> devices;
  std::map<std::string, std::shared_ptr<FakeSharedComm>> by_id;
  std::map<std::pair<FakeSharedComm*, int64_t>, Split> splits;
  bool changed = true;
  int64_t epoch = 0;  // of changes
  Use use;
  Counts counts;
  std::string deadlock;

  Rank& at(int32_t rank) { return ranks[static_cast<size_t>(rank)]; }
  void touch() {
    changed = true;
    ++epoch;
  }

  void poll(int32_t rank);
  void advance();
  bool advance(int32_t rank, FakeStream& stream);
  bool run(int32_t rank, FakeOp& op);
  bool run_group(int32_t rank, FakeOp& op);
  void offer(FakeOp& op);
  bool run_graph(int32_t rank, FakeOp& op);
  bool take_ctas(int32_t rank, int32_t ctas);
  void match(FakeSharedComm& comm);
  std::string describe() const;
  static std::string describe(const FakeStream& stream);
};

}  // namespace refit::testing
