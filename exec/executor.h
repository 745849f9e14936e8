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
  /// bytes, or of another dtype than its area (this executor moves bytes, it converts none).
  Executor(const Plan& plan, Backend& backend, Buffers buffers);
  ~Executor();

  /// One refit. Throws Error (kWork) when a peer fails or stalls: every rank throws then, none
  /// reports success. Returns after all ranks have finished.
  ReplayTimes run();

  int64_t staging_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// What a rank allocates, in bytes: its buffers and its slots. (Packing belongs to the backends
/// that pack.)
struct MemoryUse {
  int64_t buffers = 0;
  int64_t staging = 0;
};
MemoryUse memory_use(const Plan& plan, int32_t rank);

/// Allocates all buffers of a rank from the backend.
Executor::Buffers allocate_buffers(const Plan& plan, Backend& backend);

}  // namespace refit
