#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "exec/backend.h"
#include "plans/plan.h"

namespace refit {

/// What one replay took on one rank. Seconds.
struct ReplayTimes {
  double refit_s = 0;  // barrier, then until this rank's last byte is in place
  int64_t bytes_received = 0, bytes_copied = 0;
};

/// Replays the program of one rank. Binds once (resolves every piece to addresses), replays many times.
class Executor {
 public:
  /// Addresses of this rank's buffers: by buffer id of the plan, null where the rank has none. `plan` needs this rank's program only and
  /// must outlive the executor, as must the backend.
  struct Buffers {
    std::vector<std::byte*> train, gen;
  };
  Executor(const Plan& plan, Backend& backend, Buffers buffers);
  ~Executor();

  /// One refit. Throws Error (kWork) when a peer fails or stalls; no rank then reports success.
  ReplayTimes run();

  int64_t staging_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Allocates all buffers of a rank from the backend.
Executor::Buffers allocate_buffers(const Plan& plan, Backend& backend);

}  // namespace refit
