#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "exec/backend.h"
#include "exec/control.h"

namespace refit {

/// A communicator of the caller, without mpi.h: the address of an MPI_Comm, or a Fortran handle.
struct MpiCommunicator {
  const void* address = nullptr;
  int fortran = 0;
};

/// One process per rank, host memory, plain MPI-3: non-blocking sends and receives on a
/// communicator per channel, tagged with the step.
///
/// A message travels in fragments, of which at most four are in flight: packed and unpacked on the
/// way where it is not one block of memory; both ends cut by the same rule. The receiver answers a
/// message with an empty one, the receipt, with which it ends for the sender: a step ends when its
/// messages have arrived, as the plan was simulated, not when MPI has buffered them. MPI moves the
/// data and nothing else: barriers, failures and heartbeats go over Control, as MPI itself may hang
/// for good once a rank is gone.
///
/// Progress is that of the whole world: while any rank moves anything, none times out. After a
/// failure MPI may still read this rank's memory, as nothing can be taken back from it, and cannot
/// be finalised: report the error and end the process.
class MpiWorld {
 public:
  /// Initialises MPI. Rank r of the world is process `process_of[r]` of MPI_COMM_WORLD; empty: they
  /// are equal. Throws Error when that is no permutation of the processes.
  MpiWorld(const std::vector<int32_t>& process_of, double timeout_s);
  /// On the ranks of an initialised MPI's communicator, which is duplicated.
  MpiWorld(const MpiCommunicator& communicator, double timeout_s);
  /// Finalises the MPI that it has initialised, unless the world has failed.
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  int32_t rank() const;
  int32_t world() const;
  Control& control();

  /// Duplicates a communicator per channel: all ranks call it, once.
  Backend& open_backend(int32_t channels);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace refit
