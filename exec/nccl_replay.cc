#include "exec/nccl_replay.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/console.h"
#include "base/error.h"
#include "exec/placement.h"
#include "exec/report.h"

namespace refit {

namespace {

using Json = nlohmann::json;

Whereabouts find_whereabouts() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const char* node = std::getenv("REFIT_NODE");
  const char* domain = std::getenv("REFIT_NVLINK_DOMAIN");
  Whereabouts where;
  where.host = node == nullptr ? host.data() : node;
  where.nvlink_domain = domain == nullptr ? where.host : domain;
  return where;
}

/// What a rank says of itself before the first byte.
std::string hello_text(const LoadedPlan& loaded, const std::string& error,
                       const ReplayOptions& options) {
  const Whereabouts where = find_whereabouts();
  return Json{{"version", REFIT_VERSION},
              {"digest", loaded.saved.digest},
              {"options", fmt::format("--iterations {}{}", options.iterations,
                                      options.verify ? " --verify" : "")},
              {"error", error},
              {"host", where.host},
              {"domain", where.nvlink_domain}}
      .dump();
}

/// Throws unless all agree; every rank comes to the same end. Returns the number of hosts.
int32_t compare_hellos(const std::vector<std::string>& texts, const Plan& plan, int32_t rank) {
  std::vector<Json> hellos;
  std::vector<Whereabouts> where;
  std::set<std::string> hosts;
  for (size_t r = 0; r < texts.size(); ++r) {
    const Json& hello = hellos.emplace_back(Json::parse(texts[r]));
    if (hello.at("error") != "") {
      throw Error(fmt::format("rank {}: {}", r, hello.at("error").get<std::string>()));
    }
    for (const char* what : {"version", "digest", "options"}) {
      if (hello.at(what) == hellos[0].at(what)) continue;
      fail(fmt::format("{} of rank {}", what, r), hello.at(what).get<std::string>(),
           fmt::format("{} as on rank 0", hellos[0].at(what).get<std::string>()));
    }
    where.push_back({hello.at("host"), hello.at("domain")});
    hosts.insert(where.back().host);
  }
  if (check_placement(plan, where) && rank == 0) {
    log_line("refit-exec: all ranks on one host: a rehearsal, times say nothing about the fabric");
  }
  return static_cast<int32_t>(hosts.size());
}

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
  std::string error;
  try {
    outcome.loaded = load_part(path, rank, bootstrap.world());
  } catch (const Error& failure) {
    error = failure.what();
  }
  outcome.hosts = compare_hellos(bootstrap.all_gather(hello_text(outcome.loaded, error, options)),
                                 outcome.loaded.plan, rank);
  std::vector<std::string> texts;
  with_published_failure(bootstrap, [&] {
    NcclBackend backend(gpu, outcome.loaded.plan, rank, &bootstrap, nullptr, nccl);
    const RankReport mine = replay_rank(outcome.loaded.plan, backend, options);
    outcome.setup = backend.setup();
    texts = bootstrap.all_gather(write_rank_report(mine));  // all have verified what they have
  });
  if (rank > 0) return {};
  std::vector<RankReport> ranks;
  for (const std::string& text : texts) ranks.push_back(read_rank_report(text));
  outcome.report = summarize(std::move(ranks));
  outcome.device = gpu.describe();
  return outcome;
}

}  // namespace refit
