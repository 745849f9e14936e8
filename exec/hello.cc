#include "exec/hello.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/console.h"
#include "exec/placement.h"

namespace refit {

namespace {

using Json = nlohmann::json;

}  // namespace

std::string print_hello(const LoadedPlan& loaded, const ReplayOptions& options,
                        const std::optional<Error>& refused) {
  const Whereabouts where = find_whereabouts();
  return Json{{"version", REFIT_VERSION},
              {"digest", loaded.saved.digest},
              {"options", fmt::format("--iterations {}{}", options.iterations,
                                      options.verify ? " --verify" : "")},
              {"error", refused ? refused->what() : ""},
              {"input", !refused || refused->kind() == ErrorKind::kInput},
              {"host", where.host},
              {"domain", where.nvlink_domain}}
      .dump();
}

Agreement compare_hellos(const std::vector<std::string>& hellos, const Plan& plan) {
  std::vector<Json> read;
  std::vector<Whereabouts> where;
  std::set<std::string> hosts;
  for (size_t r = 0; r < hellos.size(); ++r) {
    const Json& hello = read.emplace_back(Json::parse(hellos[r]));
    if (hello.at("error") != "") {
      throw Error(fmt::format("rank {}: {}", r, hello.at("error").get<std::string>()),
                  hello.at("input") ? ErrorKind::kInput : ErrorKind::kWork);
    }
    for (const char* what : {"version", "digest", "options"}) {
      if (hello.at(what) == read[0].at(what)) continue;
      fail(fmt::format("{} of rank {}", what, r), hello.at(what).get<std::string>(),
           fmt::format("{} as on rank 0", read[0].at(what).get<std::string>()));
    }
    where.push_back({hello.at("host"), hello.at("domain")});
    hosts.insert(where.back().host);
  }
  if (hellos.size() != plan.ranks.size()) {
    fail("processes", std::to_string(hellos.size()),
         fmt::format("{}: one for each rank of the plan", plan.ranks.size()));
  }
  return {static_cast<int32_t>(hosts.size()), check_placement(plan, where)};
}

void report_rehearsal() {
  log_line("refit-exec: all ranks on one host: a rehearsal, times say nothing about the fabric");
}

}  // namespace refit
