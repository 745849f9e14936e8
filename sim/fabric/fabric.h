#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace refit {

enum class LinkKind : uint8_t { kNvlink, kNic, kSpine, kPcie };

/// One direction of a connection. Nominal (datasheet) rate.
struct Link {
  std::string name;  // "n3.gpu2.nvlink.out", "n3.nic2.in", "leaf1.up"
  LinkKind kind = LinkKind::kNvlink;
  int32_t from = -1, to = -1;  // vertices
  double rate = 0;             // bytes/s
  double latency = 0;          // seconds
  bool operator==(const Link&) const = default;
};

enum class VertexKind : uint8_t { kGpu, kNvswitch, kNic, kLeaf, kSpine, kPcie };
struct Vertex {
  VertexKind kind = VertexKind::kGpu;
  std::string name;
  int32_t index = -1;  // of gpus, domains, nics, leaves or hubs
  bool operator==(const Vertex&) const = default;
};

struct Gpu {
  int32_t vertex = -1;
  int32_t node = -1, domain = -1;
  int32_t device = -1;                      // index in its node
  int32_t nvlink_out = -1, nvlink_in = -1;  // links; -1: no NVSwitch
  std::vector<int32_t> bridges;             // links straight to other GPUs
  std::vector<int32_t> nics;                // its own (nearest) NICs; none: those of a peer
  int32_t pcie_out = -1, pcie_in = -1;      // links to its PCIe hub; -1: never bind
  int32_t hub = -1;
  bool operator==(const Gpu&) const = default;
};

struct Nic {
  int32_t vertex = -1;
  int32_t node = -1;
  int32_t rail = -1;
  int32_t out = -1, in = -1;  // links; -1: not plugged in
  int32_t hub = -1;           // PCIe hub; -1: PCIe never binds
  bool operator==(const Nic&) const = default;
};

/// A switch that NICs or other switches plug into, or a PCIe switch or NUMA node. `up` and `down`
/// are -1 where the way to the parent never binds.
struct Switch {
  int32_t vertex = -1;
  int32_t up = -1, down = -1;  // links
  int32_t parent = -1;         // in the same list; -1: right below the top, where there is one
  bool operator==(const Switch&) const = default;
};

struct Node {
  std::string name;
  std::vector<int32_t> gpus, nics;
  bool operator==(const Node&) const = default;
};

/// A cluster: structure and nominal rates; what of them is achievable, and overheads, belong to the
/// cost model. Vertices and directed links are a graph; the rest are views into it. What never
/// binds has no link: the inside of a switch, a NIC and its PCIe hub, and where nothing else is
/// said a GPU and its own NICs, and leaf and spine. NVLink reaches a GPU by an NVSwitch or by
/// bridges, never both; GPUs that bridges join are one domain.
struct Fabric {
  std::string name;
  std::string default_cost;  // name of a cost model
  std::vector<Vertex> vertices;
  std::vector<Link> links;
  std::vector<Gpu> gpus;
  std::vector<Nic> nics;
  std::vector<Node> nodes;
  std::vector<std::vector<int32_t>> domains;  // NVLink domains: GPUs
  std::vector<std::string> domain_names;
  std::vector<Switch> leaves;  // leaves, and where the file lists them the switches above
  int32_t spine = -1;          // vertex that joins those without a parent; -1: none does
  int32_t rails = 0;
  std::vector<Switch> hubs;    // PCIe
  std::vector<int32_t> hosts;  // by node: vertex that joins its topmost hubs; -1: none
  bool operator==(const Fabric&) const = default;
};

/// Text of a fabric file; docs/fabrics.md describes the keys, fabric_file.h what they become.
struct FabricSource {
  std::string text;  // YAML
  std::string name;  // for messages
};

/// A name of topologies/ or a path, with parameters after a colon where wanted: "dgx-h100:gpus=4"
/// (set_parameters).
FabricSource load_fabric_source(const std::string& name_or_path);

/// What placement needs to know before nodes are counted.
struct NodeShape {
  int32_t gpus_per_node = 0;  // at most
  int32_t nodes_per_domain = 0;
  int32_t fixed_nodes = 0;  // 0: as many as needed
  bool listed = false;      // nodes are listed one by one: they may differ
};
NodeShape node_shape(const FabricSource& source);

