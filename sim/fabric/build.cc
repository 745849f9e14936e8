#include <fmt/core.h>

#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/connected_components.hpp>
#include <map>
#include <set>

#include "base/error.h"
#include "sim/fabric/fabric_file.h"
#include "sim/fabric/names.h"

namespace refit {
namespace {

constexpr int32_t kMostGpus = 1 << 20;

/// Builds a fabric, part by part: GPUs, domains, switches, NICs, PCIe.
class Generator {
 public:
  Generator(const FabricFile& file, int32_t nodes)
      : file_(file), node_count_(static_cast<size_t>(nodes)) {}

  Fabric make() {
    fabric_.name = file_.name;
    fabric_.default_cost = file_.default_cost;
    fabric_.nodes.resize(node_count_);
    for (size_t n = 0; n < node_count_; ++n) {
      fabric_.nodes[n].name = file_.hosts.empty() ? fmt::format("n{}", n) : file_.hosts[n].name;
      for (const NicPort& nic : kind_of(n).nics)
        fabric_.rails = std::max(fabric_.rails, nic.rail + 1);
    }
    for (size_t n = 0; n < node_count_; ++n) add_gpus(n);
    add_domains();
    add_leaves();
    for (size_t n = 0; n < node_count_; ++n) add_nics(n);
    add_spine();
    for (size_t n = 0; n < node_count_; ++n) add_pcie(n);
    change_links();
    return std::move(fabric_);
  }

 private:
  const NodeKind& kind_of(size_t n) const {
    return file_.kinds[file_.hosts.empty() ? 0 : static_cast<size_t>(file_.hosts[n].kind)];
  }

  int32_t add_vertex(VertexKind kind, std::string name, size_t index) {
    fabric_.vertices.push_back({kind, std::move(name), static_cast<int32_t>(index)});
    return static_cast<int32_t>(fabric_.vertices.size()) - 1;
  }

  int32_t add_link(std::string name, LinkKind kind, int32_t from, int32_t to, const Port& port) {
    fabric_.links.push_back({std::move(name), kind, from, to, port.rate, port.latency});
    return static_cast<int32_t>(fabric_.links.size()) - 1;
  }

  Gpu& gpu(int32_t id) { return fabric_.gpus[static_cast<size_t>(id)]; }
  const std::string& name_of(int32_t vertex) const {
    return fabric_.vertices[static_cast<size_t>(vertex)].name;
  }

  void add_gpus(size_t n) {
    Node& node = fabric_.nodes[n];
    for (int32_t device = 0; device < kind_of(n).gpus; ++device) {
      Gpu item;
      item.vertex = add_vertex(VertexKind::kGpu, fmt::format("{}.gpu{}", node.name, device),
                               fabric_.gpus.size());
      item.node = static_cast<int32_t>(n);
      item.device = device;
      node.gpus.push_back(static_cast<int32_t>(fabric_.gpus.size()));
      fabric_.gpus.push_back(std::move(item));
    }
  }

  int32_t add_domain(std::string name) {
    fabric_.domains.emplace_back();
    fabric_.domain_names.push_back(std::move(name));
    return static_cast<int32_t>(fabric_.domains.size()) - 1;
  }

  void join(int32_t id, int32_t domain) {
    gpu(id).domain = domain;
    fabric_.domains[static_cast<size_t>(domain)].push_back(id);
  }

