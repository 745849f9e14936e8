#include <fmt/core.h>

#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/connected_components.hpp>
#include <cmath>
#include <map>
#include <set>

#include "base/units.h"
#include "sim/fabric/report.h"

namespace refit {
namespace {

using Faults = std::vector<std::string>;

bool is_near(double a, double b) { return std::abs(a - b) <= 1e-9 * std::max(a, b); }

void find_one_way(const Fabric& fabric, Faults& faults) {
  std::map<std::pair<int32_t, int32_t>, std::vector<size_t>> between;
  for (size_t id = 0; id < fabric.links.size(); ++id)
    between[{fabric.links[id].from, fabric.links[id].to}].push_back(id);
  for (size_t id = 0; id < fabric.links.size(); ++id) {
    const Link& link = fabric.links[id];
    const std::vector<size_t>& there = between[{link.from, link.to}];
    const std::vector<size_t>& back = between[{link.to, link.from}];
    const auto turn = static_cast<size_t>(std::ranges::find(there, id) - there.begin());
    if (turn >= back.size()) {
      faults.push_back(fmt::format("{}: no link back", link.name));
      continue;
    }
    const Link& other = fabric.links[back[turn]];
    if (back[turn] < id) continue;  // said already
    if (!is_near(link.rate, other.rate))
      faults.push_back(fmt::format("{}: {}, but {} back ({})", link.name, print_rate(link.rate),
                                   print_rate(other.rate), other.name));
    else if (!is_near(link.latency, other.latency))
      faults.push_back(fmt::format("{}: {}, but {} back ({})", link.name, print_time(link.latency),
                                   print_time(other.latency), other.name));
  }
}

void find_orphans(const Fabric& fabric, Faults& faults) {
  std::vector<char> used(fabric.nics.size(), 0);
  for (const Gpu& gpu : fabric.gpus)
    for (const int32_t nic : gpu.nics) used[static_cast<size_t>(nic)] = 1;
  for (size_t n = 0; n < fabric.nics.size(); ++n) {
    const std::string& name = fabric.vertices[static_cast<size_t>(fabric.nics[n].vertex)].name;
    if (fabric.nics[n].out < 0)
      faults.push_back(name + ": not plugged in");
    else if (!used[n])
      faults.push_back(name + ": no GPU uses it");
  }
  if (fabric.nodes.size() < 2 && fabric.nics.empty()) return;
  for (const Gpu& gpu : fabric.gpus) {
    const bool reaches =
        std::ranges::any_of(fabric.nodes[static_cast<size_t>(gpu.node)].gpus, [&](int32_t peer) {
          const Gpu& other = fabric.gpus[static_cast<size_t>(peer)];
          return other.domain == gpu.domain && !other.nics.empty();
        });
    if (!reaches)
      faults.push_back(fabric.vertices[static_cast<size_t>(gpu.vertex)].name +
                       ": no NIC of its own or of a peer");
  }
}

bool is_usual(LinkKind kind, double rate) {
  constexpr double kNicGbps[] = {10, 25, 40, 50, 56, 100, 200, 400, 800, 1600};
  constexpr double kPortGBps[] = {150, 300, 450, 900};
  if (kind == LinkKind::kNic)
    return std::ranges::any_of(kNicGbps,
                               [&](double usual) { return is_near(usual * 0.125e9, rate); });
  return kind == LinkKind::kNvlink &&
         std::ranges::any_of(kPortGBps, [&](double usual) { return is_near(usual * 1e9, rate); });
}

/// The rate that most links of this kind have.
double usual_of(const Fabric& fabric, LinkKind kind) {
  std::map<double, size_t> count;
  for (const Link& link : fabric.links)
    if (link.kind == kind) ++count[link.rate];
  double rate = 0;
  size_t most = 0;
  for (const auto& [value, links] : count)
    if (links > most) {
      most = links;
      rate = value;
    }
  return rate;
}

/// Slips of bits and bytes, one line a kind and rate.
void find_slips(const Fabric& fabric, Faults& faults) {
  const double nic = usual_of(fabric, LinkKind::kNic), port = usual_of(fabric, LinkKind::kNvlink);
  std::map<std::pair<LinkKind, double>, std::pair<std::string, size_t>> slips;  // first, how many
  for (const Link& link : fabric.links) {
    if (link.kind != LinkKind::kNic && link.kind != LinkKind::kNvlink) continue;
    const double most = link.kind == LinkKind::kNic ? nic : port;
    bool slip = is_near(link.rate, 8 * most) || is_near(8 * link.rate, most);
    // All alike: not a usual rate, but one after the slip is undone.
    if (is_near(link.rate, most) && !is_usual(link.kind, most))
      slip = is_usual(link.kind, most / 8) || is_usual(link.kind, 8 * most);
    // NICs far behind their GPUs: 50 GB/s written as 50 Gbps.
    if (link.kind == LinkKind::kNic && port >= 70 * most && is_usual(link.kind, 8 * most))
      slip = true;
    if (!slip) continue;
    auto& [first, count] = slips[{link.kind, link.rate}];
    if (count++ == 0) first = link.name;
  }
  for (const auto& [key, slip] : slips)
    faults.push_back(
        fmt::format("{}: {} ({} Gbps) looks like bits taken for bytes, or bytes for bits{}",
                    slip.first, print_rate(key.second), key.second * 8 / 1e9,
                    slip.second > 1 ? fmt::format(", as in {} more links", slip.second - 1) : ""));
}

void find_duplicates(const Fabric& fabric, Faults& faults) {
  std::set<std::string> names;
  for (const Vertex& vertex : fabric.vertices)
    if (!names.insert(vertex.name).second) faults.push_back(vertex.name + ": a name given twice");
  names.clear();
  for (const Link& link : fabric.links)
    if (!names.insert(link.name).second)
      faults.push_back(link.name + ": a name of links given twice");
}

/// What no path joins, counted over GPUs.
void find_islands(const Fabric& fabric, Faults& faults) {
  boost::adjacency_list<boost::vecS, boost::vecS, boost::undirectedS> graph(fabric.vertices.size());
  const auto join = [&](int32_t a, int32_t b) {
    if (a >= 0 && b >= 0) boost::add_edge(static_cast<size_t>(a), static_cast<size_t>(b), graph);
  };
  for (const Link& link : fabric.links) join(link.from, link.to);
  for (const Gpu& gpu : fabric.gpus)
    for (const int32_t nic : gpu.nics)
      join(gpu.vertex, fabric.nics[static_cast<size_t>(nic)].vertex);
  for (const Switch& leaf : fabric.leaves)
    join(leaf.vertex,
         leaf.parent >= 0 ? fabric.leaves[static_cast<size_t>(leaf.parent)].vertex : fabric.spine);
  if (fabric.vertices.empty()) return;
  std::vector<int> component(fabric.vertices.size());
  boost::connected_components(graph, component.data());
  std::map<int, std::pair<std::string, size_t>> islands;
  for (const Gpu& gpu : fabric.gpus) {
    auto& [first, count] = islands[component[static_cast<size_t>(gpu.vertex)]];
    if (count++ == 0) first = fabric.vertices[static_cast<size_t>(gpu.vertex)].name;
  }
  if (islands.size() < 2) return;
  for (const auto& [id, island] : islands)
    faults.push_back(
        fmt::format("{}: no way from it{} to the other GPUs", island.first,
                    island.second > 1 ? fmt::format(" and {} more", island.second - 1) : ""));
}

}  // namespace

FabricCounts count_parts(const Fabric& fabric) {
  return {.nodes = fabric.nodes.size(),
          .gpus = fabric.gpus.size(),
          .domains = fabric.domains.size(),
          .nics = fabric.nics.size(),
          .rails = static_cast<size_t>(fabric.rails),
          .leaves = static_cast<size_t>(
              std::ranges::count(fabric.vertices, VertexKind::kLeaf, &Vertex::kind)),
          .links = fabric.links.size()};
}

std::vector<std::string> find_faults(const Fabric& fabric) {
  Faults faults;
  find_one_way(fabric, faults);
  find_slips(fabric, faults);
  find_orphans(fabric, faults);
  find_duplicates(fabric, faults);
  find_islands(fabric, faults);
  return faults;
}

}  // namespace refit