/// Makes the fabric with that many nodes (must be `fixed_nodes` where that is given). Ids are in
/// order of nodes, then devices; the last domain may be short of nodes.
Fabric make_fabric(const FabricSource& source, int32_t nodes);

/// GPU of every rank (index: rank), one rank a GPU. Train ranks fill nodes in ascending order; gen
/// ranks that are not train ranks follow from the next NVLink domain on. Fails when that needs more
/// than `fixed_nodes`.
struct PlacedRanks {
  std::vector<int32_t> gpu;  // by rank; -1: a rank number in neither side
  int32_t nodes = 0;         // to make the fabric with
};
PlacedRanks place_ranks(const NodeShape& shape, std::span<const int32_t> train,
                        std::span<const int32_t> gen);

/// The same on a fabric that is there, whatever its nodes and domains: gen ranks start at the first
/// GPU that shares neither node nor NVLink domain with a train rank. `place`, the text of a place
/// file, says otherwise where it is not empty (docs/fabrics.md). `nodes` becomes the number of
/// nodes up to the last one used.
PlacedRanks place_ranks(const Fabric& fabric, std::span<const int32_t> train,
                        std::span<const int32_t> gen, const FabricSource& place = {});

/// The fabric without some of its nodes, GPUs and NICs, given by name ("n3", "n[0-3].gpu7",
/// "*.nic2", lists of them). What is left keeps its names and order, not its numbers. A name that
/// nothing has is refused.
Fabric exclude(const Fabric& fabric, std::span<const std::string> names);

/// Links of the path from one GPU to another, in order. Same domain: NVLink, over as few bridges as
/// possible. Same node, another domain, PCIe known: the host. Else the sender's own NIC, the
/// receiver's own NIC (with several per GPU: number `way` of them, modulo), and the switches
/// between them where they have finite links; a GPU without a NIC of its own uses those of a peer
/// of its domain and node, over NVLink. Empty when from == to. Fails when there is none (rail-only,
/// different rails): a relay has to be found by who asks. O(depth of the trees), for bridges O(size
/// of the domain).
std::vector<int32_t> route(const Fabric& fabric, int32_t from_gpu, int32_t to_gpu, int32_t way = 0);

/// The same, or nothing where there is none.
std::optional<std::vector<int32_t>> find_route(const Fabric& fabric, int32_t from_gpu,
                                               int32_t to_gpu, int32_t way = 0);

/// Do switches join all NICs, as those of a rail-only network do not?
bool is_joined(const Fabric& fabric);

/// Paths that a message takes side by side, an equal part on each of `way` 0 .. count - 1: as many
/// as the end with more NICs has. So do NICs that are merged into one (NCCL's
/// NCCL_NET_MERGE_LEVEL, aws-ofi-nccl's rails).
int32_t count_ways(const Fabric& fabric, int32_t from_gpu, int32_t to_gpu);

/// What a path crosses, from near to far.
enum class RouteClass : uint8_t {
  kSelf,     // nothing
  kNvlink,   // NVLink
  kHost,     // PCIe, in a node
  kOwnNic,   // own NICs that share a leaf
  kPeerNic,  // over NVLink to a peer, whose NIC shares a leaf with one of the receiver's (PXN)
  kSpine,    // own NICs of different leaves
};
struct Route {
  RouteClass kind = RouteClass::kSelf;
  std::vector<int32_t> links;
  bool operator==(const Route&) const = default;
};

/// Every path of the classes that join the two GPUs, nearest class first; one for each pair of
/// NICs, and of peer NICs those of the sender's node. Empty when nothing joins them.
std::vector<Route> list_routes(const Fabric& fabric, int32_t from_gpu, int32_t to_gpu);

/// A minimum cut: its rate, which is that of the maximum flow, bytes/s, and the links it cuts.
struct FabricCut {
  double rate = 0;
  std::vector<int32_t> links;
};

/// The minimum cut between `inside` (GPUs) and everything outside it, for what flows into it, or
/// out: over the graph with the given link rates. Every GPU may relay. Of several the one nearest
/// to `inside`. Nothing when one of the two is empty. O(links), plus a flow between switches.
FabricCut minimum_cut(const Fabric& fabric, std::span<const int32_t> inside, bool into,
                      std::span<const double> link_rate);

}  // namespace refit