  /// Domains are numbered as their first GPUs are.
  void add_domains() {
    std::map<std::string, int32_t> domain_of;  // by name in the file
    const auto next_name = [&] { return fmt::format("d{}", fabric_.domains.size()); };
    for (size_t n = 0; n < node_count_; ++n) {
      const NodeKind& kind = kind_of(n);
      const std::vector<int32_t>& gpus = fabric_.nodes[n].gpus;
      const std::vector<int32_t> group =
          kind.nvswitch ? std::vector<int32_t>(gpus.size(), 0) : bridged_groups(kind);
      std::vector<int32_t> domain(gpus.size(), -1);  // by group
      for (size_t g = 0; g < gpus.size(); ++g) {
        const auto device = static_cast<int32_t>(g);
        if (std::ranges::find(kind.nvlink_off, device) != kind.nvlink_off.end()) {
          join(gpus[g], add_domain(next_name()));
          continue;
        }
        int32_t& mine = domain[static_cast<size_t>(group[g])];
        if (mine < 0 && kind.nvswitch) {
          const bool named = !file_.hosts.empty() && !file_.hosts[n].domain.empty();
          const std::string key =
              named ? "h" + file_.hosts[n].domain
              : file_.hosts.empty()
                  ? fmt::format("g{}", n / static_cast<size_t>(file_.domain_nodes))
                  : fmt::format("n{}", n);
          const auto [it, added] = domain_of.try_emplace(key, -1);
          if (added) it->second = add_domain(named ? file_.hosts[n].domain : next_name());
          mine = it->second;
        }
        if (mine < 0) mine = add_domain(next_name());
        join(gpus[g], mine);
        if (kind.nvswitch) nvswitch_port_[gpus[g]] = kind.nvlink;
      }
    }
    std::set<std::string> names;
    for (const std::string& name : fabric_.domain_names)
      if (!names.insert(name).second) fail("domain", quote(name) + " twice", "a name of its own");
    for (size_t d = 0; d < fabric_.domains.size(); ++d) add_nvswitch(d);
    for (size_t n = 0; n < node_count_; ++n) add_bridges(n);
  }

  void add_nvswitch(size_t d) {
    int32_t nvswitch = -1;
    for (const int32_t id : fabric_.domains[d]) {
      const auto port = nvswitch_port_.find(id);
      if (port == nvswitch_port_.end()) continue;
      if (nvswitch < 0)
        nvswitch = add_vertex(VertexKind::kNvswitch, fabric_.domain_names[d] + ".nvswitch", d);
      const std::string name = name_of(gpu(id).vertex) + ".nvlink";
      gpu(id).nvlink_out =
          add_link(name + ".out", LinkKind::kNvlink, gpu(id).vertex, nvswitch, port->second);
      gpu(id).nvlink_in =
          add_link(name + ".in", LinkKind::kNvlink, nvswitch, gpu(id).vertex, port->second);
    }
  }

  /// Which group of those that bridges join each GPU is in.
  static std::vector<int32_t> bridged_groups(const NodeKind& kind) {
    const auto gpus = static_cast<size_t>(kind.gpus);
    boost::adjacency_list<boost::vecS, boost::vecS, boost::undirectedS> graph(gpus);
    for (const Bridge& bridge : kind.bridges)
      boost::add_edge(static_cast<size_t>(bridge.first), static_cast<size_t>(bridge.second), graph);
    std::vector<int32_t> group(gpus);
    boost::connected_components(graph, group.data());
    return group;
  }

  void add_bridges(size_t n) {
    const NodeKind& kind = kind_of(n);
    for (const Bridge& bridge : kind.bridges)
      for (const bool back : {false, true}) {
        const int32_t from = back ? bridge.second : bridge.first;
        const int32_t to = back ? bridge.first : bridge.second;
        const int32_t a = fabric_.nodes[n].gpus[static_cast<size_t>(from)];
        const int32_t b = fabric_.nodes[n].gpus[static_cast<size_t>(to)];
        gpu(a).bridges.push_back(
            add_link(fmt::format("{}.nvlink.gpu{}", name_of(gpu(a).vertex), to), LinkKind::kNvlink,
                     gpu(a).vertex, gpu(b).vertex, {bridge.rate, kind.nvlink.latency}));
      }
  }

