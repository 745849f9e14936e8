#include <fmt/core.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "sim/fabric/fabric.h"
#include "sim/fabric/names.h"

namespace refit {
namespace {

/// Marks what a pattern names: nodes with all they hold, GPUs, NICs. False when nothing has it.
bool mark(const Fabric& fabric, const std::string& pattern, std::vector<char>& gpu_gone,
          std::vector<char>& nic_gone) {
  bool found = false;
  for (const Node& node : fabric.nodes) {
    if (!matches_name(pattern, node.name)) continue;
    found = true;
    for (const int32_t gpu : node.gpus) gpu_gone[static_cast<size_t>(gpu)] = 1;
    for (const int32_t nic : node.nics) nic_gone[static_cast<size_t>(nic)] = 1;
  }
  const auto mark_all = [&](const auto& items, std::vector<char>& gone) {
    for (size_t i = 0; i < items.size(); ++i)
      if (matches_name(pattern, fabric.vertices[static_cast<size_t>(items[i].vertex)].name)) {
        gone[i] = 1;
        found = true;
      }
  };
  mark_all(fabric.gpus, gpu_gone);
  mark_all(fabric.nics, nic_gone);
  return found;
}

/// New numbers of what is kept; -1 for the rest.
std::vector<int32_t> renumber(const std::vector<char>& gone) {
  std::vector<int32_t> number(gone.size(), -1);
  int32_t next = 0;
  for (size_t i = 0; i < gone.size(); ++i)
    if (!gone[i]) number[i] = next++;
  return number;
}

void apply(const std::vector<int32_t>& number, int32_t& id) {
  if (id >= 0) id = number[static_cast<size_t>(id)];
}

void apply(const std::vector<int32_t>& number, std::vector<int32_t>& ids) {
  for (int32_t& id : ids) apply(number, id);
  std::erase(ids, -1);
}

template <typename Item>
void keep(std::vector<Item>& items, const std::vector<int32_t>& number) {
  std::vector<Item> kept;
  for (size_t i = 0; i < items.size(); ++i)
    if (number[i] >= 0) kept.push_back(std::move(items[i]));
  items = std::move(kept);
}

/// A GPU that is gone may have been what joined the others: domains fall into what bridges join.
void split_domains(Fabric& fabric) {
  for (size_t d = 0; d < fabric.domains.size(); ++d) {
    const std::vector<int32_t> members = fabric.domains[d];
    if (members.size() < 2 || fabric.gpus[static_cast<size_t>(members[0])].nvlink_out >= 0)
      continue;
    std::vector<int32_t> reached = {members[0]};
    for (size_t i = 0; i < reached.size(); ++i)
      for (const int32_t link : fabric.gpus[static_cast<size_t>(reached[i])].bridges) {
        const int32_t to = fabric.links[static_cast<size_t>(link)].to;
        const int32_t next = fabric.vertices[static_cast<size_t>(to)].index;
        if (std::ranges::find(reached, next) == reached.end()) reached.push_back(next);
      }
    if (reached.size() == members.size()) continue;
    std::ranges::sort(reached);
    std::vector<int32_t> others;
    std::ranges::set_difference(members, reached, std::back_inserter(others));
    for (const int32_t gpu : others)
      fabric.gpus[static_cast<size_t>(gpu)].domain = static_cast<int32_t>(fabric.domains.size());
    fabric.domains[d] = std::move(reached);
    fabric.domains.push_back(std::move(others));
    fabric.domain_names.push_back(fabric.domain_names[d] + "'");
  }
}

}  // namespace

Fabric exclude(const Fabric& fabric, std::span<const std::string> names) {
  std::vector<char> gpu_gone(fabric.gpus.size(), 0), nic_gone(fabric.nics.size(), 0);
  for (const std::string& list : names)
    for (const std::string& pattern : expand_names(list, "--exclude"))
      if (!mark(fabric, pattern, gpu_gone, nic_gone))
        fail("--exclude", quote(pattern),
             fmt::format(
                 "a node, GPU or NIC of fabric {}, such as {}, {}{}", fabric.name,
                 fabric.nodes[0].name, fabric.vertices[0].name,
                 fabric.nics.empty()
                     ? ""
                     : " or " + fabric.vertices[static_cast<size_t>(fabric.nics[0].vertex)].name));
  const auto is_gone = [](const std::vector<char>& gone) {
    return [&gone](int32_t id) { return gone[static_cast<size_t>(id)] != 0; };
  };

  std::vector<char> domain_gone, node_gone, vertex_gone(fabric.vertices.size(), 0);
  for (const std::vector<int32_t>& gpus : fabric.domains)
    domain_gone.push_back(std::ranges::all_of(gpus, is_gone(gpu_gone)));
  for (const Node& node : fabric.nodes)
    node_gone.push_back(std::ranges::all_of(node.gpus, is_gone(gpu_gone)) &&
                        std::ranges::all_of(node.nics, is_gone(nic_gone)));
  if (std::ranges::count(gpu_gone, 0) == 0)
    fail("--exclude", "all GPUs of the fabric", "some that are left");
  for (size_t v = 0; v < fabric.vertices.size(); ++v) {
    const Vertex& vertex = fabric.vertices[v];
    const auto index = static_cast<size_t>(vertex.index);
    if (vertex.kind == VertexKind::kGpu) vertex_gone[v] = gpu_gone[index];
    if (vertex.kind == VertexKind::kNic) vertex_gone[v] = nic_gone[index];
    if (vertex.kind == VertexKind::kNvswitch) vertex_gone[v] = domain_gone[index];
  }
  std::vector<char> link_gone;
  for (const Link& link : fabric.links)
    link_gone.push_back(vertex_gone[static_cast<size_t>(link.from)] ||
                        vertex_gone[static_cast<size_t>(link.to)]);

  const std::vector<int32_t> gpu = renumber(gpu_gone), nic = renumber(nic_gone),
                             node = renumber(node_gone), domain = renumber(domain_gone),
                             vertex = renumber(vertex_gone), link = renumber(link_gone);
  Fabric left = fabric;
  for (Vertex& item : left.vertices) {
    if (item.kind == VertexKind::kGpu) apply(gpu, item.index);
    if (item.kind == VertexKind::kNic) apply(nic, item.index);
    if (item.kind == VertexKind::kNvswitch) apply(domain, item.index);
  }
  for (Link& item : left.links) {
    apply(vertex, item.from);
    apply(vertex, item.to);
  }
  for (Gpu& item : left.gpus) {
    apply(vertex, item.vertex);
    apply(node, item.node);
    apply(domain, item.domain);
    for (int32_t* id : {&item.nvlink_out, &item.nvlink_in, &item.pcie_out, &item.pcie_in})
      apply(link, *id);
    apply(link, item.bridges);
    apply(nic, item.nics);
  }
  for (Nic& item : left.nics) {
    apply(vertex, item.vertex);
    apply(node, item.node);
    apply(link, item.out);
    apply(link, item.in);
  }
  for (std::vector<Switch>* tree : {&left.leaves, &left.hubs})
    for (Switch& item : *tree) {
      apply(vertex, item.vertex);
      apply(link, item.up);
      apply(link, item.down);
    }
  for (Node& item : left.nodes) {
    apply(gpu, item.gpus);
    apply(nic, item.nics);
  }
  for (std::vector<int32_t>& gpus : left.domains) apply(gpu, gpus);
  apply(vertex, left.spine);
  for (int32_t& host : left.hosts) apply(vertex, host);
  keep(left.vertices, vertex);
  keep(left.links, link);
  keep(left.gpus, gpu);
  keep(left.nics, nic);
  keep(left.nodes, node);
  keep(left.domains, domain);
  keep(left.domain_names, domain);
  if (!left.hosts.empty()) keep(left.hosts, node);
  split_domains(left);
  return left;
}

}  // namespace refit
