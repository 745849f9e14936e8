// The executor beside what the machine can do, both sides of each ratio in the same run:
//   host  all ranks in one process, beside memcpy on all cores; each transferred byte counts once
//   mpi   two processes on loopback, beside a plain two-sided stream of the same sizes
// A plan without relays: all bytes go from a train rank straight to a gen rank.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/units.h"
#include "exec/host_replay.h"
#include "exec/machine.h"
#include "plans/plan_io.h"
#include "tests/exec/test_plans.h"

#ifdef REFIT_HAVE_MPI
#include <mpi.h>

#include "exec/mpi_backend.h"
#endif

namespace refit {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// `senders` train ranks to as many gen ranks, tensors of 8 MiB. Rows to rows are sent in place,
/// rows to columns are packed.
Plan make_plan(int32_t senders, int32_t tensors, bool columns) {
  testing::PlanMaker maker(2 * senders, 2);
  const Dims shape{2048, 2048};
  for (int32_t t = 0; t < tensors; ++t) {
    maker.add_tensor(fmt::format("t{}", t), shape, Dtype::kBf16,
                     testing::split(shape, 0, 0, senders),
                     testing::split(shape, columns ? 1 : 0, senders, senders));
  }
  maker.add_direct_transfers();
  return maker.finish();
}

void bench_host() {
  const int cores = core_count();
  fmt::print("host backend, {} cores, 512 MiB:\n", cores);
  for (const bool columns : {false, true}) {
    const Plan plan = make_plan(std::max(cores, 2), 64, columns);
    const double memcpy_rate = measure_memcpy(cores);
    const ReplayReport report = replay_on_host(plan, {9, false, 60, {}});
    const double rate = static_cast<double>(report.bytes_moved()) / report.median_s();
    fmt::print("  {:<16} {:>10}, memcpy {:>10}, ratio {:.2f}\n",
               columns ? "rows to columns" : "rows to rows", print_rate(rate),
               print_rate(memcpy_rate), rate / memcpy_rate);
  }
}

#ifdef REFIT_HAVE_MPI

/// Seconds of a plain stream: the messages that rank 0 sends, one after the other.
double stream(const std::vector<int64_t>& sizes, std::vector<std::byte>& memory, Backend& backend) {
  backend.barrier();
  const Clock::time_point start = Clock::now();
  int64_t at = 0;
  for (const int64_t size : sizes) {
    std::byte* data = memory.data() + at;
    at += size;
    if (backend.rank() == 0) {
      MPI_Send(data, static_cast<int>(size), MPI_BYTE, 1, 0, MPI_COMM_WORLD);
    } else {
      MPI_Recv(data, static_cast<int>(size), MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
  }
  const double mine = seconds_since(start);
  double slowest = 0;
  MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

void bench_mpi() {
  MpiWorld world(std::vector<int32_t>{}, 60);
  const Plan plan = make_plan(1, 32, false);
  const Program& program = plan.programs[0];
  std::vector<int64_t> sizes;
  int64_t total = 0;
  for (const Message& message : program.messages) {
    sizes.push_back(message_bytes(program, message));
    total += sizes.back();
  }
  Backend& backend = world.open_backend(static_cast<int32_t>(plan.channels.size()));
  const Executor::Buffers buffers = allocate_buffers(plan, backend);
  Executor executor(plan, backend, buffers);
  std::vector<std::byte> memory(static_cast<size_t>(total), std::byte{1});
  std::vector<double> plain, refit;
  for (int round = 0; round < 12; ++round) {  // by turns, so that both see the same machine
    const double stream_s = stream(sizes, memory, backend);
    double mine = executor.run().refit_s, slowest = 0;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (round < 2) continue;  // pages and connections
    plain.push_back(stream_s);
    refit.push_back(slowest);
  }
  if (backend.rank() > 0) return;
  const auto rate = [&](const std::vector<double>& seconds) {
    return static_cast<double>(total) / median(seconds);
  };
  fmt::print("  {:<16} {:>10}, stream {:>10}, ratio {:.2f}\n",
             fmt::format("{} of {}", sizes.size(), print_bytes(static_cast<double>(sizes[0]))),
             print_rate(rate(refit)), print_rate(rate(plain)), rate(refit) / rate(plain));
}

int run_mpirun(const std::string& options) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string root = geteuid() == 0 ? "--allow-run-as-root " : "";
  return std::system(
      fmt::format("mpirun {}--oversubscribe {} -np 2 '{}' --in-mpirun", root, options, self)
          .c_str());
}

#endif

int run(const std::vector<std::string>& words) {
#ifdef REFIT_HAVE_MPI
  if (!words.empty() && words[0] == "--in-mpirun") {
    bench_mpi();
    return 0;
  }
#endif
  static_cast<void>(words);
  bench_host();
#ifdef REFIT_HAVE_MPI
  std::fflush(stdout);
  fmt::print("mpi backend, two processes, 256 MiB, shared memory, then TCP:\n");
  std::fflush(stdout);
  const int failed = run_mpirun("");
  return failed + run_mpirun("-mca btl tcp,self -mca btl_tcp_if_include lo") == 0 ? 0 : 1;
#else
  fmt::print("skipped: no MPI in this build\n");
  return 0;
#endif
}

}  // namespace
}  // namespace refit

int main(int argc, char** argv) {
  try {
    return refit::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "refit_bench_exec: {}\n", error.what());
    return 1;
  }
}
