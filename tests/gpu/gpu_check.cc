// What only a GPU can show: the copy kernel against the host, byte by byte, for all dtypes and odd
// strides; its speed against a device-to-device copy in the same run; and an NCCL exchange, captured
// in a graph and replayed. Prints a table; exit 1 when a byte is wrong.

#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "exec/copy_table.h"
#include "exec/cuda/copy_kernel.h"
#include "exec/cuda/cuda_gpu.h"
#include "exec/strided.h"

namespace refit {
namespace {

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw Error(fmt::format("{}: {}", what, cudaGetErrorString(error)), ErrorKind::kWork);
  }
}

class DeviceMemory {
 public:
  explicit DeviceMemory(int64_t bytes) {
    check(cudaMalloc(reinterpret_cast<void**>(&data_), static_cast<size_t>(bytes)), "cudaMalloc");
  }
  ~DeviceMemory() { cudaFree(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
};

/// A table in device memory, of boxes whose addresses are device addresses.
class DeviceTable {
 public:
  explicit DeviceTable(const CopyTable& table)
      : boxes_(std::max<int64_t>(bytes_of(table.boxes), 1)),
        tiles_(std::max<int64_t>(bytes_of(table.box_of_tile), 1)) {
    upload(boxes_, table.boxes);
    upload(tiles_, table.box_of_tile);
    view_ = {reinterpret_cast<const CopyBox*>(boxes_.data()),
             reinterpret_cast<const int32_t*>(tiles_.data()),
             static_cast<int32_t>(table.box_of_tile.size())};
  }
  const TableView& view() const { return view_; }

 private:
  template <typename T>
  static int64_t bytes_of(const std::vector<T>& list) {
    return static_cast<int64_t>(list.size() * sizeof(T));
  }
  template <typename T>
  static void upload(const DeviceMemory& to, const std::vector<T>& list) {
    check(cudaMemcpy(to.data(), list.data(), list.size() * sizeof(T), cudaMemcpyHostToDevice),
          "upload");
  }
  DeviceMemory boxes_, tiles_;
  TableView view_;
};

Strided part_of(const Dims& shape, const Box& box, Dtype dtype, std::byte* base) {
  return resolve({whole(shape), 0, dense_strides(shape)}, box, dtype, base);
}

/// Random boxes of every dtype: packed, unpacked and copied. Returns how many bytes were compared.
int64_t check_bytes(int32_t blocks) {
  constexpr int64_t kBytes = int64_t{8} << 20;
  const DeviceMemory source(kBytes), target(kBytes);
  std::vector<std::byte> host_source(kBytes), host_target(kBytes), found(kBytes);
  std::mt19937_64 random(1);
  const auto in = [&](int64_t lo, int64_t hi) {
    return lo + static_cast<int64_t>(random() % static_cast<uint64_t>(hi - lo + 1));
  };
  int64_t compared = 0;
  for (int d = 0; d < kDtypeCount; ++d) {
    const auto dtype = static_cast<Dtype>(d);
    const int64_t even = dtype_bits(dtype) == 4 ? 2 : 1;
    for (int round = 0; round < 40; ++round) {
      for (std::byte& byte : host_source) byte = static_cast<std::byte>(random());
      std::fill(host_target.begin(), host_target.end(), std::byte{0xee});
      check(cudaMemcpy(source.data(), host_source.data(), kBytes, cudaMemcpyHostToDevice), "copy");
      check(cudaMemcpy(target.data(), host_target.data(), kBytes, cudaMemcpyHostToDevice), "copy");
      CopyTable on_host, on_device;
      int64_t from_at = 0, to_at = 0;
      while (true) {  // boxes until one of the blocks is full
        Dims from_shape, to_shape;
        Box from_box, to_box;
        from_shape.count = to_shape.count = static_cast<int32_t>(in(1, 4));
        from_box.lo.count = from_box.hi.count = to_box.lo.count = to_box.hi.count =
            from_shape.count;
        for (int k = 0; k < from_shape.count; ++k) {
          const int64_t step = k == from_shape.count - 1 ? even : 1;
          const int64_t extent = in(1, k == 0 ? 70 : 17) * step;
          const auto place = [&](Dims& shape, Box& box) {
            box.lo[k] = in(0, 1) * in(0, 7) * step;
            box.hi[k] = box.lo[k] + extent;
            shape[k] = box.hi[k] + in(0, 1) * in(0, 7) * step;
          };
          place(from_shape, from_box);
          place(to_shape, to_box);
        }
        from_at += in(0, 1) * in(0, 15);
        to_at += in(0, 1) * in(0, 15);
        const int64_t from_bytes = dtype_bytes(dtype, from_shape.product());
        const int64_t to_bytes = dtype_bytes(dtype, to_shape.product());
        if (from_at + from_bytes > kBytes || to_at + to_bytes > kBytes) break;
        const auto add = [&](CopyTable& table, std::byte* from, std::byte* to) {
          Strided left = part_of(from_shape, from_box, dtype, from + from_at);
          Strided right = part_of(to_shape, to_box, dtype, to + to_at);
          if (round % 3 == 1) right = dense_block(to + to_at, left.bytes());
          if (round % 3 == 2) left = dense_block(from + from_at, right.bytes());
          if (!add_copy(table, left, right)) throw Error("boxes do not fit", ErrorKind::kWork);
        };
        add(on_host, host_source.data(), host_target.data());
        add(on_device, source.data(), target.data());
        from_at += from_bytes;
        to_at += to_bytes;
      }
      copy_tiles(view(on_host));
      const DeviceTable table(on_device);
      check(launch_copy_kernel(table.view(), nullptr, 0, blocks, nullptr), "copy kernel");
      check(cudaDeviceSynchronize(), "copy kernel");
      check(cudaMemcpy(found.data(), target.data(), kBytes, cudaMemcpyDeviceToHost), "copy");
      if (std::memcmp(found.data(), host_target.data(), kBytes) != 0) {
        throw Error(fmt::format("dtype {}, round {}: the device's bytes are not the host's",
                                dtype_name(dtype), round),
                    ErrorKind::kWork);
      }
      compared += on_host.bytes();
    }
  }
  return compared;
}

template <typename Work>
double seconds_of(const Work& work) {
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  work();
  double best = 1e9;
  for (int i = 0; i < 10; ++i) {
    check(cudaEventRecord(begin, nullptr), "event");
    work();
    check(cudaEventRecord(end, nullptr), "event");
    check(cudaEventSynchronize(end), "event");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin, end), "event");
    best = std::min(best, 1e-3 * static_cast<double>(milliseconds));
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return best;
}

void time_copies(int32_t blocks) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const DeviceMemory source(kBytes), target(kBytes);
  struct Case {
    const char* what;
    Dims shape;
    Box box;
    int64_t copies;  // boxes of the table
  };
  const Case cases[] = {
      {"one run of 256 MiB", {int64_t{1} << 27}, {{0}, {int64_t{1} << 27}}, 1},
      {"half of the columns, rows of 7 KiB", {16384, 7168}, {{0, 0}, {16384, 3584}}, 1},
      {"experts, rows of 4 KiB", {32, 2048, 4096}, {{0, 0, 0}, {32, 2048, 2048}}, 1},
      {"a 16th of the columns, rows of 256 B", {131072, 2048}, {{0, 0}, {131072, 128}}, 1},
      {"odd rows of 254 B", {131072, 2048}, {{0, 1}, {131072, 128}}, 1},
      {"single elements", {1 << 22, 8}, {{0, 3}, {1 << 22, 4}}, 1},
      {"1000 boxes of 128 KiB", {64, 2048}, {{0, 0}, {64, 1024}}, 1000},
  };
  for (const Case& one : cases) {
    CopyTable table;
    const int64_t stored = dtype_bytes(Dtype::kBf16, one.shape.product());
    const int64_t bytes = dtype_bytes(Dtype::kBf16, one.box.volume());
    for (int64_t i = 0; i < one.copies; ++i) {
      const Strided from = part_of(one.shape, one.box, Dtype::kBf16,
                                   source.data() + i * stored % (kBytes - stored) / 256 * 256);
      add_copy(table, from, dense_block(target.data() + i * bytes, bytes));
    }
    const DeviceTable on_device(table);
    const double packed = seconds_of([&] {
      check(launch_copy_kernel(on_device.view(), nullptr, 0, blocks, nullptr), "copy kernel");
    });
    const double plain = seconds_of([&] {
      check(cudaMemcpyAsync(target.data(), source.data(), static_cast<size_t>(table.bytes()),
                            cudaMemcpyDeviceToDevice, nullptr),
            "copy");
    });
    const double total = static_cast<double>(table.bytes());
    fmt::print("{:<38} {:>9.1f} MB {:>8.1f} GB/s {:>8.1f} GB/s {:>5.0f} %\n", one.what,
               1e-6 * total, 1e-9 * total / packed, 1e-9 * total / plain, 100 * plain / packed);
  }
}

