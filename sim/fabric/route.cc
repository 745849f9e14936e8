#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "sim/fabric/fabric.h"

namespace refit {
namespace {

const Gpu& gpu_at(const Fabric& fabric, int32_t id) { return fabric.gpus[static_cast<size_t>(id)]; }
const Nic& nic_at(const Fabric& fabric, int32_t id) { return fabric.nics[static_cast<size_t>(id)]; }
const Vertex& vertex_at(const Fabric& fabric, int32_t id) {
  return fabric.vertices[static_cast<size_t>(id)];
}

/// Adds the links from one switch of a tree to another: up to where the ways meet, then down. False
/// when they meet nowhere; `top` says whether the roots are joined.
bool cross_tree(const std::vector<Switch>& tree, int32_t from, int32_t to, bool top,
                std::vector<int32_t>& links) {
  const auto at = [&](int32_t id) -> const Switch& { return tree[static_cast<size_t>(id)]; };
  const auto depth = [&](int32_t id) {
    int32_t steps = 0;
    for (; id >= 0; id = at(id).parent) ++steps;
    return steps;
  };
  std::vector<int32_t> down;
  const auto climb = [&] {
    if (at(from).up >= 0) links.push_back(at(from).up);
    from = at(from).parent;
  };
  const auto descend = [&] {
    if (at(to).down >= 0) down.push_back(at(to).down);
    to = at(to).parent;
  };
  int32_t from_depth = depth(from), to_depth = depth(to);
  for (; from_depth > to_depth; --from_depth) climb();
  for (; to_depth > from_depth; --to_depth) descend();
  while (from != to) {
    climb();
    descend();
  }
  links.insert(links.end(), down.rbegin(), down.rend());
  return from >= 0 || top;
}

/// The fewest bridges from one GPU of a domain to another: breadth first, lowest number first.
std::vector<int32_t> cross_bridges(const Fabric& fabric, int32_t from, int32_t to) {
  const std::vector<int32_t>& members =
      fabric.domains[static_cast<size_t>(gpu_at(fabric, from).domain)];
  const auto position = [&](int32_t gpu) {
    return static_cast<size_t>(std::ranges::lower_bound(members, gpu) - members.begin());
  };
  std::vector<int32_t> link_into(members.size(), -1), queue = {from};
  for (size_t i = 0; i < queue.size() && link_into[position(to)] < 0; ++i)
    for (const int32_t id : gpu_at(fabric, queue[i]).bridges) {
      const int32_t next = vertex_at(fabric, fabric.links[static_cast<size_t>(id)].to).index;
      if (next == from || link_into[position(next)] >= 0) continue;
      link_into[position(next)] = id;
      queue.push_back(next);
    }
  std::vector<int32_t> links;
  for (int32_t at = to; at != from;) {
    const int32_t id = link_into[position(at)];
    REFIT_CHECK(id >= 0);
    links.push_back(id);
    at = vertex_at(fabric, fabric.links[static_cast<size_t>(id)].from).index;
  }
  std::ranges::reverse(links);
  return links;
}

std::vector<int32_t> cross_nvlink(const Fabric& fabric, int32_t from, int32_t to) {
  if (from == to) return {};
  if (gpu_at(fabric, from).nvlink_out >= 0)
    return {gpu_at(fabric, from).nvlink_out, gpu_at(fabric, to).nvlink_in};
  return cross_bridges(fabric, from, to);
}

bool has_host_path(const Gpu& from, const Gpu& to) {
  return from.node == to.node && from.domain != to.domain && from.hub >= 0 && to.hub >= 0;
}

std::vector<int32_t> cross_host(const Fabric& fabric, const Gpu& from, const Gpu& to) {
  std::vector<int32_t> links = {from.pcie_out};
  REFIT_CHECK(cross_tree(fabric.hubs, from.hub, to.hub, true, links));
  links.push_back(to.pcie_in);
  return links;
}

/// From a GPU to the wire of a NIC of its node, or back; over PCIe where that may bind.
void cross_nic(const Fabric& fabric, const Gpu& gpu, const Nic& nic, bool out,
               std::vector<int32_t>& links) {
  const bool over_pcie = gpu.hub >= 0 && nic.hub >= 0;
  if (!out) links.push_back(nic.in);
  if (over_pcie) {
    if (out) links.push_back(gpu.pcie_out);
    REFIT_CHECK(
        cross_tree(fabric.hubs, out ? gpu.hub : nic.hub, out ? nic.hub : gpu.hub, true, links));
    if (!out) links.push_back(gpu.pcie_in);
  }
  if (out) links.push_back(nic.out);
}

int32_t leaf_of(const Fabric& fabric, const Nic& nic) {
  return vertex_at(fabric, fabric.links[static_cast<size_t>(nic.out)].to).index;
}

/// A GPU and the NIC of its own that its traffic passes.
struct NicPath {
  int32_t gpu = -1, nic = -1;
};

/// The peers over which a GPU may reach the network: of its node and domain, with NICs; itself
/// first.
std::vector<int32_t> list_peers(const Fabric& fabric, int32_t id) {
  const Gpu& gpu = gpu_at(fabric, id);
  std::vector<int32_t> peers;
  if (!gpu.nics.empty()) peers.push_back(id);
  for (const int32_t peer : fabric.nodes[static_cast<size_t>(gpu.node)].gpus)
    if (peer != id && gpu_at(fabric, peer).domain == gpu.domain &&
        !gpu_at(fabric, peer).nics.empty())
      peers.push_back(peer);
  return peers;
}

/// The GPU over whose NICs a GPU reaches the network: itself, or of its peers one by its number, so
/// that GPUs without a NIC spread; -1: there is none.
int32_t find_port(const Fabric& fabric, int32_t id) {
  const Gpu& gpu = gpu_at(fabric, id);
  if (!gpu.nics.empty()) return id;
  const std::vector<int32_t> peers = list_peers(fabric, id);
  return peers.empty() ? -1 : peers[static_cast<size_t>(gpu.device) % peers.size()];
}

NicPath choose_nic(const Fabric& fabric, int32_t port, int32_t way) {
  const std::vector<int32_t>& nics = gpu_at(fabric, port).nics;
  return {port, nics[static_cast<size_t>(way) % nics.size()]};
}

/// The path between two GPUs over these two NICs; nothing when no switch joins them.
std::optional<std::vector<int32_t>> cross_network(const Fabric& fabric, int32_t from,
                                                  const NicPath& sender, int32_t to,
                                                  const NicPath& receiver) {
  std::vector<int32_t> links = cross_nvlink(fabric, from, sender.gpu);
  const Nic& out = nic_at(fabric, sender.nic);
  const Nic& in = nic_at(fabric, receiver.nic);
  cross_nic(fabric, gpu_at(fabric, sender.gpu), out, true, links);
  const int32_t first = leaf_of(fabric, out), last = leaf_of(fabric, in);
  if (!cross_tree(fabric.leaves, first, last, fabric.spine >= 0, links)) return std::nullopt;
  cross_nic(fabric, gpu_at(fabric, receiver.gpu), in, false, links);
  const std::vector<int32_t> last_hop = cross_nvlink(fabric, receiver.gpu, to);
  links.insert(links.end(), last_hop.begin(), last_hop.end());
  return links;
}

}  // namespace

std::optional<std::vector<int32_t>> find_route(const Fabric& fabric, int32_t from_gpu,
                                               int32_t to_gpu, int32_t way) {
  const auto count = static_cast<int32_t>(fabric.gpus.size());
  REFIT_CHECK(from_gpu >= 0 && from_gpu < count && to_gpu >= 0 && to_gpu < count && way >= 0);
  if (from_gpu == to_gpu) return std::vector<int32_t>{};
  const Gpu& from = gpu_at(fabric, from_gpu);
  const Gpu& to = gpu_at(fabric, to_gpu);
  if (from.domain == to.domain) return cross_nvlink(fabric, from_gpu, to_gpu);
  if (has_host_path(from, to)) return cross_host(fabric, from, to);
  const int32_t sender = find_port(fabric, from_gpu), receiver = find_port(fabric, to_gpu);
  if (sender < 0 || receiver < 0) return std::nullopt;
  return cross_network(fabric, from_gpu, choose_nic(fabric, sender, way), to_gpu,
                       choose_nic(fabric, receiver, way));
}

bool is_joined(const Fabric& fabric) {
  return fabric.spine >= 0 || std::ranges::count(fabric.leaves, -1, &Switch::parent) <= 1;
}

int32_t count_ways(const Fabric& fabric, int32_t from_gpu, int32_t to_gpu) {
  const Gpu& from = gpu_at(fabric, from_gpu);
  const Gpu& to = gpu_at(fabric, to_gpu);
  if (from.domain == to.domain || has_host_path(from, to)) return 1;
  const int32_t sender = find_port(fabric, from_gpu), receiver = find_port(fabric, to_gpu);
  if (sender < 0 || receiver < 0) return 1;
  return static_cast<int32_t>(
      std::max(gpu_at(fabric, sender).nics.size(), gpu_at(fabric, receiver).nics.size()));
}

std::vector<int32_t> route(const Fabric& fabric, int32_t from_gpu, int32_t to_gpu, int32_t way) {
  if (auto links = find_route(fabric, from_gpu, to_gpu, way)) return std::move(*links);
  const std::string place = fmt::format("fabric {}", fabric.name);
  const auto name = [&](int32_t gpu) { return vertex_at(fabric, gpu_at(fabric, gpu).vertex).name; };
  const auto rail = [&](int32_t gpu) {
    const int32_t port = find_port(fabric, gpu);
    if (port < 0)
      fail(place, fmt::format("no NIC of {} or of a peer in its NVLink domain and node", name(gpu)),
           "a way to the network");
    return nic_at(fabric, choose_nic(fabric, port, way).nic).rail;
  };
  const int32_t from_rail = rail(from_gpu), to_rail = rail(to_gpu);
  fail(place, fmt::format("no path from {} (rail {}) to {} (rail {}): nothing joins the rails; "
                          "relay through a GPU of the same NVLink domain",
                          name(from_gpu), from_rail, name(to_gpu), to_rail));
}

std::vector<Route> list_routes(const Fabric& fabric, int32_t from_gpu, int32_t to_gpu) {
  const auto count = static_cast<int32_t>(fabric.gpus.size());
  REFIT_CHECK(from_gpu >= 0 && from_gpu < count && to_gpu >= 0 && to_gpu < count);
  if (from_gpu == to_gpu) return {{RouteClass::kSelf, {}}};
  const Gpu& from = gpu_at(fabric, from_gpu);
  const Gpu& to = gpu_at(fabric, to_gpu);
  std::vector<Route> routes;
  if (from.domain == to.domain)
    routes.push_back({RouteClass::kNvlink, cross_nvlink(fabric, from_gpu, to_gpu)});
  if (has_host_path(from, to)) routes.push_back({RouteClass::kHost, cross_host(fabric, from, to)});
  for (const int32_t peer : list_peers(fabric, from_gpu))
    for (const int32_t out : gpu_at(fabric, peer).nics)
      for (const int32_t in : to.nics) {
        const bool one_leaf =
            leaf_of(fabric, nic_at(fabric, out)) == leaf_of(fabric, nic_at(fabric, in));
        if (peer != from_gpu && !one_leaf) continue;
        std::optional<std::vector<int32_t>> links =
            cross_network(fabric, from_gpu, {peer, out}, to_gpu, {to_gpu, in});
        if (!links) continue;
        const RouteClass kind = peer != from_gpu ? RouteClass::kPeerNic
                                : one_leaf       ? RouteClass::kOwnNic
                                                 : RouteClass::kSpine;
        routes.push_back({kind, std::move(*links)});
      }
  std::ranges::stable_sort(routes, {}, &Route::kind);
  return routes;
}

}  // namespace refit
