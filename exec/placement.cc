#include "exec/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/units.h"
#include "exec/machine.h"

namespace refit {

namespace {

using Name = std::function<const std::string&(size_t)>;

void compare(const std::string& what, size_t ranks, const Name& planned, const Name& found) {
  std::map<std::string, size_t> of_planned, of_found;  // first rank of each class
  for (size_t r = 0; r < ranks; ++r) {
    if (planned(r).empty()) continue;
    const size_t mate = of_planned.emplace(planned(r), r).first->second;
    if (found(mate) != found(r)) {
      fail(fmt::format("{} of ranks {} and {}", what, mate, r),
           fmt::format("{} and {}", quote(found(mate)), quote(found(r))),
           fmt::format("one: the plan has both on {}", quote(planned(r))));
    }
    const size_t other = of_found.emplace(found(r), r).first->second;
    if (planned(other) != planned(r)) {
      fail(fmt::format("{} of ranks {} and {}", what, other, r),
           fmt::format("{} for both", quote(found(r))),
           fmt::format("two: the plan has them on {} and {}", quote(planned(other)),
                       quote(planned(r))));
    }
  }
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

std::vector<int32_t> invert_rank_map(const std::vector<int32_t>& process_of, int32_t processes) {
  std::vector<int32_t> rank_of(static_cast<size_t>(processes), -1);
  for (size_t r = 0; r < process_of.size(); ++r) {
    const int32_t at = process_of[r];
    if (at < 0 || at >= processes || rank_of[static_cast<size_t>(at)] >= 0 ||
        std::ssize(process_of) != processes) {
      fail(fmt::format("--rank-map: rank {}", r), fmt::format("process {}", at),
           fmt::format("each of the processes 0..{} once", processes - 1));
    }
    rank_of[static_cast<size_t>(at)] = static_cast<int32_t>(r);
  }
  return rank_of;
}

Whereabouts find_whereabouts() {
  const char* node = std::getenv("REFIT_NODE");
  const char* domain = std::getenv("REFIT_NVLINK_DOMAIN");
  Whereabouts where;
  where.host = node == nullptr ? host_name() : node;
  where.nvlink_domain = domain == nullptr ? where.host : domain;
  return where;
}

bool check_placement(const Plan& plan, const std::vector<Whereabouts>& found) {
  REFIT_CHECK(found.size() == plan.ranks.size());
  const bool one_host = std::all_of(found.begin(), found.end(), [&](const Whereabouts& where) {
    return where.host == found[0].host;
  });
  const bool one_node =
      std::all_of(plan.ranks.begin(), plan.ranks.end(),
                  [&](const PlanRank& rank) { return rank.node == plan.ranks[0].node; });
  if (one_host && !one_node) return true;
  const auto of_plan = [&](std::string PlanRank::*name) {
    return [&plan, name](size_t r) -> const std::string& { return plan.ranks[r].*name; };
  };
  const auto of_found = [&](std::string Whereabouts::*name) {
    return [&found, name](size_t r) -> const std::string& { return found[r].*name; };
  };
  compare("node", found.size(), of_plan(&PlanRank::node), of_found(&Whereabouts::host));
  compare("NVLink domain", found.size(), of_plan(&PlanRank::nvlink_domain),
          of_found(&Whereabouts::nvlink_domain));
  return false;
}

}  // namespace refit
