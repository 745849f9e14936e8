#include <fmt/core.h>
#include <fmt/ranges.h>

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/graphviz.hpp>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "base/units.h"
#include "sim/fabric/names.h"
#include "sim/fabric/report.h"

namespace refit {
namespace {

/// Link rates in the unit people know them by: Gbit/s for what is a network, else bytes.
std::string name_rate(const Link& link) {
  if (link.kind == LinkKind::kNic || link.kind == LinkKind::kSpine)
    return fmt::format("{:g} Gbps", link.rate * 8 / 1e9);
  return print_rate(link.rate);
}

const Link& link_at(const Fabric& fabric, int32_t id) {
  return fabric.links[static_cast<size_t>(id)];
}

/// The last part of a vertex's name: "nic3" of "n0.nic3".
std::string part_name(const Fabric& fabric, size_t node, int32_t vertex) {
  return fabric.vertices[static_cast<size_t>(vertex)].name.substr(fabric.nodes[node].name.size() +
                                                                  1);
}

/// GPUs of a node, those alike in a line.
std::vector<std::string> describe_node(const Fabric& fabric, size_t n) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<std::string>> gpus_with;  // by what they have
  for (const int32_t id : fabric.nodes[n].gpus) {
    const Gpu& gpu = fabric.gpus[static_cast<size_t>(id)];
    std::string has;
    if (gpu.nvlink_out >= 0) {
      has = ", NVSwitch " + name_rate(link_at(fabric, gpu.nvlink_out));
    } else if (!gpu.bridges.empty()) {
      std::vector<std::string> to;
      for (const int32_t bridge : gpu.bridges) {
        const Link& link = link_at(fabric, bridge);
        to.push_back(part_name(fabric, n, link.to) + " " + name_rate(link));
      }
      has = fmt::format(", NVLink to {}", fmt::join(to, ", "));
    }
    if (gpu.hub >= 0)
      has += fmt::format(", PCIe {} {}",
                         part_name(fabric, n, fabric.hubs[static_cast<size_t>(gpu.hub)].vertex),
                         name_rate(link_at(fabric, gpu.pcie_out)));
    if (gpu.nics.empty()) {
      has += ", no NIC of its own";
    } else {
      const Link& out = link_at(fabric, fabric.nics[static_cast<size_t>(gpu.nics[0])].out);
      has += fmt::format(", {} NIC{} of {}", gpu.nics.size(), gpu.nics.size() > 1 ? "s" : "",
                         name_rate(out));
    }
    if (!gpus_with.contains(has)) order.push_back(has);
    gpus_with[has].push_back(part_name(fabric, n, fabric.gpus[static_cast<size_t>(id)].vertex));
  }
  std::vector<std::string> lines;
  for (const std::string& has : order) lines.push_back(fold_names(gpus_with[has]) + has);
  std::vector<std::string> nics;
  for (const int32_t nic : fabric.nodes[n].nics)
    nics.push_back(part_name(fabric, n, fabric.nics[static_cast<size_t>(nic)].vertex));
  if (!nics.empty()) lines.push_back(fmt::format("NICs {}", fold_names(nics)));
  return lines;
}

void print_switches(const Fabric& fabric, int32_t parent, const std::string& indent,
                    const std::vector<std::vector<std::string>>& nics_below, std::string& out) {
  for (size_t s = 0; s < fabric.leaves.size(); ++s) {
    const Switch& item = fabric.leaves[s];
    if (item.parent != parent) continue;
    out += indent + fabric.vertices[static_cast<size_t>(item.vertex)].name;
    if (item.up >= 0) out += ", up " + name_rate(link_at(fabric, item.up));
    if (!nics_below[s].empty())
      out += fmt::format(", {} NICs: {}", nics_below[s].size(), fold_names(nics_below[s]));
    out += '\n';
    print_switches(fabric, static_cast<int32_t>(s), indent + "  ", nics_below, out);
  }
}

/// In a drawing: switches of the network, NICs, PCIe, GPUs, NVSwitches from top to bottom.
bool is_above(const Fabric& fabric, int32_t a, int32_t b) {
  const auto layer = [&](int32_t v) {
    switch (fabric.vertices[static_cast<size_t>(v)].kind) {
      case VertexKind::kSpine:
        return 0;
      case VertexKind::kLeaf:
        return 1;
      case VertexKind::kNic:
        return 2;
      case VertexKind::kPcie:
        return 3;
      case VertexKind::kGpu:
        return 4;
      case VertexKind::kNvswitch:
        return 5;
    }
    return 0;
  };
  if (layer(a) != layer(b) || layer(a) != 1) return layer(a) < layer(b);
  const int32_t index = fabric.vertices[static_cast<size_t>(b)].index;
  const int32_t parent = fabric.leaves[static_cast<size_t>(index)].parent;
  return parent >= 0 && fabric.leaves[static_cast<size_t>(parent)].vertex == a;
}

}  // namespace

