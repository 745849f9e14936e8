// refit_gpu_check [PLAN]: what only a GPU can show. With a plan, also the programs of its first and
// of its last rank. Prints a table; exit 1 when a byte is wrong, 2 when there is no GPU or no NCCL.

#include "tests/gpu/gpu_check.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/error.h"
#include "exec/cuda/bulk_copy.h"
#include "exec/cuda/cuda_gpu.h"
#include "exec/strided.h"
#include "plans/plan_io.h"

namespace refit {

void check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw Error(fmt::format("{}: {}", what, cudaGetErrorString(error)), ErrorKind::kWork);
}

void print_row(const std::string& what, const std::string& figure, const std::string& beside,
               const std::string& verdict) {
  fmt::print("{:<48} {:>16} {:>16} {:>9}\n", what, figure, beside, verdict);
}

Strided part_of(const Dims& shape, const Box& box, Dtype dtype, std::byte* base) {
  return resolve({whole(shape), 0, dense_strides(shape)}, box, dtype, base);
}

DeviceMemory::DeviceMemory(int64_t bytes) {
  check_cuda(cudaMalloc(reinterpret_cast<void**>(&data_),
                        static_cast<size_t>(std::max<int64_t>(bytes, 1))),
             "cudaMalloc");
}

DeviceMemory::~DeviceMemory() { cudaFree(data_); }

void DeviceMemory::upload(const std::byte* from, int64_t bytes) const {
  check_cuda(cudaMemcpy(data_, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice), "copy");
}

void DeviceMemory::download(std::byte* to, int64_t bytes) const {
  check_cuda(cudaMemcpy(to, data_, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost), "copy");
}

DeviceSweep::DeviceSweep(const Sweep& sweep) : memory_(place_sweep(sweep, nullptr, nullptr).bytes) {
  const int64_t bytes = place_sweep(sweep, nullptr, nullptr).bytes;
  std::vector<std::byte> image(static_cast<size_t>(bytes));
  view_ = place_sweep(sweep, memory_.data(), image.data()).view;
  memory_.upload(image.data(), bytes);
}

void DeviceSweep::launch(const SweepBlocks& blocks) const {
  check_cuda(launch_sweep_kernel(view_, nullptr, 0, blocks, nullptr), "sweep kernel");
}

double seconds_of(const std::function<void()>& work) {
  cudaEvent_t begin = nullptr, end = nullptr;
  check_cuda(cudaEventCreate(&begin), "event");
  check_cuda(cudaEventCreate(&end), "event");
  work();
  double best = 1e9;
  for (int i = 0; i < 10; ++i) {
    check_cuda(cudaEventRecord(begin, nullptr), "event");
    work();
    check_cuda(cudaEventRecord(end, nullptr), "event");
    check_cuda(cudaEventSynchronize(end), "event");
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, begin, end), "event");
    best = std::min(best, 1e-3 * static_cast<double>(milliseconds));
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return best;
}

namespace {

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() > 1) fail("arguments", fmt::format("{}", arguments.size()), "[PLAN]");
  const int32_t device = current_cuda_device();
  fmt::print("{}\n", make_cuda_gpu(device)->describe());
  SweepBlocks blocks;
  check_cuda(count_sweep_blocks(&blocks), "occupancy");
  print_row("", "", "device copy", "");
  check_copies(blocks);
  check_casts(blocks);
  time_copies(blocks);
  time_casts(blocks);
  check_exchange(device);
  SweepBlocks with_bulk = blocks;
  check_cuda(count_bulk_blocks(&with_bulk.bulk), "occupancy of bulk copies");
  if (with_bulk.bulk > 0) {
    check_bulk_copies(with_bulk);
    time_copies(with_bulk);
  }
  if (arguments.empty()) return 0;
  const std::string& plan = arguments[0];
  const auto ranks = static_cast<int32_t>(load_plan_for_rank(plan, 0).plan.ranks.size());
  for (const int32_t rank : {0, ranks - 1}) time_rank(device, plan, rank);
  return 0;
}

}  // namespace
}  // namespace refit

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // show what there is
  try {
    return refit::run({argv + 1, argv + argc});
  } catch (const refit::Error& error) {
    fmt::print(stderr, "refit_gpu_check: {}\n", error.what());
    return error.kind() == refit::ErrorKind::kInput ? 2 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "refit_gpu_check: {}\n", error.what());
    return 1;
  }
}
