#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace refit {

enum class LinkKind : uint8_t { kNvlink, kNic, kSpine };

/// One direction of a connection. Nominal (datasheet) rate.
struct Link {
  std::string name;  // "n3.gpu2.nvlink.out", "n3.nic2.in", "leaf1.up"
  LinkKind kind = LinkKind::kNvlink;
  int32_t from = -1, to = -1;  // vertices
  double rate = 0;             // bytes/s
  double latency = 0;          // seconds
  bool operator==(const Link&) const = default;
};

enum class VertexKind : uint8_t { kGpu, kNvswitch, kNic, kLeaf, kSpine };
struct Vertex {
  VertexKind kind = VertexKind::kGpu;
  std::string name;
  int32_t index = -1;  // of gpus, domains, nics; leaf or spine number
  bool operator==(const Vertex&) const = default;
};

struct Gpu {
  int32_t vertex = -1;
  int32_t node = -1, domain = -1;
  int32_t device = -1;                      // index in its node
  int32_t nvlink_out = -1, nvlink_in = -1;  // links; -1: no NVLink
  std::vector<int32_t> nics;                // its own (nearest) NICs
  bool operator==(const Gpu&) const = default;
};

struct Nic {
  int32_t vertex = -1;
  int32_t node = -1;
  int32_t rail = -1;
  int32_t out = -1, in = -1;  // links
  bool operator==(const Nic&) const = default;
};

/// A switch that NICs plug into. `up` and `down` are -1 where the way to the spine never binds.
struct Leaf {
  int32_t vertex = -1;
  int32_t up = -1, down = -1;  // links
  bool operator==(const Leaf&) const = default;
};

struct Node {
  std::string name;
  std::vector<int32_t> gpus, nics;
  bool operator==(const Node&) const = default;
};

/// A cluster: structure and nominal rates; what of them is achievable, and overheads, belong to the
/// cost model. Vertices and directed links are a graph; the rest are views into it. Three
/// connections have no link because they never bind: between a GPU and its own NICs, within a
/// switch, and between leaf and spine at full bisection.
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
  std::vector<Leaf> leaves;
  int32_t spine = -1;  // vertex that joins the leaves; -1: none does
  int32_t rails = 0;
  bool operator==(const Fabric&) const = default;
};

/// Text of a fabric file. Rates are those of one direction, latencies those of one link. Keys:
///
/// - `name`, `default_cost`: text.
/// - `nodes`: how many nodes there are; optional, else as many as are needed.
/// - `node.gpus`: 1 or more.
/// - `node.nvlink`, `nvlink_latency`: port of a GPU to its NVSwitch. Left out: no NVLink, and every
///   GPU is a domain of its own.
/// - `node.nics`, `nic`, `nic_latency`: 1 or more. With more NICs than GPUs a GPU owns several,
///   with fewer GPUs share one: NIC i belongs to GPU floor(i gpus / nics), or GPU g to NIC floor(g
///   nics / gpus). The rail of a NIC is its number in the node.
/// - `domain.nodes`: nodes that one NVLink domain spans; only with NVLink.
/// - `network.kind`: `rail-optimized` (a leaf per rail, a spine), `rail-only` (leaves that nothing
///   joins) or `flat` (one switch).
/// - `network.oversubscription`: rail-optimized only, 1 or more: rate of a leaf's NICs over that
///   of its way to the spine. 1 never binds.
/// - `network.latency`: of a link between leaf and spine; optional, with oversubscription > 1.
struct FabricSource {
  std::string text;  // YAML
  std::string name;  // for messages
};

/// A name of topologies/ or a path.
FabricSource load_fabric_source(const std::string& name_or_path);

/// What placement needs to know before nodes are counted.
struct NodeShape {
  int32_t gpus_per_node = 0;
  int32_t nodes_per_domain = 0;
  int32_t fixed_nodes = 0;  // 0: as many as needed
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

/// Links of the path from one GPU to another, in order. Same domain: NVLink. Else the sender's own
/// NIC, the receiver's own NIC (with several per GPU: number `way` of them, modulo), and the spine
/// between leaves where it has finite links. Empty when from == to. Fails when there is none
/// (rail-only, different rails): a relay has to be found by who asks.
std::vector<int32_t> route(const Fabric& fabric, int32_t from_gpu, int32_t to_gpu, int32_t way = 0);

/// Rate at which everything outside `inside` (GPUs) can send into it, or it out: a maximum flow
/// over the graph with the given link rates, bytes/s. Every GPU may relay. 0 when one of the two is
/// empty. O(links), plus a flow between domains and leaves.
double cut_capacity(const Fabric& fabric, std::span<const int32_t> inside, bool into,
                    std::span<const double> link_rate);

}  // namespace refit