  void add_leaves() {
    if (file_.network != NetworkKind::kSwitches) {
      const int32_t count = file_.network == NetworkKind::kFlat ? 1 : fabric_.rails;
      for (int32_t leaf = 0; leaf < count; ++leaf)
        fabric_.leaves.push_back(
            {.vertex = add_vertex(VertexKind::kLeaf, fmt::format("leaf{}", leaf),
                                  static_cast<size_t>(leaf))});
      return;
    }
    std::vector<char> has_children(file_.switches.size(), 0);
    for (const SwitchEntry& item : file_.switches)
      if (item.parent >= 0) has_children[static_cast<size_t>(item.parent)] = 1;
    for (size_t s = 0; s < file_.switches.size(); ++s)
      fabric_.leaves.push_back(
          {.vertex = add_vertex(has_children[s] ? VertexKind::kSpine : VertexKind::kLeaf,
                                file_.switches[s].name, s),
           .parent = file_.switches[s].parent});
    for (size_t s = 0; s < file_.switches.size(); ++s) {
      const SwitchEntry& item = file_.switches[s];
      if (item.parent >= 0 && item.up.rate > 0)
        connect_up(fabric_.leaves[s], fabric_.leaves[static_cast<size_t>(item.parent)].vertex,
                   LinkKind::kSpine, item.up);
    }
  }

  void connect_up(Switch& item, int32_t parent, LinkKind kind, const Port& port) {
    const std::string name = name_of(item.vertex);
    item.up = add_link(name + ".up", kind, item.vertex, parent, port);
    item.down = add_link(name + ".down", kind, parent, item.vertex, port);
  }

  int32_t switch_of_nic(size_t n, size_t i) const {
    switch (file_.network) {
      case NetworkKind::kFlat:
        return fabric_.leaves[0].vertex;
      case NetworkKind::kRailOptimized:
      case NetworkKind::kRailOnly:
        return fabric_.leaves[static_cast<size_t>(kind_of(n).nics[i].rail)].vertex;
      case NetworkKind::kSwitches: {
        const int32_t item = file_.hosts[n].leaves[i];
        return item < 0 ? -1 : fabric_.leaves[static_cast<size_t>(item)].vertex;
      }
    }
    check_failed("a kind of network", __FILE__, __LINE__);
  }

  void add_nics(size_t n) {
    Node& node = fabric_.nodes[n];
    const NodeKind& kind = kind_of(n);
    for (size_t i = 0; i < kind.nics.size(); ++i) {
      const auto id = static_cast<int32_t>(fabric_.nics.size());
      const std::string name = node.name + "." + kind.nics[i].name;
      const Port port = {kind.nics[i].rate, kind.nic_latency};
      Nic nic;
      nic.vertex = add_vertex(VertexKind::kNic, name, fabric_.nics.size());
      nic.node = static_cast<int32_t>(n);
      nic.rail = kind.nics[i].rail;
      if (const int32_t leaf = switch_of_nic(n, i); leaf >= 0) {
        nic.out = add_link(name + ".out", LinkKind::kNic, nic.vertex, leaf, port);
        nic.in = add_link(name + ".in", LinkKind::kNic, leaf, nic.vertex, port);
        for (const int32_t owner : kind.nics[i].gpus)
          gpu(node.gpus[static_cast<size_t>(owner)]).nics.push_back(id);
      }
      node.nics.push_back(id);
      fabric_.nics.push_back(nic);
    }
  }

  void add_spine() {
    if (file_.network != NetworkKind::kRailOptimized) return;
    fabric_.spine = add_vertex(VertexKind::kSpine, "spine", 0);
    if (file_.oversubscription <= 1) return;
    std::vector<double> below(fabric_.leaves.size(), 0);
    for (const Nic& nic : fabric_.nics)
      below[static_cast<size_t>(nic.rail)] += fabric_.links[static_cast<size_t>(nic.out)].rate;
    for (size_t leaf = 0; leaf < fabric_.leaves.size(); ++leaf)
      if (below[leaf] > 0)
        connect_up(fabric_.leaves[leaf], fabric_.spine, LinkKind::kSpine,
                   {below[leaf] / file_.oversubscription, file_.spine_latency});
  }

