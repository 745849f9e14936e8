#include "exec/cuda/cuda_gpu.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "exec/clock.h"
#include "exec/cuda/bulk_copy.h"
#include "exec/cuda/nccl_library.h"
#include "exec/cuda/sweep_kernel.h"

namespace refit {

namespace {

void check_cuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  throw Error(fmt::format("{}: {}", call, cudaGetErrorString(error)), ErrorKind::kWork);
}
#define REFIT_CUDA_CALL(call) check_cuda(call, #call)

cudaStream_t stream_of(GpuApi::Stream stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(GpuApi::Event event) { return static_cast<cudaEvent_t>(event); }
ncclComm_t comm_of(GpuApi::Comm comm) { return static_cast<ncclComm_t>(comm); }

class CudaGpu final : public GpuApi {
 public:
  explicit CudaGpu(int32_t device) : device_(device), nccl_(nccl_library()) {
    make_current();
    REFIT_CUDA_CALL(count_sweep_blocks(&sweep_blocks_));
    // Off by itself until a GPU has shown that they win (tests/gpu/run.sh times both).
    const char* bulk = std::getenv("REFIT_BULK_COPIES");
    if (bulk != nullptr && std::string_view(bulk) == "1") {
      REFIT_CUDA_CALL(count_bulk_blocks(&sweep_blocks_.bulk));
    }
    REFIT_CUDA_CALL(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking));
  }
  ~CudaGpu() override { cudaStreamDestroy(copies_); }

  void make_current() override { REFIT_CUDA_CALL(cudaSetDevice(device_)); }

  std::string describe() const override {
    cudaDeviceProp properties{};
    REFIT_CUDA_CALL(cudaGetDeviceProperties(&properties, device_));
    int runtime = 0;
    REFIT_CUDA_CALL(cudaRuntimeGetVersion(&runtime));
    return fmt::format("{}, CUDA {}.{}, NCCL {}", properties.name, runtime / 1000,
                       runtime % 1000 / 10, print_nccl_version(nccl_.version));
  }
  int32_t multiprocessors() const override {
    int count = 0;
    REFIT_CUDA_CALL(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device_));
    return count;
  }

