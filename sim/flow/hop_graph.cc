#include "sim/flow/hop_graph.h"

#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/connected_components.hpp>
#include <map>

#include "base/error.h"

namespace refit {
namespace {

size_t at(int32_t index) { return static_cast<size_t>(index); }

/// Which group of those that the pairs join each of `count` things is in.
std::vector<int32_t> join_pairs(size_t count,
                                const std::vector<std::pair<int32_t, int32_t>>& pairs) {
  const boost::adjacency_list<boost::vecS, boost::vecS, boost::undirectedS> graph(
      pairs.begin(), pairs.end(), count);
  std::vector<int32_t> group(count);
  boost::connected_components(graph, group.data());
  return group;
}

/// Switches in trees, one numbering for switches and what joins their roots.
struct Forest {
  std::vector<int32_t> parent, up, down;  // -1: a root; -1: never binds
  std::map<int32_t, int32_t> sites;       // by group
  std::map<int32_t, int32_t> planes;      // by root

  void add(int32_t above, int32_t up_link, int32_t down_link) {
    parent.push_back(above);
    up.push_back(up_link);
    down.push_back(down_link);
  }
  int32_t depth(int32_t item) const {
    int32_t steps = 0;
    for (; parent[at(item)] >= 0; item = parent[at(item)]) ++steps;
    return steps;
  }
  int32_t root(int32_t item) const {
    while (parent[at(item)] >= 0) item = parent[at(item)];
    return item;
  }
  /// The highest switch up to which nothing binds.
  int32_t group(int32_t item) const {
    while (parent[at(item)] >= 0 && up[at(item)] < 0 && down[at(item)] < 0) item = parent[at(item)];
    return item;
  }
  /// Links that may bind, from one switch to another of the same tree.
  std::vector<int32_t> path(int32_t from, int32_t to) const {
    std::vector<int32_t> links, back;
    int32_t from_depth = depth(from), to_depth = depth(to);
    while (from != to) {
      if (from_depth >= to_depth) {
        if (up[at(from)] >= 0) links.push_back(up[at(from)]);
        from = parent[at(from)];
        --from_depth;
      } else {
        if (down[at(to)] >= 0) back.push_back(down[at(to)]);
        to = parent[at(to)];
        --to_depth;
      }
    }
    links.insert(links.end(), back.rbegin(), back.rend());
    return links;
  }
};

class HopGraphBuilder {
 public:
  HopGraphBuilder(const Fabric& fabric, std::span<const double> rates) : fabric_(fabric) {
    graph_.rates.assign(rates.begin(), rates.end());
  }

  HopGraph make() {
    make_forests();
    std::vector<int32_t> nvswitch(fabric_.domains.size(), -1);
    std::vector<std::vector<GpuPort>> bridge_ends(fabric_.gpus.size());
    for (size_t g = 0; g < fabric_.gpus.size(); ++g)
      for (const int32_t link : fabric_.gpus[g].bridges) {
        const int32_t site = add_site(add_plane(), SiteKind::kBridge);
        const int32_t peer = fabric_.vertices[at(fabric_.links[at(link)].to)].index;
        const bool up = graph_.rates[at(link)] > 0;
        bridge_ends[g].push_back({static_cast<int32_t>(g), site, {link}, {}, up, false});
        bridge_ends[at(peer)].push_back({peer, site, {}, {}, false, up});
      }
    for (size_t g = 0; g < fabric_.gpus.size(); ++g) {
      const Gpu& gpu = fabric_.gpus[g];
      const auto id = static_cast<int32_t>(g);
      graph_.first_port.push_back(static_cast<int32_t>(graph_.ports.size()));
      if (gpu.nvlink_out >= 0) {
        int32_t& site = nvswitch[at(gpu.domain)];
        if (site < 0) site = add_site(add_plane(), SiteKind::kNvswitch);
        add_port({id, site, {gpu.nvlink_out}, {gpu.nvlink_in}, true, true});
      }
      for (GpuPort& port : bridge_ends[g]) add_port(std::move(port));
      for (const int32_t nic : gpu.nics) add_nic(id, fabric_.nics[at(nic)]);
      if (gpu.hub >= 0)
        add_port({id, tree_site(hubs_, gpu.hub), {gpu.pcie_out}, {gpu.pcie_in}, true, true});
    }
    graph_.first_port.push_back(static_cast<int32_t>(graph_.ports.size()));
    add_domains();
    add_rails();
    add_ways();
    return std::move(graph_);
  }

 private:
  void make_forests() {
    const auto top = static_cast<int32_t>(fabric_.leaves.size());
    for (const Switch& leaf : fabric_.leaves)
      network_.add(leaf.parent >= 0     ? leaf.parent
                   : fabric_.spine >= 0 ? top
                                        : -1,
                   leaf.up, leaf.down);
    network_.add(-1, -1, -1);
    // The hubs of a node that have no parent are joined by its host.
    const auto hosts = static_cast<int32_t>(fabric_.hubs.size());
    std::vector<int32_t> node_of_hub(fabric_.hubs.size(), 0);
    for (const Gpu& gpu : fabric_.gpus)
      for (int32_t hub = gpu.hub; hub >= 0; hub = fabric_.hubs[at(hub)].parent)
        node_of_hub[at(hub)] = gpu.node;
    for (const Nic& nic : fabric_.nics)
      for (int32_t hub = nic.hub; hub >= 0; hub = fabric_.hubs[at(hub)].parent)
        node_of_hub[at(hub)] = nic.node;
    for (size_t h = 0; h < fabric_.hubs.size(); ++h) {
      const Switch& hub = fabric_.hubs[h];
      hubs_.add(hub.parent >= 0 ? hub.parent : hosts + node_of_hub[h], hub.up, hub.down);
    }
    for (size_t node = 0; node < fabric_.nodes.size(); ++node) hubs_.add(-1, -1, -1);
  }