/// One rank sends to itself over NCCL, enqueued and as a graph.
void exchange_with_itself(int32_t device) {
  const auto gpu = make_cuda_gpu(device);
  fmt::print("{}\n", gpu->describe());
  constexpr int64_t kBytes = int64_t{64} << 20;
  std::byte* from = gpu->allocate(kBytes);
  std::byte* to = gpu->allocate(kBytes);
  GpuApi::Comm comm = gpu->make_comm(gpu->make_unique_id(), 1, 0, {16, 0});
  const auto settle = [&] {
    while (!gpu->is_settled(comm)) {
    }
  };
  settle();
  void* handles[] = {gpu->register_memory(comm, from, kBytes),
                     gpu->register_memory(comm, to, kBytes)};
  GpuApi::Stream stream = gpu->make_stream();
  const auto exchange = [&] {
    gpu->begin_group();
    gpu->send(from, kBytes, 0, comm, stream);
    gpu->receive(to, kBytes, 0, comm, stream);
    gpu->end_group();
    settle();
  };
  const auto wait = [&] {
    while (!gpu->is_done(stream)) {
    }
  };
  std::vector<std::byte> sent(kBytes), found(kBytes);
  const auto expect_arrived = [&](uint64_t seed, const std::function<void()>& work) {
    std::mt19937_64 random(seed);
    for (std::byte& byte : sent) byte = static_cast<std::byte>(random());
    gpu->copy(from, sent.data(), kBytes);
    work();
    wait();
    gpu->copy(found.data(), to, kBytes);
    if (found != sent) throw Error("NCCL: bytes sent to itself are not those", ErrorKind::kWork);
  };
  expect_arrived(1, exchange);
  gpu->begin_capture(stream);
  exchange();
  GpuApi::Graph graph = gpu->end_capture(stream);
  for (uint64_t seed = 2; seed < 5; ++seed) {
    expect_arrived(seed, [&] { gpu->launch(graph, stream); });
  }
  fmt::print("NCCL exchange with itself: enqueued once, captured, replayed 3 times; buffers {}\n",
             handles[0] != nullptr && handles[1] != nullptr ? "registered" : "not registered");
  gpu->destroy_graph(graph);
  for (void* handle : handles) {
    if (handle != nullptr) gpu->deregister_memory(comm, handle);
  }
  gpu->destroy_comm(comm);
  gpu->destroy_stream(stream);
  gpu->release(from);
  gpu->release(to);
}

int run() {
  const int32_t device = current_cuda_device();
  int32_t blocks = 0;
  check(count_copy_blocks(&blocks), "occupancy");
  exchange_with_itself(device);
  fmt::print("copy kernel: {} bytes of all {} dtypes equal to the host's\n", check_bytes(blocks),
             kDtypeCount);
  fmt::print("{:<38} {:>12} {:>13} {:>13}\n", "copies, bf16", "moved", "kernel", "device copy");
  time_copies(blocks);
  return 0;
}

}  // namespace
}  // namespace refit

int main() {
  try {
    return refit::run();
  } catch (const refit::Error& error) {
    fmt::print(stderr, "refit_gpu_check: {}\n", error.what());
    return error.kind() == refit::ErrorKind::kInput ? 2 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "refit_gpu_check: {}\n", error.what());
    return 1;
  }
}
