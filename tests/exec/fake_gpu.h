#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "exec/gpu_api.h"

namespace refit::testing {

/// A test double of CUDA and NCCL: the GPUs of all ranks of a job, in host memory. What it keeps of
/// the real ones:
///
///   streams     work is done in order, asynchronously: here whenever some rank polls, never in the
///               call that enqueues it; an event is a place in a stream
///   capture     as the runtime has it: streams join a capture by waiting for its events, have to be
///               joined back, and may not be polled meanwhile; a graph replays its branches
///   NCCL        a kernel of a group takes its thread blocks for as long as it runs, ends as a whole,
///               and nothing is eager: a message moves when both ends' kernels run. Messages of a
///               pair match in order; unequal sizes are an error. Communicators do not block: they
///               are in progress for some polls after each call, and may not be used meanwhile
///   deadlock    when nothing can move and every rank only polls, all polls throw an Error that names
///               the ranks and what they wait for
///
/// Thread-safe: one thread a rank.
class FakeCluster {
 public:
  explicit FakeCluster(int32_t ranks, int32_t multiprocessors = 132);
  ~FakeCluster();

  GpuApi& gpu(int32_t rank);

  /// The rank's thread polls no more: it has died, or is done.
  void leave(int32_t rank);

  /// From now on the rank's ends of groups fail, after `groups` that do not.
  void break_device(int32_t rank, int64_t groups);

  /// What is alive over all ranks, to see that nothing grows.
  struct Use {
    int64_t allocations = 0, bytes = 0, streams = 0, events = 0, graphs = 0, comms = 0,
            registrations = 0;
    bool operator==(const Use&) const = default;
  };
  Use use() const;

  struct Counts {
    int64_t sweeps = 0, groups = 0, messages = 0, graph_launches = 0, captures = 0;
  };
  Counts counts() const;

  /// What the rank's communicators were made with, in order: by id, then by splits.
  std::vector<CommSettings> settings(int32_t rank) const;

  /// Largest number of thread blocks that kernels of one rank held at a time.
  int32_t most_ctas() const;

 private:
  struct State;
  class Device;
  std::unique_ptr<State> state_;
};

}  // namespace refit::testing