std::string print_tree(const Fabric& fabric) {
  const FabricCounts counts = count_parts(fabric);
  std::string out = fmt::format(
      "{}: {} nodes, {} GPUs in {} NVLink domains, {} NICs on {} rails, {} leaves, {} links\n",
      fabric.name, counts.nodes, counts.gpus, counts.domains, counts.nics, counts.rails,
      counts.leaves, counts.links);
  std::vector<std::vector<std::string>> order;
  std::map<std::vector<std::string>, std::vector<std::string>> nodes_like;
  for (size_t n = 0; n < fabric.nodes.size(); ++n) {
    std::vector<std::string> lines = describe_node(fabric, n);
    std::vector<std::string>& nodes = nodes_like[lines];
    if (nodes.empty()) order.push_back(std::move(lines));
    nodes.push_back(fabric.nodes[n].name);
  }
  for (const std::vector<std::string>& lines : order) {
    out += fold_names(nodes_like[lines]) + '\n';
    for (const std::string& line : lines) out += "  " + line + '\n';
  }
  std::string domains;
  for (size_t d = 0; d < fabric.domains.size(); ++d) {
    std::vector<std::string> nodes;
    for (const int32_t gpu : fabric.domains[d]) {
      const auto node = static_cast<size_t>(fabric.gpus[static_cast<size_t>(gpu)].node);
      if (nodes.empty() || nodes.back() != fabric.nodes[node].name)
        nodes.push_back(fabric.nodes[node].name);
    }
    if (nodes.size() > 1)
      domains += "  " + fabric.domain_names[d] + ": " + fold_names(nodes) + '\n';
  }
  if (!domains.empty()) out += "NVLink domains of several nodes\n" + domains;
  std::vector<std::vector<std::string>> nics_below(fabric.leaves.size());
  for (const Nic& nic : fabric.nics) {
    if (nic.out < 0) continue;
    const int32_t leaf = link_at(fabric, nic.out).to;
    nics_below[static_cast<size_t>(fabric.vertices[static_cast<size_t>(leaf)].index)].push_back(
        fabric.vertices[static_cast<size_t>(nic.vertex)].name);
  }
  out += "network\n";
  if (fabric.spine >= 0)
    out += "  " + fabric.vertices[static_cast<size_t>(fabric.spine)].name +
           " above the leaves that follow\n";
  print_switches(fabric, -1, "  ", nics_below, out);
  return out;
}

std::string print_dot(const Fabric& fabric) {
  struct Edge {
    std::string label;
    bool thin = false;
  };
  using Graph =
      boost::adjacency_list<boost::vecS, boost::vecS, boost::undirectedS, boost::no_property, Edge>;
  Graph graph(fabric.vertices.size());
  // Graphviz draws the first end of an edge above the other.
  const auto join = [&](int32_t a, int32_t b, const Edge& edge) {
    if (is_above(fabric, b, a)) std::swap(a, b);
    boost::add_edge(static_cast<size_t>(a), static_cast<size_t>(b), edge, graph);
  };
  std::set<std::pair<int32_t, int32_t>> upward;
  for (const Link& link : fabric.links)
    if (link.from < link.to) upward.insert({link.from, link.to});
  for (const Link& link : fabric.links)
    if (link.from < link.to || !upward.contains({link.to, link.from}))
      join(link.from, link.to, {name_rate(link), false});
  for (const Gpu& gpu : fabric.gpus)
    for (const int32_t nic : gpu.nics)
      if (gpu.hub < 0) join(gpu.vertex, fabric.nics[static_cast<size_t>(nic)].vertex, {"", true});
  for (const Nic& nic : fabric.nics)
    if (nic.hub >= 0)
      join(nic.vertex, fabric.hubs[static_cast<size_t>(nic.hub)].vertex, {"", true});
  for (const Switch& leaf : fabric.leaves) {
    const int32_t parent =
        leaf.parent >= 0 ? fabric.leaves[static_cast<size_t>(leaf.parent)].vertex : fabric.spine;
    if (leaf.up < 0 && parent >= 0) join(leaf.vertex, parent, {"", true});
  }
  const auto vertex_writer = [&](std::ostream& out, size_t v) {
    const Vertex& vertex = fabric.vertices[v];
    const bool is_switch = vertex.kind != VertexKind::kGpu && vertex.kind != VertexKind::kNic;
    out << "[label=" << quoted(vertex.name)
        << (is_switch                         ? ", shape=box"
            : vertex.kind == VertexKind::kGpu ? ", style=filled, fillcolor=\"#c5e0b4\""
                                              : ", shape=hexagon")
        << ']';
  };
  const auto edge_writer = [&](std::ostream& out, const auto& edge) {
    out << "[label=" << quoted(graph[edge].label) << (graph[edge].thin ? ", style=dotted" : "")
        << ']';
  };
  const auto graph_writer = [&](std::ostream& out) {
    out << "label=" << quoted(fabric.name) << "; node [fontsize=10]; edge [fontsize=8];\n";
    for (size_t n = 0; n < fabric.nodes.size(); ++n) {
      out << "subgraph cluster_" << n << " { label=" << quoted(fabric.nodes[n].name) << "; ";
      for (const int32_t gpu : fabric.nodes[n].gpus)
        out << fabric.gpus[static_cast<size_t>(gpu)].vertex << "; ";
      for (const int32_t nic : fabric.nodes[n].nics)
        out << fabric.nics[static_cast<size_t>(nic)].vertex << "; ";
      out << "}\n";
    }
  };
  std::ostringstream out;
  boost::write_graphviz(out, graph, vertex_writer, edge_writer, graph_writer);
  return out.str();
}

}  // namespace refit
