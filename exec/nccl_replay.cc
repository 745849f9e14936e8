#include "exec/nccl_replay.h"

#include <fmt/format.h>

#include <vector>

#include "base/error.h"
#include "exec/hello.h"

namespace refit {

namespace {

LoadedPlan load_part(const std::string& path, int32_t rank, int32_t world) {
  LoadedPlan part = rank == 0 ? load_plan(path) : load_plan_for_rank(path, rank);
  if (std::ssize(part.plan.ranks) != world) {
    fail("processes", std::to_string(world),
         fmt::format("{}: one for each rank of the plan", part.plan.ranks.size()));
  }
  if (rank == 0) refuse_faulty(part.plan, path);
  return part;
}

}  // namespace

void with_published_failure(Bootstrap& bootstrap, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    bootstrap.publish_failure(error.what());
    throw;
  } catch (const std::exception& error) {
    const std::string text = fmt::format("rank {}: {}", bootstrap.rank(), error.what());
    bootstrap.publish_failure(text);
    throw Error(text, ErrorKind::kWork);
  }
}

std::optional<NcclOutcome> replay_on_nccl(const std::string& path, GpuApi& gpu,
                                          Bootstrap& bootstrap, const ReplayOptions& options,
                                          const NcclOptions& nccl) {
  const int32_t rank = bootstrap.rank();
  NcclOutcome outcome;
  std::optional<Error> refused;
  try {
    outcome.loaded = load_part(path, rank, bootstrap.world());
  } catch (const Error& error) {
    refused.emplace(error.what());
  }
  const Agreement agreement = compare_hellos(
      bootstrap.all_gather(print_hello(outcome.loaded, options, refused)), outcome.loaded.plan);
  if (agreement.rehearsal && rank == 0) report_rehearsal();
  outcome.hosts = agreement.hosts;
  std::vector<std::string> texts;
  with_published_failure(bootstrap, [&] {
    NcclBackend backend(gpu, outcome.loaded.plan, rank, &bootstrap, nullptr, nccl);
    const RankReport mine = replay_rank(outcome.loaded.plan, backend, options);
    outcome.setup = backend.setup();
    texts = bootstrap.all_gather(write_rank_report(mine));  // all have verified what they have
  });
  if (rank > 0) return {};
  outcome.report = summarize(read_rank_reports(texts));
  outcome.device = gpu.describe();
  return outcome;
}

}  // namespace refit
