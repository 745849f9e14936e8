#include "exec/mpi_replay.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/console.h"
#include "base/error.h"
#include "base/file.h"
#include "base/units.h"
#include "exec/mpi_backend.h"
#include "exec/placement.h"
#include "exec/report.h"

namespace refit {

namespace {

using Json = nlohmann::json;

constexpr double kGrace =
    0.5;  // seconds until a process that hangs in MPI after a failure is ended

Whereabouts whereabouts() {
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
std::string hello_text(const LoadedPlan& loaded, const std::string& error, ErrorKind kind,
                       const ReplayOptions& options) {
  const Whereabouts where = whereabouts();
  return Json{{"version", REFIT_VERSION},
              {"digest", loaded.saved.digest},
              {"options", fmt::format("--iterations {}{}", options.iterations,
                                      options.verify ? " --verify" : "")},
              {"error", error},
              {"input", kind == ErrorKind::kInput},
              {"host", where.host},
              {"domain", where.nvlink_domain}}
      .dump();
}

/// On rank 0: throws unless all agree. Returns the number of hosts.
int32_t compare(const std::vector<std::string>& texts, const Plan& plan) {
  std::vector<Json> hellos;
  std::vector<Whereabouts> where;
  std::set<std::string> hosts;
  for (size_t r = 0; r < texts.size(); ++r) {
    const Json& hello = hellos.emplace_back(Json::parse(texts[r]));
    if (hello.at("error") != "") {
      throw Error(fmt::format("rank {}: {}", r, hello.at("error").get<std::string>()),
                  hello.at("input") ? ErrorKind::kInput : ErrorKind::kWork);
    }
    for (const char* what : {"version", "digest", "options"}) {
      if (hello.at(what) == hellos[0].at(what)) continue;
      fail(fmt::format("{} of rank {}", what, r), hello.at(what).get<std::string>(),
           fmt::format("{} as on rank 0", hellos[0].at(what).get<std::string>()));
    }
    where.push_back({hello.at("host"), hello.at("domain")});
    hosts.insert(where.back().host);
  }
  if (texts.size() != plan.ranks.size()) {
    fail("processes", std::to_string(texts.size()),
         fmt::format("{}: one for each rank of the plan", plan.ranks.size()));
  }
  if (check_placement(plan, where)) {
    log_line("refit-exec: all ranks on one host: a rehearsal, times say nothing about the fabric");
  }
  return static_cast<int32_t>(hosts.size());
}

/// Rank 0 reads and checks all of the plan, the others what concerns them.
LoadedPlan load_part(const std::string& path, int32_t rank, int32_t world) {
  if (rank > 0) {
    LoadedPlan part = load_plan_for_rank(path, rank);
    return part;
  }
  LoadedPlan whole = load_plan(path);
  if (std::ssize(whole.plan.ranks) == world) refuse_faulty(whole.plan, path);
  return whole;
}

std::optional<MpiOutcome> replay(MpiWorld& world, const std::string& path,
                                 const ReplayOptions& options) {
  Control& control = world.control();
  MpiOutcome outcome;
  std::string error;
  ErrorKind kind = ErrorKind::kInput;
  try {
    outcome.loaded = load_part(path, world.rank(), world.world());
  } catch (const Error& failure) {
    error = failure.what();
    kind = failure.kind();
  }
  const auto hellos = control.gather(hello_text(outcome.loaded, error, kind, options));
  if (world.rank() == 0) outcome.hosts = compare(hellos, outcome.loaded.plan);
  control.barrier();

  const Plan& plan = outcome.loaded.plan;
  const MemoryUse use = memory_use(plan, world.rank());
  check_memory(use.buffers + use.staging, fmt::format("rank {}", world.rank()));
  Backend& backend = world.open_backend(static_cast<int32_t>(plan.channels.size()));
  const RankReport mine = replay_rank(plan, backend, options);
  const auto texts = control.gather(write_rank_report(mine));
  control.barrier();  // all have verified what they have: only now is it a success
  if (world.rank() > 0) return {};
  std::vector<RankReport> ranks;
  for (const std::string& text : texts) ranks.push_back(read_rank_report(text));
  outcome.report = summarize(std::move(ranks));
  return outcome;
}

}  // namespace

std::vector<int32_t> load_rank_map(const std::string& path) {
  std::istringstream lines(read_file(path));
  std::vector<int32_t> map;
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream words(line.substr(0, line.find('#')));
    for (std::string word; words >> word;) {
      map.push_back(
          static_cast<int32_t>(parse_int(word, 0, 1 << 24, fmt::format("{}:{}", path, number))));
    }
  }
  if (map.empty()) fail(path, "no numbers", "the process of rank 0, of rank 1, ...");
  return map;
}

std::optional<MpiOutcome> replay_on_mpi(const std::string& path,
                                        const std::vector<int32_t>& process_of,
                                        const ReplayOptions& options) {
  MpiWorld world(process_of, options.timeout_s);
  world.control().on_hang(kGrace, [](const Error& error) {
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