  void add_pcie(size_t n) {
    const NodeKind& kind = kind_of(n);
    if (kind.pcie.empty()) return;
    const Node& node = fabric_.nodes[n];
    fabric_.hosts.resize(node_count_, -1);
    const size_t first = fabric_.hubs.size();
    for (const PcieHub& hub : kind.pcie) {
      Switch item{
          .vertex = add_vertex(VertexKind::kPcie, node.name + "." + hub.name, fabric_.hubs.size())};
      if (hub.parent >= 0) {
        item.parent = static_cast<int32_t>(first) + hub.parent;
      } else if (hub.up > 0 && fabric_.hosts[n] < 0) {
        fabric_.hosts[n] = add_vertex(VertexKind::kPcie, node.name + ".host", 0);
        fabric_.vertices.back().index = -1;
      }
      const int32_t parent = hub.parent >= 0 ? fabric_.hubs[static_cast<size_t>(item.parent)].vertex
                                             : fabric_.hosts[n];
      if (hub.up > 0) connect_up(item, parent, LinkKind::kPcie, {hub.up, kind.pcie_port.latency});
      const auto id = static_cast<int32_t>(fabric_.hubs.size());
      for (const int32_t device : hub.gpus) {
        Gpu& below = gpu(node.gpus[static_cast<size_t>(device)]);
        const std::string name = name_of(below.vertex) + ".pcie";
        below.hub = id;
        below.pcie_out =
            add_link(name + ".out", LinkKind::kPcie, below.vertex, item.vertex, kind.pcie_port);
        below.pcie_in =
            add_link(name + ".in", LinkKind::kPcie, item.vertex, below.vertex, kind.pcie_port);
      }
      for (const int32_t nic : hub.nics)
        fabric_.nics[static_cast<size_t>(node.nics[static_cast<size_t>(nic)])].hub = id;
      fabric_.hubs.push_back(item);
    }
  }

  void change_links() {
    for (const LinkChange& change : file_.changes) {
      const std::vector<std::string> patterns = expand_names(change.links, "links");
      for (const std::string& pattern : patterns) {
        bool found = false;
        for (Link& link : fabric_.links) {
          // "n0.nic1" stands for both of its directions.
          const std::string_view name = link.name;
          const size_t dot = name.rfind('.');
          if (!matches_name(pattern, name) && !matches_name(pattern, name.substr(0, dot))) continue;
          found = true;
          if (change.rate > 0) link.rate = change.rate;
          link.rate *= change.factor;
          if (change.latency >= 0) link.latency = change.latency;
        }
        if (!found)
          fail("links", quote(pattern),
               fmt::format("names of links, such as {}", fabric_.links.front().name));
      }
    }
  }

  const FabricFile& file_;
  const size_t node_count_;
  Fabric fabric_;
  std::map<int32_t, Port> nvswitch_port_;  // by GPU
};

}  // namespace

Fabric build_fabric(const FabricFile& file, int32_t nodes) {
  const int32_t fixed = file.hosts.empty() ? file.nodes : static_cast<int32_t>(file.hosts.size());
  if (fixed > 0 && nodes != fixed)
    fail("nodes", fmt::format("{} nodes asked for", nodes),
         fmt::format("the {} nodes of the fabric", fixed));
  int32_t largest = 1;
  for (const NodeKind& kind : file.kinds)
    largest = std::max({largest, kind.gpus, static_cast<int32_t>(kind.nics.size())});
  const int32_t most = kMostGpus / largest;
  if (nodes < 1 || nodes > most)
    fail("nodes", fmt::format("{} nodes", nodes), fmt::format("1 to {}", most));
  return Generator(file, nodes).make();
}

}  // namespace refit
