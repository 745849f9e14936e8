// refit demand: who needs what from whom, before any fabric.

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/units.h"
#include "sim/cli/commands.h"
#include "sim/cli/print.h"
#include "sim/search/atoms.h"
#include "sim/search/parts.h"

namespace refit::cli {
namespace {

using Json = nlohmann::ordered_json;

/// What one rank needs of one tensor, and from how many.
struct Need {
  int64_t bytes = 0, copied = 0, boxes = 0;
  size_t fewest_holders = 0, most_holders = 0;
};

std::string print_holders(const Need& need) {
  return need.fewest_holders == need.most_holders
             ? fmt::format("{}", need.most_holders)
             : fmt::format("{}-{}", need.fewest_holders, need.most_holders);
}

/// What one rank may ask of another: all that it has of what is needed, and that which nobody else
/// has.
struct Offer {
  int64_t bytes = 0, only = 0;
};
using Offers = std::map<std::pair<int32_t, int32_t>, Offer>;  // by holder and needer

/// Of one tensor, or of all; to one gen rank, or to all.
Offers find_offers(const Problem& problem, int32_t tensor, int32_t rank) {
  Offers offers;
  const auto add = [&](int32_t holder_set, int32_t needer_set, int64_t bytes) {
    const auto& holders = problem.demand.rank_sets[static_cast<size_t>(holder_set)];
    for (const int32_t needer : problem.demand.rank_sets[static_cast<size_t>(needer_set)]) {
      if (rank >= 0 && needer != rank) continue;
      if (std::binary_search(holders.begin(), holders.end(), needer)) continue;  // a local copy
      for (const int32_t holder : holders) {
        Offer& offer = offers[{holder, needer}];
        offer.bytes += bytes;
        if (holders.size() == 1) offer.only += bytes;
      }
    }
  };
  if (tensor < 0) {
    for (const DemandClass& each : problem.demand.classes) {
      add(each.holders, each.needers, each.bytes);
    }
    return offers;
  }
  const int32_t overlay = problem.demand.tensor_overlay[static_cast<size_t>(tensor)];
  for (const Atom& atom : problem.demand.overlays[static_cast<size_t>(overlay)].atoms) {
    add(atom.holders, atom.needers, box_bytes(problem, tensor, atom.box));
  }
  return offers;
}

Json json_rows(const Offers& offers) {
  Json rows = Json::array();
  for (const auto& [pair, offer] : offers) {
    rows.push_back({{"from", pair.first},
                    {"to", pair.second},
                    {"bytes", offer.bytes},
                    {"only_bytes", offer.only}});
  }
  return rows;
}

void print_offers(const Offers& offers) {
  std::vector<std::vector<std::string>> table;
  for (const auto& [pair, offer] : offers) {
    table.push_back({fmt::format("rank {}", pair.first), fmt::format("rank {}", pair.second),
                     print_bytes(static_cast<double>(offer.bytes)),
                     print_bytes(static_cast<double>(offer.only))});
  }
  print_table({"from", "to", "has of its needs", "nobody else has"}, table);
}

int32_t find_tensor(const Model& model, const std::string& name) {
  for (size_t t = 0; t < model.tensors.size(); ++t) {
    if (model.tensors[t].name == name) return static_cast<int32_t>(t);
  }
  fail("--tensor", quote(name),
       fmt::format("a tensor of {}, such as {}", model.name, model.tensors.front().name));
}

}  // namespace

int run_demand(const Common& common, const DemandOptions& options) {
  Problem problem;
  std::vector<std::string> notes;
  load_demand(options.inputs, problem, &notes);
  log_notes(common.quiet, notes);
  const int32_t only_tensor =
      options.tensor.empty() ? -1 : find_tensor(problem.model, options.tensor);
  if (options.rank >= 0 &&
      !std::binary_search(problem.gen.ranks.begin(), problem.gen.ranks.end(), options.rank)) {
    fail("--rank", fmt::format("{}", options.rank), "a gen rank");
  }

  // Bytes that each holder could be asked for are not decided yet: a row is (tensor, needer).
  std::map<std::pair<int32_t, int32_t>, Need> needs;
  const auto add = [&](int32_t tensor, int32_t rank, int64_t bytes, size_t holders, bool own) {
    if (options.rank >= 0 && rank != options.rank) return;
    const bool by_rank = only_tensor >= 0, by_tensor = options.rank >= 0;
    Need& need = needs[{by_rank || !by_tensor ? rank : -1, by_tensor ? tensor : -1}];
    (own ? need.copied : need.bytes) += bytes;
    need.fewest_holders = need.boxes == 0 ? holders : std::min(need.fewest_holders, holders);
    need.most_holders = std::max(need.most_holders, holders);
    ++need.boxes;
  };
  for_each_atom(
      problem, [&](int32_t tensor, const Atom& atom, const auto& remote, const auto& local) {
        if (only_tensor >= 0 && tensor != only_tensor) return;
        const int64_t bytes = box_bytes(problem, tensor, atom.box);
        const size_t holders = problem.demand.rank_sets[static_cast<size_t>(atom.holders)].size();
        for (const int32_t rank : remote) add(tensor, rank, bytes, holders, false);
        for (const int32_t rank : local) add(tensor, rank, bytes, holders, true);
      });

  const Offers offers = options.pairs ? find_offers(problem, only_tensor, options.rank) : Offers{};
  if (common.json) {
    Json rows = json_rows(offers);
    for (const auto& [key, need] : needs) {
      if (options.pairs) break;
      Json row;
      if (key.first >= 0) row["rank"] = key.first;
      if (key.second >= 0)
        row["tensor"] = problem.model.tensors[static_cast<size_t>(key.second)].name;
      row["bytes"] = need.bytes;
      row["copied_bytes"] = need.copied;
      row["boxes"] = need.boxes;
      rows.push_back(row);
    }
    fmt::print("{}\n", Json{{"model_bytes", problem.weight_bytes},
                            {"demand_bytes", problem.demand.bytes},
                            {"copy_bytes", problem.demand.copy_bytes},
                            {"classes", problem.demand.classes.size()},
                            {"rows", rows}}
                           .dump(2));
    return 0;
  }
  print_text(fmt::format(
      "{}: {} in {} tensors; {} train ranks hold it, {} gen ranks need {} from others and {} from "
      "themselves\n\n",
      problem.model.name, print_bytes(static_cast<double>(problem.weight_bytes)),
      problem.model.tensors.size(), problem.train.ranks.size(), problem.gen.ranks.size(),
      print_bytes(static_cast<double>(problem.demand.bytes)),
      print_bytes(static_cast<double>(problem.demand.copy_bytes))));
  if (options.pairs) {
    print_offers(offers);
    return 0;
  }
  std::vector<std::vector<std::string>> table;
  for (const auto& [key, need] : needs) {
    const std::string what = key.second >= 0
                                 ? problem.model.tensors[static_cast<size_t>(key.second)].name
                                 : fmt::format("rank {}", key.first);
    table.push_back({what, print_bytes(static_cast<double>(need.bytes)),
                     print_bytes(static_cast<double>(need.copied)), fmt::format("{}", need.boxes),
                     print_holders(need)});
  }
  print_table({options.rank >= 0 && only_tensor < 0 ? "tensor" : "gen rank", "from others",
               "own copy", "boxes", "holders of each"},
              table);
  return 0;
}

}  // namespace refit::cli
