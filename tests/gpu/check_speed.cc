// The sweep's speed beside that of a device-to-device copy in the same run, and NCCL alone.

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "exec/copy_table.h"
#include "exec/cuda/cuda_gpu.h"
#include "exec/executor.h"
#include "exec/nccl_backend.h"
#include "plans/plan_io.h"
#include "tests/gpu/gpu_check.h"
#include "tests/gpu/loopback_gpu.h"

namespace refit {
namespace {

double time_plain_copy(std::byte* to, const std::byte* from, int64_t bytes) {
  return seconds_of([&] {
    check_cuda(
        cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, nullptr),
        "copy");
  });
}

void print_speed(const std::string& what, int64_t bytes, double swept, double copied) {
  const double giga = 1e-9 * static_cast<double>(bytes);
  print_row(what, fmt::format("{:.0f} GB/s", giga / swept),
            fmt::format("{:.0f} GB/s", giga / copied),
            fmt::format("{:.0f} %", 100 * copied / swept));
}

}  // namespace

void time_copies(const SweepBlocks& blocks) {
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
    Sweep sweep;
    CopyTable& table = sweep.copies;
    const int64_t stored = dtype_bytes(Dtype::kBf16, one.shape.product());
    const int64_t bytes = dtype_bytes(Dtype::kBf16, one.box.volume());
    for (int64_t i = 0; i < one.copies; ++i) {
      const Strided from = part_of(one.shape, one.box, Dtype::kBf16,
                                   source.data() + i * stored % (kBytes - stored) / 256 * 256);
      add_copy(table, from, dense_block(target.data() + i * bytes, bytes));
    }
    if (blocks.bulk > 0 && !table.has_long_runs()) continue;
    const DeviceSweep on_device(sweep);
    const double swept = seconds_of([&] { on_device.launch(blocks); });
    const double copied = time_plain_copy(target.data(), source.data(), table.bytes());
    print_speed(std::string(one.what) + (blocks.bulk > 0 ? ", bulk" : ""), table.bytes(), swept,
                copied);
  }
}

void time_casts(const SweepBlocks& blocks) {
  const Dims shape{16384, 7168};
  const int64_t elements = shape.product();
  const DeviceMemory source(elements * 4), target(elements * 4);
  check_cuda(cudaMemset(source.data(), 0x3c, static_cast<size_t>(elements * 4)), "memset");
  const Dims origin = whole(shape).lo, stride = dense_strides(shape);
  struct Case {
    const char* what;
    Dtype from, to;
    Format format;
  };
  const Case cases[] = {
      {"fp32 to bf16", Dtype::kFp32, Dtype::kBf16, Format::kNone},
      {"bf16 to fp8, blocks of 128 x 128", Dtype::kBf16, Dtype::kFp8E4m3, Format::kFp8Block},
      {"bf16 to mxfp8", Dtype::kBf16, Dtype::kFp8E4m3, Format::kMxfp8},
      {"bf16 to fp8, one scale", Dtype::kBf16, Dtype::kFp8E4m3, Format::kFp8},
      {"bf16 to nvfp4", Dtype::kBf16, Dtype::kFp4E2m1, Format::kNvfp4},
  };
  for (const Case& one : cases) {
    Sweep sweep;
    add_cast(sweep.casts, one.format, Output::kData, shape, whole(shape),
             {source.data(), one.from, origin, stride}, {target.data(), one.to, origin, stride});
    const DeviceSweep on_device(sweep);
    const double swept = seconds_of([&] { on_device.launch(blocks); });
    // What goes through memory, half of it each way, as of a copy.
    const int64_t bytes = (dtype_bytes(one.from, elements) + dtype_bytes(one.to, elements)) / 2;
    print_speed(std::string("cast ") + one.what, bytes, swept,
                time_plain_copy(target.data(), source.data(), bytes));
  }
}

void check_exchange(int32_t device) {
  const auto gpu = make_cuda_gpu(device);
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
  const bool registered = handles[0] != nullptr && handles[1] != nullptr;
  print_row("NCCL exchange with itself, enqueued, 3 x graph", "67.1 MB",
            registered ? "registered" : "not registered", "equal");
  gpu->destroy_graph(graph);
  for (void* handle : handles) {
    if (handle != nullptr) gpu->deregister_memory(comm, handle);
  }
  gpu->destroy_comm(comm);
  gpu->destroy_stream(stream);
  gpu->release(from);
  gpu->release(to);
}

namespace {

struct RankTimes {
  double replay_s = 0, host_s = 0;
  int64_t calls = 0;
};

/// Replays a bound program; the best of five after as many as it takes to settle.
RankTimes time_replays(Executor& executor, testing::LoopbackGpu& gpu) {
  RankTimes best{1e9, 1e9, 0};
  for (int i = 0; i < 8; ++i) {
    gpu.host_s = 0;
    gpu.calls = 0;
    const double replay_s = executor.run().refit_s;
    if (i < 3) continue;  // enqueued, captured, launched for the first time
    best = {std::min(best.replay_s, replay_s), std::min(best.host_s, gpu.host_s), gpu.calls};
  }
  return best;
}

}  // namespace

void time_rank(int32_t device, const std::string& path, int32_t rank) {
  const LoadedPlan loaded = load_plan_for_rank(path, rank);
  const Plan& plan = loaded.plan;
  const Program& program = plan.programs[static_cast<size_t>(rank)];
  const std::string what = fmt::format(
      "{} rank {}", plan.ranks[static_cast<size_t>(rank)].train ? "train" : "gen", rank);
  int64_t largest = 1;
  for (const Message& message : program.messages) {
    largest = std::max(largest, message_bytes(program, message));
  }
  size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "memory");
  const MemoryUse use = memory_use(plan, rank);
  const int64_t needed = use.buffers + 4 * use.staging + 2 * largest + (int64_t{4} << 30);
  if (needed > static_cast<int64_t>(free)) {
    return print_row(what, "skipped", fmt::format("needs {} GB", needed >> 30), "");
  }
  const auto real = make_cuda_gpu(device);
  testing::LoopbackGpu gpu(*real, largest);
  RankTimes of[3];
  int64_t bytes = 0;                      // that the sweeps copy
  for (int kind = 0; kind < 3; ++kind) {  // enqueued, as a graph, a graph of sweeps alone
    gpu.messages = kind < 2;
    NcclOptions options;
    options.graph = kind > 0;
    NcclBackend backend(gpu, plan, rank, nullptr, &gpu, options);
    Executor executor(plan, backend, allocate_buffers(plan, backend));
    of[kind] = time_replays(executor, gpu);
    bytes = backend.setup().copied_bytes;
  }
  print_row(what + ", replay with itself", fmt::format("{:.1f} ms", 1e3 * of[1].replay_s), "", "");
  print_row(what + ", host, enqueued", fmt::format("{:.2f} ms", 1e3 * of[0].host_s),
            fmt::format("{} calls", of[0].calls), "");
  print_row(what + ", host, graph", fmt::format("{:.2f} ms", 1e3 * of[1].host_s),
            fmt::format("{} calls", of[1].calls), "");
  const int64_t part = std::min<int64_t>(bytes, int64_t{1} << 30);
  if (part == 0) return print_row(what + ", sweeps", "none", "", "");
  const DeviceMemory source(part), target(part);
  const double copied = time_plain_copy(target.data(), source.data(), part) *
                        static_cast<double>(bytes) / static_cast<double>(part);
  print_speed(what + ", sweeps", bytes, of[2].replay_s, copied);
}

}  // namespace refit