  bool is_up(const std::vector<int32_t>& links) const {
    return std::ranges::all_of(links, [&](int32_t link) { return graph_.rates[at(link)] > 0; });
  }

  int32_t add_plane() {
    graph_.planes.emplace_back();
    return static_cast<int32_t>(graph_.planes.size()) - 1;
  }

  int32_t add_site(int32_t plane, SiteKind kind) {
    const auto site = static_cast<int32_t>(graph_.plane.size());
    graph_.plane.push_back(plane);
    graph_.position.push_back(static_cast<int32_t>(graph_.planes[at(plane)].size()));
    graph_.kind.push_back(kind);
    graph_.planes[at(plane)].push_back(site);
    group_.push_back(-1);
    return site;
  }

  void add_port(GpuPort port) {
    port.sends = port.sends && is_up(port.out);
    port.receives = port.receives && is_up(port.in);
    if (port.sends || port.receives) graph_.ports.push_back(std::move(port));
  }

  void add_nic(int32_t gpu, const Nic& nic) {
    std::vector<int32_t> out, in = {nic.in};
    const Gpu& owner = fabric_.gpus[at(gpu)];
    if (owner.hub >= 0 && nic.hub >= 0) {
      out = hubs_.path(owner.hub, nic.hub);
      out.insert(out.begin(), owner.pcie_out);
      const std::vector<int32_t> back = hubs_.path(nic.hub, owner.hub);
      in.insert(in.end(), back.begin(), back.end());
      in.push_back(owner.pcie_in);
    }
    out.push_back(nic.out);
    const int32_t leaf = fabric_.vertices[at(fabric_.links[at(nic.out)].to)].index;
    add_port({gpu, tree_site(network_, leaf), std::move(out), std::move(in), true, true});
  }

  /// The site of the group of switches that the switch is in, on the plane of its tree.
  int32_t tree_site(Forest& forest, int32_t item) {
    const int32_t group = forest.group(item);
    const auto [site, added] = forest.sites.try_emplace(group, -1);
    if (!added) return site->second;
    const auto [plane, first] = forest.planes.try_emplace(forest.root(item), -1);
    if (first) plane->second = add_plane();
    site->second =
        add_site(plane->second, &forest == &network_ ? SiteKind::kNetwork : SiteKind::kHost);
    group_[at(site->second)] = group;
    return site->second;
  }

  /// The GPUs of an NVLink domain, and those that share a host.
  void add_domains() {
    std::vector<std::pair<int32_t, int32_t>> joined;  // NVLink domains
    for (const Node& node : fabric_.nodes)
      for (const int32_t gpu : node.gpus) {
        const Gpu& one = fabric_.gpus[at(node.gpus[0])];
        const Gpu& other = fabric_.gpus[at(gpu)];
        if (one.hub >= 0 && other.hub >= 0) joined.emplace_back(one.domain, other.domain);
      }
    const std::vector<int32_t> group = join_pairs(fabric_.domains.size(), joined);
    std::vector<int32_t> of;
    for (const Gpu& gpu : fabric_.gpus) of.push_back(group[at(gpu.domain)]);
    graph_.domains = make_groups(std::move(of));
  }

  void add_rails() {
    std::vector<std::pair<int32_t, int32_t>> joined;  // GPUs
    std::vector<int32_t> first(graph_.planes.size(), -1);
    for (const GpuPort& port : graph_.ports) {
      if (graph_.is_local(port.site)) continue;
      int32_t& other = first[at(graph_.plane[at(port.site)])];
      if (other < 0) other = port.gpu;
      joined.emplace_back(port.gpu, other);
    }
    graph_.rails = make_groups(join_pairs(fabric_.gpus.size(), joined));
  }

  /// Numbers the groups in order of their first GPUs.
  GpuGroups make_groups(std::vector<int32_t> of) const {
    GpuGroups groups;
    std::vector<int32_t> number(of.size() + fabric_.domains.size(), -1);
    for (size_t gpu = 0; gpu < of.size(); ++gpu) {
      int32_t& group = number[at(of[gpu])];
      if (group < 0) {
        group = static_cast<int32_t>(groups.members.size());
        groups.members.emplace_back();
      }
      of[gpu] = group;
      if (graph_.first_port[gpu] < graph_.first_port[gpu + 1])
        groups.members[at(group)].push_back(static_cast<int32_t>(gpu));
    }
    groups.of = std::move(of);
    return groups;
  }

  void add_ways() {
    for (const std::vector<int32_t>& sites : graph_.planes) {
      std::vector<SiteWay>& ways = graph_.ways.emplace_back();
      for (const int32_t from : sites)
        for (const int32_t to : sites) {
          SiteWay way = {true, {}};
          if (from != to) {
            const Forest& forest = graph_.kind[at(from)] == SiteKind::kNetwork ? network_ : hubs_;
            way.links = forest.path(group_[at(from)], group_[at(to)]);
            way.open = is_up(way.links);
          }
          ways.push_back(std::move(way));
        }
    }
  }

  const Fabric& fabric_;
  HopGraph graph_;
  Forest network_, hubs_;
  std::vector<int32_t> group_;  // by site: of its forest
};

}  // namespace

HopGraph make_hop_graph(const Fabric& fabric, std::span<const double> rates) {
  REFIT_CHECK(rates.size() == fabric.links.size());
  return HopGraphBuilder(fabric, rates).make();
}

}  // namespace refit
