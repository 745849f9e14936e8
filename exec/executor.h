#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "exec/backend.h"
#include "plans/plan.h"

namespace refit {

/// What one replay took on one rank. Seconds.
struct ReplayTimes {
  double refit_s = 0;  // barrier, then until this rank's last byte is in place
  int64_t bytes_received = 0, bytes_copied = 0;
};

/// When a step was posted and when it ended, in seconds since the barrier.
struct StepTimes {
  double begin_s = 0, end_s = 0;
};

/// What the gen buffers of one rank hold. Owned by whoever owns the buffers, so that it outlives an
/// executor: a refit that fails leaves it torn at the old version, and one that succeeds, with this
/// executor or the next, makes it whole again.
struct Weights {
  int64_t version = 0;  // of the last refit that succeeded on all ranks
  bool torn = false;    // some bytes may be of a later version: not to be served
};

/// What an engine does around a refit, on each rank. All may be empty. What one throws fails the
/// refit on every rank, but for `after_commit`, which comes too late for that.
struct Hooks {
  /// Before the first byte of a gen buffer is written: stop serving, take the lock. Not called on
  /// ranks that receive nothing.
  std::function<void()> before_write;
  /// When this rank's last byte is in place, before any rank commits. `tensors`: those of which
  /// this rank has gen shards in the plan; what the plan does not name (frozen) is never touched.
  std::function<void(std::span<const int32_t> tensors)> finalize;
  /// All ranks have finished; `version` is in force. Drop what was computed with the old weights,
  /// release the lock. On the ranks of before_write.
  std::function<void(int64_t version)> after_commit;
};

/// Replays the program of one rank. Binds once (resolves every piece to addresses), replays many
/// times.
class Executor {
 public:
  /// Addresses of this rank's buffers: by buffer id of the plan, null where the rank has none.
  /// `plan` needs this rank's program only and must outlive the executor, as must the backend.
  struct Buffers {
    std::vector<std::byte*> train, gen;
  };

  /// Throws Error when a piece cannot be bound: outside of its area, without a buffer, not in whole
  /// bytes. Casts (exec/cast.h) pack before a step is posted and unpack when it has ended, in this
  /// thread, unless the backend does them.
  /// Connects with the peers: all ranks have to be about to do the same. `weights` null: its own.
  Executor(const Plan& plan, Backend& backend, Buffers buffers, Hooks hooks = {},
           Weights* weights = nullptr);
  ~Executor();

  /// One refit, to `version` (0: the one after the present). Throws Error (kWork) when a peer fails
  /// or stalls: every rank throws then, none reports success, and the weights of those that may
  /// have been written to are torn. Returns after all ranks have finished.
  ReplayTimes run(int64_t version = 0);

  const Weights& weights() const;

  /// Of the last run, by step of the program.
  std::span<const StepTimes> step_times() const;

  int64_t staging_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// What a rank allocates, in bytes: its buffers, and its slots with what casts pack into. (Other
/// packing belongs to the backends that pack.)
struct MemoryUse {
  int64_t buffers = 0;
  int64_t staging = 0;
};
MemoryUse memory_use(const Plan& plan, int32_t rank);

/// Allocates all buffers of a rank from the backend.
Executor::Buffers allocate_buffers(const Plan& plan, Backend& backend);

}  // namespace refit
