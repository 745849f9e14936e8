#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "exec/sweep.h"

namespace refit {

/// Channel settings of a communicator (ncclConfig_t); 0 leaves NCCL's own choice.
struct CommSettings {
  int32_t max_ctas = 0;               // most thread blocks of a kernel
  int32_t channels_per_net_peer = 0;  // NCCL 2.28 and later; earlier ones read the environment
};

/// The calls of the CUDA runtime and of NCCL that the nccl backend needs, one method a call: one
/// object for one device, used by one thread at a time. exec/cuda/ has the real one; tests have a
/// double (tests/exec/fake_gpu.h). All throw Error (kWork) that names the call and the library's
/// reason.
class GpuApi {
 public:
  using Stream = void*;
  using Event = void*;
  using Graph = void*;
  using Comm = void*;

  virtual ~GpuApi() = default;

  /// Makes the device that of the calling thread: before calls from a thread that may have changed
  /// it.
  virtual void make_current() = 0;

  /// Device and versions, for reports: "NVIDIA H100 80GB HBM3, CUDA 13.0, NCCL 2.28.9".
  virtual std::string describe() const = 0;
  /// Thread blocks that run at the same time at least: the device's multiprocessors.
  virtual int32_t multiprocessors() const = 0;

  virtual std::byte* allocate(int64_t bytes) = 0;
  virtual void release(std::byte* memory) = 0;
  /// Host memory that kernels can write; zeroed.
  virtual std::byte* allocate_host(int64_t bytes) = 0;
  virtual void release_host(std::byte* memory) = 0;
  /// Between host and device, either way. Returns when the bytes are there.
  virtual void copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;

  virtual Stream make_stream() = 0;
  virtual void destroy_stream(Stream stream) = 0;
  /// Has all work on the stream ended? Not to be asked of a stream that captures.
  virtual bool is_done(Stream stream) = 0;

  virtual Event make_event() = 0;
  virtual void destroy_event(Event event) = 0;
  virtual void record(Event event, Stream stream) = 0;
  virtual void wait(Stream stream, Event event) = 0;

  /// From begin to end, work on `stream`, and on streams that wait for it, is kept instead of run.
  virtual void begin_capture(Stream stream) = 0;
  virtual Graph end_capture(Stream stream) = 0;
  virtual void launch(Graph graph, Stream stream) = 0;
  virtual void destroy_graph(Graph graph) = 0;

  /// One kernel: writes `mark` to `*marker` (host memory of this class; null: no mark) as it
  /// begins, and runs the sweep, which may be empty.
  virtual void launch_sweep(const SweepView& sweep, int32_t* marker, int32_t mark,
                            Stream stream) = 0;

  // NCCL. Communicators do not block: a call may return before it is done, and is_settled tells.
  virtual std::string make_unique_id() = 0;
  virtual Comm make_comm(const std::string& unique_id, int32_t world, int32_t rank,
                         const CommSettings& settings) = 0;
  /// Ranks that give one colour form a communicator, in the order of `key`. All ranks call it.
  virtual Comm split_comm(Comm parent, int32_t colour, int32_t key,
                          const CommSettings& settings) = 0;
  virtual bool is_settled(Comm comm) = 0;
  virtual void begin_group() = 0;
  virtual void end_group() = 0;
  virtual void send(const std::byte* from, int64_t bytes, int32_t peer, Comm comm,
                    Stream stream) = 0;
  virtual void receive(std::byte* to, int64_t bytes, int32_t peer, Comm comm, Stream stream) = 0;
  /// Every rank's `bytes` bytes, by rank.
  virtual void all_gather(const std::byte* from, std::byte* to, int64_t bytes, Comm comm,
                          Stream stream) = 0;
  /// Lets the network and NVLink read and write the memory where it lies. Null where NCCL cannot.
  virtual void* register_memory(Comm comm, std::byte* memory, int64_t bytes) = 0;
  virtual void deregister_memory(Comm comm, void* handle) = 0;
  /// Ends kernels of the communicator that still wait for peers, and frees it.
  virtual void abort_comm(Comm comm) = 0;
  virtual void destroy_comm(Comm comm) = 0;
};

}  // namespace refit