  std::byte* allocate(int64_t bytes) override {
    void* at = nullptr;
    check_cuda(cudaMalloc(&at, static_cast<size_t>(bytes)),
               fmt::format("cudaMalloc of {} bytes", bytes).c_str());
    return static_cast<std::byte*>(at);
  }
  void release(std::byte* memory) override { REFIT_CUDA_CALL(cudaFree(memory)); }
  std::byte* allocate_host(int64_t bytes) override {
    void* at = nullptr;
    REFIT_CUDA_CALL(cudaHostAlloc(&at, static_cast<size_t>(bytes),
                                  cudaHostAllocMapped | cudaHostAllocPortable));
    std::memset(at, 0, static_cast<size_t>(bytes));
    return static_cast<std::byte*>(at);
  }
  void release_host(std::byte* memory) override { REFIT_CUDA_CALL(cudaFreeHost(memory)); }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    // Not on the default stream, which would wait for whatever the framework has on its streams.
    REFIT_CUDA_CALL(
        cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, copies_));
    REFIT_CUDA_CALL(cudaStreamSynchronize(copies_));
  }

  Stream make_stream() override {
    cudaStream_t stream = nullptr;
    REFIT_CUDA_CALL(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
  }
  void destroy_stream(Stream stream) override {
    REFIT_CUDA_CALL(cudaStreamDestroy(stream_of(stream)));
  }
  bool is_done(Stream stream) override {
    const cudaError_t state = cudaStreamQuery(stream_of(stream));
    if (state == cudaErrorNotReady) return false;
    check_cuda(state, "cudaStreamQuery");
    return true;
  }

  Event make_event() override {
    cudaEvent_t event = nullptr;
    REFIT_CUDA_CALL(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
  }
  void destroy_event(Event event) override { REFIT_CUDA_CALL(cudaEventDestroy(event_of(event))); }
  void record(Event event, Stream stream) override {
    REFIT_CUDA_CALL(cudaEventRecord(event_of(event), stream_of(stream)));
  }
  void wait(Stream stream, Event event) override {
    REFIT_CUDA_CALL(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0));
  }

  void begin_capture(Stream stream) override {
    // Relaxed: NCCL enqueues from a thread of its own, and other threads of the process may do what
    // they like.
    REFIT_CUDA_CALL(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeRelaxed));
  }
  Graph end_capture(Stream stream) override {
    cudaGraph_t graph = nullptr;
    REFIT_CUDA_CALL(cudaStreamEndCapture(stream_of(stream), &graph));
    cudaGraphExec_t ready = nullptr;
    const cudaError_t made = cudaGraphInstantiate(&ready, graph, 0);
    cudaGraphDestroy(graph);
    check_cuda(made, "cudaGraphInstantiate");
    return ready;
  }
  void launch(Graph graph, Stream stream) override {
    REFIT_CUDA_CALL(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(stream)));
  }
  void destroy_graph(Graph graph) override {
    REFIT_CUDA_CALL(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)));
  }

  void launch_sweep(const SweepView& sweep, int32_t* marker, int32_t mark, Stream stream) override {
    check_cuda(launch_sweep_kernel(sweep, marker, mark, sweep_blocks_, stream_of(stream)),
               "sweep kernel");
  }

  std::string make_unique_id() override {
    ncclUniqueId id;
    check(nccl_.ncclGetUniqueId(&id), "ncclGetUniqueId");
    return {id.internal, sizeof id.internal};
  }
  Comm make_comm(const std::string& unique_id, int32_t world, int32_t rank,
                 const CommSettings& settings) override {
    ncclUniqueId id;
    if (unique_id.size() != sizeof id.internal) {
      fail("NCCL's unique id", fmt::format("{} bytes", unique_id.size()),
           fmt::format("{}", sizeof id.internal));
    }
    std::memcpy(id.internal, unique_id.data(), sizeof id.internal);
    ncclConfig_t config = make_config(settings);
    ncclComm_t comm = nullptr;
    check(nccl_.ncclCommInitRankConfig(&comm, world, id, rank, &config), "ncclCommInitRankConfig");
    return comm;
  }
  Comm split_comm(Comm parent, int32_t colour, int32_t key, const CommSettings& settings) override {
    ncclConfig_t config = make_config(settings);
    ncclComm_t comm = nullptr;
    check(nccl_.ncclCommSplit(comm_of(parent), colour, key, &comm, &config), "ncclCommSplit");
    // A child of a non-blocking parent is there once the parent has settled.
    if (comm == nullptr) {
      while (!is_settled(parent)) std::this_thread::yield();
    }
    if (comm == nullptr) throw Error("ncclCommSplit: made no communicator", ErrorKind::kWork);
    return comm;
  }
  bool is_settled(Comm comm) override {
    ncclResult_t state = ncclSuccess;
    check(nccl_.ncclCommGetAsyncError(comm_of(comm), &state), "ncclCommGetAsyncError");
    check(state, "NCCL");
    return state != ncclInProgress;
  }
  void begin_group() override { check(nccl_.ncclGroupStart(), "ncclGroupStart"); }
  void end_group() override { check(nccl_.ncclGroupEnd(), "ncclGroupEnd"); }
  void send(const std::byte* from, int64_t bytes, int32_t peer, Comm comm, Stream stream) override {
    check(nccl_.ncclSend(from, static_cast<size_t>(bytes), ncclUint8, peer, comm_of(comm),
                         stream_of(stream)),
          "ncclSend");
  }
  void receive(std::byte* to, int64_t bytes, int32_t peer, Comm comm, Stream stream) override {
    check(nccl_.ncclRecv(to, static_cast<size_t>(bytes), ncclUint8, peer, comm_of(comm),
                         stream_of(stream)),
          "ncclRecv");
  }
  void all_gather(const std::byte* from, std::byte* to, int64_t bytes, Comm comm,
                  Stream stream) override {
    check(nccl_.ncclAllGather(from, to, static_cast<size_t>(bytes), ncclUint8, comm_of(comm),
                              stream_of(stream)),
          "ncclAllGather");
  }

  void* register_memory(Comm comm, std::byte* memory, int64_t bytes) override {
    if (nccl_.ncclCommRegister == nullptr) return nullptr;
    void* handle = nullptr;
    const ncclResult_t result =
        nccl_.ncclCommRegister(comm_of(comm), memory, static_cast<size_t>(bytes), &handle);
    return result == ncclSuccess ? handle : nullptr;
  }
  void deregister_memory(Comm comm, void* handle) override {
    if (nccl_.ncclCommDeregister != nullptr) {
      check(nccl_.ncclCommDeregister(comm_of(comm), handle), "ncclCommDeregister");
    }
  }
  void abort_comm(Comm comm) override { nccl_.ncclCommAbort(comm_of(comm)); }
  void destroy_comm(Comm comm) override {
    check(nccl_.ncclCommFinalize(comm_of(comm)), "ncclCommFinalize");
    const Clock::time_point deadline = from_now(30);
    while (!is_settled(comm)) {
      if (Clock::now() > deadline) return abort_comm(comm);  // a peer is gone
      std::this_thread::yield();
    }
    check(nccl_.ncclCommDestroy(comm_of(comm)), "ncclCommDestroy");
  }

 private:
  /// In progress is no error: communicators do not block.
  void check(ncclResult_t result, const char* call) const {
    if (result == ncclSuccess || result == ncclInProgress) return;
    const char* last = nccl_.ncclGetLastError(nullptr);
    throw Error(
        fmt::format("{}: {}{}{}", call, nccl_.ncclGetErrorString(result),
                    last == nullptr || *last == '\0' ? "" : ": ", last == nullptr ? "" : last),
        ErrorKind::kWork);
  }

  static ncclConfig_t make_config(const CommSettings& settings) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;  // an older library reads what it knows of it
    config.blocking = 0;
    if (settings.max_ctas > 0) {
      config.minCTAs = 1;
      config.maxCTAs = settings.max_ctas;
    }
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
    if (settings.channels_per_net_peer > 0) {
      config.nChannelsPerNetPeer = settings.channels_per_net_peer;
    }
