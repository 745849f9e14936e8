#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "exec/backend.h"
#include "exec/bootstrap.h"
#include "exec/gpu_api.h"
#include "plans/plan.h"

namespace refit {

// One process a GPU. Each channel of the plan is a stream and a communicator: of the ranks of one
// NVLink domain for the nvlink lane, so that no network peer throttles it, and of all ranks, with
// more channels per peer, for the others. A step is at most three entries on its stream: a sweep
// that packs, an NCCL group, a sweep that unpacks; steps of other channels are awaited by events.
// So a replay needs the host only to enqueue it, and from the second one on not even that: it is
// captured in a CUDA graph.
//
// No deadlock: within a communicator all ranks run their common steps in one order (the plan's),
// and across communicators the kernels of all channels fit on the device at once (max_ctas).

struct NcclOptions {
  double timeout_s = 30;
  bool graph = true;
  bool register_buffers = true;
  int32_t net_channels_per_peer = 4;  // what a 400 Gb/s NIC needs (docs/clusters.md)
};

class NcclBackend final : public Backend {
 public:
  /// Makes the communicators: from a unique id that `bootstrap` carries, or, when `parent` is given
  /// (a communicator of all ranks), by splitting that one. With a parent, `bootstrap` may be null:
  /// then ranks learn of a failure elsewhere by their own timeout. Collective.
  NcclBackend(GpuApi& gpu, const Plan& plan, int32_t rank, Bootstrap* bootstrap,
              GpuApi::Comm parent, const NcclOptions& options);
  ~NcclBackend() override;

  std::string name() const override { return "nccl"; }
  int32_t rank() const override;
  int32_t world() const override;
  std::byte* allocate(int64_t bytes) override;
  bool in_host_memory() const override { return false; }
  bool casts() const override { return true; }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override;
  void bind(std::span<const Group> groups) override;
  bool begin_replay() override;
  void post(const Group& group) override;
  int32_t wait_any() override;
  void end_replay() override;
  void barrier() override;
  void abort(const std::string& reason) override;

  /// The next replay begins after the work that `stream` has now.
  void begin_after(GpuApi::Stream stream);

  /// Every rank's blob, by rank, over the communicator of all ranks. Blobs are equally long.
  std::vector<std::string> all_gather(const std::string& mine);

  struct Setup {
    double connect_s = 0;  // first contact with all peers
    int64_t packing_bytes = 0, table_bytes = 0, registered_bytes = 0;
    int64_t copied_bytes = 0;                     // by the sweeps of one replay, casts apart
    int64_t steps = 0, sweeps = 0, messages = 0;  // of one replay
    int64_t casts = 0;                            // sweeps with casts
    bool graph = false;                           // the last replay was a captured one
  };
  const Setup& setup() const;

 private:
  template <typename Work>
  void or_abort(const Work& work);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace refit
