// Fabrics of 4,096 GPUs: time to load one from its file, and time of a route query, side by side with
// Boost's breadth-first search on the same graph. Processor time, so that other programs do not count.

#include <fmt/core.h>

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/breadth_first_search.hpp>
#include <ctime>
#include <random>

#include "base/error.h"
#include "sim/fabric/fabric_file.h"

namespace refit {
namespace {

using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS>;

double seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

/// The fabric with what has no link because it never binds.
Graph make_graph(const Fabric& fabric) {
  Graph graph(fabric.vertices.size());
  const auto join = [&](int32_t a, int32_t b) {
    boost::add_edge(static_cast<size_t>(a), static_cast<size_t>(b), graph);
  };
  for (const Link& link : fabric.links) join(link.from, link.to);
  for (const Gpu& gpu : fabric.gpus)
    for (const int32_t nic : gpu.nics) {
      join(gpu.vertex, fabric.nics[static_cast<size_t>(nic)].vertex);
      join(fabric.nics[static_cast<size_t>(nic)].vertex, gpu.vertex);
    }
  for (const Switch& leaf : fabric.leaves) {
    const int32_t parent =
        leaf.parent >= 0 ? fabric.leaves[static_cast<size_t>(leaf.parent)].vertex : fabric.spine;
    if (leaf.up >= 0 || parent < 0) continue;
    join(leaf.vertex, parent);
    join(parent, leaf.vertex);
  }
  return graph;
}

/// Ends the search at its goal.
struct Goal : boost::default_bfs_visitor {
  size_t goal;
  explicit Goal(size_t vertex) : goal(vertex) {}
  void discover_vertex(size_t vertex, const Graph&) const {
    if (vertex == goal) throw vertex;
  }
};

void measure(const std::string& title, const std::string& text, int32_t nodes) {
  constexpr int kLoads = 5, kQueries = 400'000, kSearches = 300;
  double start = seconds();
  Fabric fabric;
  for (int i = 0; i < kLoads; ++i) fabric = make_fabric({text, title}, nodes);
  const double load_s = (seconds() - start) / kLoads;

  std::mt19937 random(1);
  const auto draw = [&] { return static_cast<int32_t>(random() % fabric.gpus.size()); };
  size_t links = 0;
  start = seconds();
  for (int i = 0; i < kQueries; ++i) links += route(fabric, draw(), draw()).size();
  const double query_s = (seconds() - start) / kQueries;

  const Graph graph = make_graph(fabric);
  start = seconds();
  for (int i = 0; i < kSearches; ++i) {
    const auto from = static_cast<size_t>(fabric.gpus[static_cast<size_t>(draw())].vertex);
    const auto to = static_cast<size_t>(fabric.gpus[static_cast<size_t>(draw())].vertex);
    try {
      boost::breadth_first_search(graph, from, boost::visitor(Goal(to)));
    } catch (const size_t&) {
    }
  }
  const double search_s = (seconds() - start) / kSearches;
  fmt::print("{}: {} GPUs, {} links\n", title, fabric.gpus.size(), fabric.links.size());
  fmt::print("  load   {:8.1f} ms\n", load_s * 1e3);
  fmt::print("  route  {:8.3f} us, {:.1f} links on average\n", query_s * 1e6,
             static_cast<double>(links) / kQueries);
  fmt::print("  Boost  {:8.1f} us a breadth-first search\n", search_s * 1e6);
  fmt::print("  ratio  {:.0f}x\n", search_s / query_s);
}

/// 512 hosts listed one by one, as an import writes them, on 64 leaves of 8 pods under a core.
std::string listed_fabric() {
  FabricFile file = parse_fabric_file(load_fabric_source("dgx-h100"));
  file.network = NetworkKind::kSwitches;
  file.switches.push_back({.name = "core"});
  const Port up = {3.2e12, 1e-6};
  for (int32_t pod = 0; pod < 8; ++pod)
    file.switches.push_back({.name = fmt::format("pod{}", pod), .parent = 0, .up = up});
  for (int32_t leaf = 0; leaf < 64; ++leaf)
    file.switches.push_back(
        {.name = fmt::format("leaf{}", leaf), .parent = 1 + leaf / 8, .up = up});
  for (int32_t n = 0; n < 512; ++n) {
    HostEntry host;
    host.name = fmt::format("gpu-{:03}-rack{}", n, n % 7);
    for (int32_t rail = 0; rail < 8; ++rail) host.leaves.push_back(9 + n / 64 * 8 + rail);
    file.hosts.push_back(std::move(host));
  }
  return print_fabric_file(file);
}

int run() {
  measure("dgx-h100", load_fabric_source("dgx-h100").text, 512);
  measure("gb200-nvl72", load_fabric_source("gb200-nvl72").text, 1024);
  measure("dgx-h100-2to1", load_fabric_source("dgx-h100-2to1").text, 512);
  measure("512 listed hosts, three tiers", listed_fabric(), 512);
  return 0;
}

}  // namespace
}  // namespace refit

int main(int argc, char** argv) {
  if (argc > 2 || (argc == 2 && std::string(argv[1]) != "--full")) {
    fmt::print(stderr, "usage: {} [--full]\n", argv[0]);
    return 2;
  }
  try {
    return refit::run();
  } catch (const refit::Error& error) {
    fmt::print(stderr, "bench: {}\n", error.what());
    return 1;
  }
}
