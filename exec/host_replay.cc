#include "exec/host_replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "base/error.h"
#include "base/units.h"
#include "exec/executor.h"
#include "exec/host_backend.h"
#include "exec/machine.h"
#include "exec/verify.h"

namespace refit {

namespace {

void check_memory(const ReplayReport& report) {
  const int64_t needed = report.buffer_bytes + report.staging_bytes;
  const int64_t available = available_memory();
  if (needed > available) {
    fail("memory",
         fmt::format("{} needed for buffers and staging of all ranks",
                     print_bytes(static_cast<double>(needed))),
         fmt::format("at most the {} available", print_bytes(static_cast<double>(available))));
  }
}

}  // namespace

double median(std::vector<double> values) {
  REFIT_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double ReplayReport::median_s() const { return median(seconds); }

ReplayReport replay_on_host(const Plan& plan, const ReplayOptions& options) {
  REFIT_CHECK(options.iterations > 0);
  const int32_t world = static_cast<int32_t>(plan.programs.size());
  const size_t iterations = static_cast<size_t>(options.iterations);
  ReplayReport report;
  for (int32_t rank = 0; rank < world; ++rank) {
    const MemoryUse use = memory_use(plan, rank);
    report.buffer_bytes += use.buffers;
    report.staging_bytes += use.staging;
  }
  check_memory(report);

  report.ranks.resize(plan.programs.size());
  std::vector<std::vector<double>> seconds(plan.programs.size(), std::vector<double>(iterations));
  std::vector<int64_t> verified(plan.programs.size());
  HostWorld host(world, options.timeout_s);
  host.run([&](Backend& backend) {
    const int32_t rank = backend.rank();
    const size_t index = static_cast<size_t>(rank);
    const Executor::Buffers buffers = allocate_buffers(plan, backend);
    Executor executor(plan, backend, buffers);
    RankReport& mine = report.ranks[index];
    mine.rank = rank;
    mine.staging_bytes = executor.staging_bytes();
    for (int32_t iteration = 0; iteration < options.iterations; ++iteration) {
      if (iteration == 0 || options.verify) {
        fill_train(plan, rank, buffers, iteration);
        poison_gen(plan, rank, buffers, iteration);
      }
      const ReplayTimes times = executor.run();
      seconds[index][static_cast<size_t>(iteration)] = times.refit_s;
      mine.bytes_received = times.bytes_received;
      mine.bytes_copied = times.bytes_copied;
      if (options.verify) verified[index] = verify_gen(plan, rank, buffers, iteration);
      if (rank == 0 && options.progress) options.progress(iteration);
    }
    mine.seconds = median(seconds[index]);
  });

  for (size_t iteration = 0; iteration < iterations; ++iteration) {
    double slowest = 0;
    for (const std::vector<double>& of_rank : seconds)
      slowest = std::max(slowest, of_rank[iteration]);
    report.seconds.push_back(slowest);
  }
  for (size_t rank = 0; rank < report.ranks.size(); ++rank) {
    report.bytes_wire += report.ranks[rank].bytes_received;
    report.bytes_copied += report.ranks[rank].bytes_copied;
    report.verified_bytes += verified[rank];
    report.verified_ranks += verified[rank] > 0 ? 1 : 0;
  }
  return report;
}

}  // namespace refit
