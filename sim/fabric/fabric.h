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
  int32_t device = -1;              // index in its node
  int32_t nvlink_out = -1, nvlink_in = -1;  // links; -1: no NVLink
  std::vector<int32_t> nics;        // its own (nearest) NICs
  bool operator==(const Gpu&) const = default;
};

struct Nic {
  int32_t vertex = -1;
  int32_t node = -1;
  int32_t rail = -1;
  int32_t out = -1, in = -1;  // links
  bool operator==(const Nic&) const = default;
};

struct Node {
  std::string name;
  std::vector<int32_t> gpus, nics;
  bool operator==(const Node&) const = default;
};

/// A cluster: structure and nominal rates; what of them is achievable, and overheads, belong to the cost model. Vertices and
/// directed links are a graph (Boost.Graph runs on them inside the .cc files); the rest are views into it.
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
  int32_t rails = 0;
  bool operator==(const Fabric&) const = default;
};

/// Reads a fabric: a name or path of topologies/*.yaml. `nodes` overrides how many nodes the generator makes (0: the file's own count, else as
/// many as `gpus_needed`, with train and gen ranks on separate NVLink domains, which the caller asks for by `place_ranks`).
struct FabricSource {
  std::string text;  // YAML
  std::string name;  // for messages
};
FabricSource load_fabric_source(const std::string& name_or_path);

/// Shape of the generator, before nodes are counted: what placement needs.
struct NodeShape {
  int32_t gpus_per_node = 0;
  int32_t nodes_per_domain = 0;  // used ones
  int32_t fixed_nodes = 0;       // 0: as many as needed
};
NodeShape node_shape(const FabricSource& source);

/// Makes the fabric with that many nodes (must be `fixed_nodes` where that is given). Ids are in order of nodes, then devices.
Fabric make_fabric(const FabricSource& source, int32_t nodes);

/// Links of the path from one GPU to another, in order. Same domain: NVLink. Else the sender's own NIC, the receiver's own NIC (with several per
/// GPU: number `way` of them, modulo), and the spine between leaves where it has finite links. Empty when from == to.
/// Fails when there is none.
std::vector<int32_t> route(const Fabric& fabric, int32_t from_gpu, int32_t to_gpu, int32_t way = 0);

/// Rate at which everything outside `inside` (GPUs) can send into it, or it out: a maximum flow over the graph with the given
/// link rates, bytes/s.
double cut_capacity(const Fabric& fabric, std::span<const int32_t> inside, bool into, std::span<const double> link_rate);

/// GPU of every rank (index: rank). Default placement: train ranks fill nodes first, then gen ranks that are not train ranks start on a new NVLink domain.
/// Result also says how many nodes that takes. `explicit_gpus` (rank -> GPU) overrides when not empty.
struct PlacedRanks {
  std::vector<int32_t> gpu;  // by rank; -1: a rank number in neither side
  int32_t nodes = 0;
};
PlacedRanks place_ranks(const NodeShape& shape, std::span<const int32_t> train, std::span<const int32_t> gen);

}  // namespace refit
