#include <fmt/core.h>

#include <algorithm>

#include "base/document.h"
#include "base/error.h"
#include "base/units.h"
#include "sim/fabric/fabric.h"
#include "sim/fabric/names.h"

namespace refit {
namespace {

/// -1 for every rank number up to the highest.
std::vector<int32_t> no_gpu_yet(std::span<const int32_t> train, std::span<const int32_t> gen) {
  int32_t last_rank = -1;
  for (const auto side : {train, gen})
    for (const int32_t rank : side) {
      if (rank < 0) fail("placement", fmt::format("rank {}", rank), "0 or more");
      last_rank = std::max(last_rank, rank);
    }
  if (last_rank < 0) fail("placement", "no rank", "at least one");
  return std::vector<int32_t>(static_cast<size_t>(last_rank) + 1, -1);
}

std::vector<int32_t> ascending(std::span<const int32_t> side) {
  std::vector<int32_t> ranks(side.begin(), side.end());
  std::ranges::sort(ranks);
  return ranks;
}

/// GPUs of nodes, domains or single GPUs, in the order in which they are named.
std::vector<int32_t> find_gpus(const Fabric& fabric, const Value& value) {
  std::vector<int32_t> gpus;
  for (const std::string& pattern : expand_names(value.as_text(), value.place())) {
    const size_t before = gpus.size();
    for (const Node& node : fabric.nodes)
      if (matches_name(pattern, node.name))
        gpus.insert(gpus.end(), node.gpus.begin(), node.gpus.end());
    for (size_t d = 0; gpus.size() == before && d < fabric.domains.size(); ++d)
      if (pattern == fabric.domain_names[d])
        gpus.insert(gpus.end(), fabric.domains[d].begin(), fabric.domains[d].end());
    for (size_t g = 0; g < fabric.gpus.size() && pattern.find('.') != std::string::npos; ++g)
      if (matches_name(pattern, fabric.vertices[static_cast<size_t>(fabric.gpus[g].vertex)].name))
        gpus.push_back(static_cast<int32_t>(g));
    if (gpus.size() == before)
      fail(value.place(), quote(pattern),
           fmt::format("a node, NVLink domain or GPU of fabric {}, such as {}, {} or {}",
                       fabric.name, fabric.nodes[0].name, fabric.domain_names[0],
                       fabric.vertices[0].name));
  }
  return gpus;
}

void place_from_file(const Fabric& fabric, std::span<const int32_t> train,
                     std::span<const int32_t> gen, const FabricSource& place,
                     std::vector<int32_t>& gpu) {
  const Value file = parse_document(place.text, place.name, /*json=*/false);
  std::vector<int32_t> rank_on(fabric.gpus.size(), -1);
  const auto put = [&](int32_t rank, int32_t on, const Value& value) {
    int32_t& taken = rank_on[static_cast<size_t>(on)];
    if (taken >= 0)
      fail(value.place(),
           fmt::format(
               "{} for rank {} and rank {}",
               fabric.vertices[static_cast<size_t>(fabric.gpus[static_cast<size_t>(on)].vertex)]
                   .name,
               taken, rank),
           "one rank a GPU");
    taken = rank;
    gpu[static_cast<size_t>(rank)] = on;
  };
  if (const Value* ranks = file.find("ranks"))
    for (const auto& [text, value] : ranks->items()) {
      const auto rank = static_cast<int32_t>(
          parse_int(text, 0, static_cast<int64_t>(gpu.size()) - 1, value->place()));
      const std::vector<int32_t> on = find_gpus(fabric, *value);
      if (on.size() != 1) fail(value->place(), fmt::format("{} GPUs", on.size()), "one");
      put(rank, on[0], *value);
    }
  for (const auto& [key, side] : {std::pair{"train", train}, std::pair{"gen", gen}}) {
    const Value* hosts = file.find(key);
    if (hosts == nullptr) continue;
    const std::vector<int32_t> gpus = find_gpus(fabric, *hosts);
    size_t next = 0;
    for (const int32_t rank : ascending(side)) {
      if (gpu[static_cast<size_t>(rank)] >= 0) continue;
      while (next < gpus.size() && rank_on[static_cast<size_t>(gpus[next])] >= 0) ++next;
      if (next == gpus.size())
        fail(hosts->place(), fmt::format("{} GPUs, all taken", gpus.size()),
             fmt::format("one for {} rank {} too", key, rank));
      put(rank, gpus[next], *hosts);
    }
  }
  file.finish();
  for (const auto side : {train, gen})
    for (const int32_t rank : side)
      if (gpu[static_cast<size_t>(rank)] < 0)
        fail(place.name, fmt::format("no GPU for rank {}", rank),
             "one: under ranks, or with its side under train or gen");
}

}  // namespace

PlacedRanks place_ranks(const Fabric& fabric, std::span<const int32_t> train,
                        std::span<const int32_t> gen, const FabricSource& place) {
  PlacedRanks placed{.gpu = no_gpu_yet(train, gen), .nodes = 0};
  if (!place.text.empty()) {
    place_from_file(fabric, train, gen, place, placed.gpu);
  } else {
    size_t next = 0;
    const auto fill = [&](std::span<const int32_t> side) {
      for (const int32_t rank : ascending(side)) {
        int32_t& gpu = placed.gpu[static_cast<size_t>(rank)];
        if (gpu >= 0) continue;
        if (next == fabric.gpus.size())
          fail("placement",
               fmt::format("{} train and {} gen ranks (gen ranks start on a new node and NVLink "
                           "domain)",
                           train.size(), gen.size()),
               fmt::format("what fits on the {} GPUs of fabric {}", fabric.gpus.size(),
                           fabric.name));
        gpu = static_cast<int32_t>(next++);
      }
    };
    fill(train);
    std::vector<char> node_used(fabric.nodes.size(), 0), domain_used(fabric.domains.size(), 0);
    for (size_t g = 0; g < next; ++g) {
      node_used[static_cast<size_t>(fabric.gpus[g].node)] = 1;
      domain_used[static_cast<size_t>(fabric.gpus[g].domain)] = 1;
    }
    while (next < fabric.gpus.size() &&
           (node_used[static_cast<size_t>(fabric.gpus[next].node)] ||
            domain_used[static_cast<size_t>(fabric.gpus[next].domain)]))
      ++next;
    fill(gen);
  }
  for (const int32_t gpu : placed.gpu)
    if (gpu >= 0)
      placed.nodes = std::max(placed.nodes, fabric.gpus[static_cast<size_t>(gpu)].node + 1);
  return placed;
}

PlacedRanks place_ranks(const NodeShape& shape, std::span<const int32_t> train,
                        std::span<const int32_t> gen) {
  REFIT_CHECK(shape.gpus_per_node > 0 && shape.nodes_per_domain > 0);
  PlacedRanks placed{.gpu = no_gpu_yet(train, gen), .nodes = 0};

  int64_t next = 0;
  const auto place_side = [&](std::span<const int32_t> side) {
    for (const int32_t rank : ascending(side)) {
      int32_t& gpu = placed.gpu[static_cast<size_t>(rank)];
      if (gpu < 0) gpu = static_cast<int32_t>(next++);
    }
  };
  place_side(train);
  const int64_t domain = int64_t{shape.gpus_per_node} * shape.nodes_per_domain;
  const int64_t used = next;
  next = (used + domain - 1) / domain * domain;
  const int64_t start = next;
  place_side(gen);
  const int64_t end = next > start ? next : used;

  const int64_t nodes = (end + shape.gpus_per_node - 1) / shape.gpus_per_node;
  if (shape.fixed_nodes > 0 && nodes > shape.fixed_nodes)
    fail("placement",
         fmt::format("{} train and {} gen ranks, which take {} nodes of {} GPUs (gen ranks start "
                     "on a new NVLink domain of {} nodes)",
                     train.size(), gen.size(), nodes, shape.gpus_per_node, shape.nodes_per_domain),
         fmt::format("at most the {} nodes of the fabric", shape.fixed_nodes));
  placed.nodes = shape.fixed_nodes > 0 ? shape.fixed_nodes : static_cast<int32_t>(nodes);
  return placed;
}

}  // namespace refit