#endif
    return config;
  }

  const int32_t device_;
  const NcclLibrary& nccl_;
  SweepBlocks sweep_blocks_;
  cudaStream_t copies_ = nullptr;
};

}  // namespace

int32_t count_cuda_devices() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) return devices;
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY);
  const std::string found = driver == nullptr      ? "no driver (libcuda.so.1)"
                            : error == cudaSuccess ? "no device"
                                                   : std::string(cudaGetErrorString(error));
  if (driver != nullptr) dlclose(driver);
  fail("backend nccl", found, "a GPU with its driver on this host, shown by CUDA_VISIBLE_DEVICES");
}

int32_t current_cuda_device() {
  count_cuda_devices();
  int device = 0;
  REFIT_CUDA_CALL(cudaGetDevice(&device));
  return device;
}

CommPlace find_comm_place(void* communicator) {
  CommPlace place;
  const NcclLibrary& nccl = nccl_library();
  if (nccl.ncclCommUserRank(comm_of(communicator), &place.rank) != ncclSuccess ||
      nccl.ncclCommCount(comm_of(communicator), &place.world) != ncclSuccess) {
    fail("communicator", "none that NCCL knows", "an ncclComm_t");
  }
  return place;
}

std::unique_ptr<GpuApi> make_cuda_gpu(int32_t device) {
  const int32_t devices = count_cuda_devices();
  if (device < 0 || device >= devices) {
    fail("backend nccl", fmt::format("device {}", device),
         fmt::format("0..{}: this process sees {} GPU{}", devices - 1, devices,
                     devices == 1 ? "" : "s"));
  }
  return std::make_unique<CudaGpu>(device);
}

}  // namespace refit
