#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace refit {

/// How the processes of a job find each other before (and beside) the fast transport: small blobs,
/// barriers, and word of a failure. One object per rank, used by one thread.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t world() const = 0;

  /// Every rank's blob, by rank. All ranks call it equally often. Throws Error (kWork) that names
  /// the rank that fails, leaves or stays away past the timeout.
  virtual std::vector<std::string> all_gather(std::string_view mine) = 0;

  /// Tells all ranks, without waiting for them. The first reason stands.
  virtual void publish_failure(const std::string& reason) = 0;

  /// The reason that some rank has published, or that a rank has gone; empty while all is well.
  virtual std::string failure() = 0;

  void barrier() { all_gather(""); }
};

/// Limit of one blob. A length above it is a malformed message.
inline constexpr int64_t kMaxBlobBytes = int64_t{1} << 20;

/// Who this process is and how it meets the others.
struct BootstrapOptions {
  int32_t rank = -1, world = 0;
  int32_t root = 0;        // the rank that listens
  int32_t local_rank = 0;  // among the ranks of this host: the device to take

  // TCP: the root listens, the others connect. It binds to `bind_address`, or to the address that
  // `address` names, never to all of them unless told ("0.0.0.0").
  std::string address, bind_address;
  int32_t port = 0;
  /// On the root, when it listens; with port 0 on a free one.
  std::function<void(int32_t port)> announce;

  std::string folder;  // file: a folder that all ranks see; used when it is not empty

  /// Shared secret of the job, at least 16 characters. Both ends prove that they know it
  /// (HMAC-SHA256 over fresh numbers of both); it is never sent.
  std::string token;
  double timeout_s = 60;
};

/// Reads REFIT_RANK, REFIT_WORLD_SIZE, REFIT_LOCAL_RANK, REFIT_MASTER_ADDR, REFIT_MASTER_PORT,
/// REFIT_BIND_ADDR, REFIT_BOOTSTRAP_DIR and REFIT_JOB_TOKEN. Rank and world come from the first
/// launcher that has set one of the two, and then both: REFIT_*, torchrun (RANK, WORLD_SIZE,
/// LOCAL_RANK), Open MPI's mpirun (OMPI_COMM_WORLD_*), Slurm (SLURM_PROCID, SLURM_NTASKS,
/// SLURM_LOCALID). Address and port may also be MASTER_ADDR and MASTER_PORT, where the port is one
/// above MASTER_PORT (torchrun's own store listens there). Throws Error that names the variable
/// that is missing or wrong.
BootstrapOptions read_bootstrap_environment(
    const std::function<const char*(const char*)>& variable);

/// Process p, so far rank p, becomes the rank whose process `process_of` says it is; process 0
/// stays the root. Throws Error where that is no permutation of the processes.
void map_ranks(BootstrapOptions& options, const std::vector<int32_t>& process_of);

/// By file where a folder is given, else by TCP. Returns when all ranks have met.
std::unique_ptr<Bootstrap> make_bootstrap(const BootstrapOptions& options);

std::unique_ptr<Bootstrap> make_tcp_bootstrap(const BootstrapOptions& options);
std::unique_ptr<Bootstrap> make_file_bootstrap(const BootstrapOptions& options);

}  // namespace refit
