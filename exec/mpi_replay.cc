#include "exec/mpi_replay.h"

#include <fmt/format.h>

#include <cstdlib>

#include "base/console.h"
#include "base/error.h"
#include "exec/hello.h"
#include "exec/mpi_backend.h"

namespace refit {

namespace {

constexpr double kGrace_s = 0.5;  // until a process that hangs in MPI after a failure is ended

/// Rank 0 reads and checks all of the plan, the others what concerns them.
LoadedPlan load_part(const std::string& path, int32_t rank, int32_t world) {
  if (rank > 0) return load_plan_for_rank(path, rank);
  LoadedPlan whole = load_plan(path);
  if (std::ssize(whole.plan.ranks) == world) refuse_faulty(whole.plan, path);
  return whole;
}

std::optional<Outcome> replay(MpiWorld& world, const std::string& path,
                              const ReplayOptions& options) {
  Control& control = world.control();
  Outcome outcome;
  std::optional<Error> refused;
  try {
    outcome.loaded = load_part(path, world.rank(), world.world());
  } catch (const Error& error) {
    refused = error;
  }
  const auto hellos = control.gather(print_hello(outcome.loaded, options, refused));
  if (world.rank() == 0) {
    const Agreement agreement = compare_hellos(hellos, outcome.loaded.plan);
    if (agreement.rehearsal) report_rehearsal();
    outcome.hosts = agreement.hosts;
  }
  control.barrier();

  const Plan& plan = outcome.loaded.plan;
  const MemoryUse use = memory_use(plan, world.rank());
  check_memory(use.buffers + use.staging, fmt::format("rank {}", world.rank()));
  Backend& backend = world.open_backend(static_cast<int32_t>(plan.channels.size()));
  const RankReport mine = replay_rank(plan, backend, options);
  const auto texts = control.gather(write_rank_report(mine));
  control.barrier();  // all have verified what they have: only now is it a success
  if (world.rank() > 0) return {};
  outcome.report = summarize(read_rank_reports(texts));
  return outcome;
}

}  // namespace

std::optional<Outcome> replay_on_mpi(const std::string& path,
                                     const std::vector<int32_t>& process_of,
                                     const ReplayOptions& options) {
  MpiWorld world(process_of, options.timeout_s);
  world.control().on_hang(kGrace_s, [](const Error& error) {
    log_line(std::string("refit-exec: ") + error.what());
    std::_Exit(error.kind() == ErrorKind::kInput ? 2 : 1);
  });
  try {
    return replay(world, path, options);
  } catch (const Error& error) {
    world.control().abort(error.what(), error.kind());
    throw;
  } catch (const std::exception& error) {
    const std::string text = fmt::format("rank {}: {}", world.rank(), error.what());
    world.control().abort(text);
    throw Error(text, ErrorKind::kWork);
  }
}

}  // namespace refit
