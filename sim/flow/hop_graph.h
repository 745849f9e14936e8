#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/fabric/fabric.h"

namespace refit {

/// A way of a GPU to a site: the links that bytes cross between the two.
struct GpuPort {
  int32_t gpu = -1, site = -1;
  std::vector<int32_t> out, in;
  bool sends = false, receives = false;
};

/// A hop from GPU to GPU: out of a port, across from its site to that of the other port, in.
struct PortHop {
  int32_t from = -1, to = -1;  // of HopGraph::ports
  auto operator<=>(const PortHop&) const = default;
};

/// Where ports meet.
enum class SiteKind : uint8_t { kNvswitch, kBridge, kNetwork, kHost };

/// The links between two sites; not open when one of them is down.
struct SiteWay {
  bool open = false;
  std::vector<int32_t> links;
};

/// A partition of GPUs, and its parts as far as GPUs have ports.
struct GpuGroups {
  std::vector<int32_t> of;  // by GPU
  std::vector<std::vector<int32_t>> members;
};

/// A fabric as the hops that there are. A *site* is where ports meet: an NVSwitch, a bridge, a
/// PCIe hub, or network switches that nothing ever limits between each other. Sites of one *plane*
/// are joined, over links that may bind; a hop stays on its plane. GPUs relay, so that paths over
/// several planes, or over peers' NICs, are several hops with the same links.
///
/// Links of rate 0 are left out, with the ports that need them. Several NICs of a GPU are several
/// ports.
struct HopGraph {
  std::vector<double> rates;                 // by link, bytes/s
  std::vector<GpuPort> ports;                // in order of GPUs
  std::vector<int32_t> first_port;           // by GPU, and one more
  GpuGroups domains;                         // that NVLink or PCIe joins
  GpuGroups rails;                           // that the network joins: one with a spine
  std::vector<int32_t> plane;                // by site
  std::vector<int32_t> position;             // by site: number in its plane
  std::vector<SiteKind> kind;                // by site
  std::vector<std::vector<int32_t>> planes;  // sites
  std::vector<std::vector<SiteWay>> ways;    // by plane; then from * sites + to

  /// Does the site join GPUs of one domain only?
  bool is_local(int32_t site) const {
    return kind[static_cast<size_t>(site)] != SiteKind::kNetwork;
  }
  std::span<const GpuPort> ports_of(int32_t gpu) const {
    const auto g = static_cast<size_t>(gpu);
    return {ports.data() + first_port[g], static_cast<size_t>(first_port[g + 1] - first_port[g])};
  }
  const SiteWay& way(int32_t from_site, int32_t to_site) const {
    const auto p = static_cast<size_t>(plane[static_cast<size_t>(from_site)]);
    const size_t from = static_cast<size_t>(position[static_cast<size_t>(from_site)]);
    const size_t to = static_cast<size_t>(position[static_cast<size_t>(to_site)]);
    return ways[p][from * planes[p].size() + to];
  }
  template <typename Visit>
  void for_each_link(const PortHop& hop, Visit visit) const {
    const GpuPort& from = ports[static_cast<size_t>(hop.from)];
    const GpuPort& to = ports[static_cast<size_t>(hop.to)];
    for (const int32_t link : from.out) visit(link);
    for (const int32_t link : way(from.site, to.site).links) visit(link);
    for (const int32_t link : to.in) visit(link);
  }
};

/// `rates` by link, bytes/s. O(links + switches^2 of a tree whose ways bind).
HopGraph make_hop_graph(const Fabric& fabric, std::span<const double> rates);

}  // namespace refit
