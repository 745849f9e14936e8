#include "sim/fabric/fabric.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/document.h"
#include "base/error.h"
#include "base/file.h"

namespace refit {
namespace {

constexpr int32_t kMostGpusPerNode = 1024;
constexpr int32_t kMostGpus = 1 << 20;
constexpr double kMostOversubscription = 1e6;

enum class NetworkKind { kRailOptimized, kRailOnly, kFlat };

/// A port: its rate in one direction and the latency of its link.
struct Port {
  double rate = 0;
  double latency = 0;
};

/// A fabric file, read.
struct Recipe {
  std::string name, default_cost;
  int32_t fixed_nodes = 0;
  int32_t gpus = 0, nics = 0;  // per node
  bool has_nvlink = false;
  Port nvlink, nic;
  int32_t domain_nodes = 1;
  NetworkKind network = NetworkKind::kFlat;
  double oversubscription = 1;
  double spine_latency = 0;
};

int32_t read_count(const Value& value, int32_t most) {
  return static_cast<int32_t>(value.as_int(1, most));
}

const std::string& read_name(const Value& value) {
  const std::string& text = value.as_text();
  if (text.empty()) fail(value.place(), "an empty text", "a name");
  return text;
}

void read_node(const Value& node, Recipe& recipe) {
  recipe.gpus = read_count(node.at("gpus"), kMostGpusPerNode);
  if (const Value* nvlink = node.find("nvlink")) {
    recipe.has_nvlink = true;
    recipe.nvlink = {nvlink->as_rate(), node.at("nvlink_latency").as_time()};
  }
  recipe.nics = read_count(node.at("nics"), kMostGpusPerNode);
  recipe.nic = {node.at("nic").as_rate(), node.at("nic_latency").as_time()};
  node.finish();
}

void read_network(const Value& network, Recipe& recipe) {
  const Value& kind = network.at("kind");
  if (kind.as_text() == "rail-optimized") {
    recipe.network = NetworkKind::kRailOptimized;
    const Value& ratio = network.at("oversubscription");
    recipe.oversubscription = ratio.as_number();
    if (!(recipe.oversubscription >= 1 && recipe.oversubscription <= kMostOversubscription))
      fail(ratio.place(), ratio.as_text(), fmt::format("1 to {:g}", kMostOversubscription));
    if (recipe.oversubscription > 1)
      if (const Value* latency = network.find("latency")) recipe.spine_latency = latency->as_time();
  } else if (kind.as_text() == "rail-only") {
    recipe.network = NetworkKind::kRailOnly;
  } else if (kind.as_text() == "flat") {
    recipe.network = NetworkKind::kFlat;
  } else {
    fail(kind.place(), quote(kind.as_text()), "rail-optimized, rail-only or flat");
  }
  network.finish();
}

Recipe read_recipe(const FabricSource& source) {
  const Value file = parse_document(source.text, source.name, /*json=*/false);
  Recipe recipe;
  recipe.name = read_name(file.at("name"));
  recipe.default_cost = read_name(file.at("default_cost"));
  if (const Value* nodes = file.find("nodes")) recipe.fixed_nodes = read_count(*nodes, kMostGpus);
  read_node(file.at("node"), recipe);
  if (recipe.has_nvlink) {
    const Value& domain = file.at("domain");
    recipe.domain_nodes = read_count(domain.at("nodes"), kMostGpus);
    domain.finish();
  }
  read_network(file.at("network"), recipe);
  file.finish();
  return recipe;
}

/// Builds a fabric from its recipe, part by part.
class Generator {
 public:
  Generator(const Recipe& recipe, int32_t nodes) : recipe_(recipe), node_count_(nodes) {}

  Fabric make() {
    fabric_.name = recipe_.name;
    fabric_.default_cost = recipe_.default_cost;
    fabric_.rails = recipe_.nics;
    fabric_.nodes.resize(static_cast<size_t>(node_count_));
    for (int32_t n = 0; n < node_count_; ++n)
      fabric_.nodes[static_cast<size_t>(n)].name = fmt::format("n{}", n);
    for (int32_t n = 0; n < node_count_; ++n) add_gpus(n);
    add_domains();
    add_leaves();
    for (int32_t n = 0; n < node_count_; ++n) add_nics(n);
    own_nics();
    if (recipe_.network == NetworkKind::kRailOptimized) add_spine();
    return std::move(fabric_);
  }

 private:
  int32_t add_vertex(VertexKind kind, std::string name, int32_t index) {
    fabric_.vertices.push_back({kind, std::move(name), index});
    return static_cast<int32_t>(fabric_.vertices.size()) - 1;
  }

  int32_t add_link(std::string name, LinkKind kind, int32_t from, int32_t to, const Port& port) {
    fabric_.links.push_back({std::move(name), kind, from, to, port.rate, port.latency});
    return static_cast<int32_t>(fabric_.links.size()) - 1;
  }

  void add_gpus(int32_t n) {
    Node& node = fabric_.nodes[static_cast<size_t>(n)];
    for (int32_t device = 0; device < recipe_.gpus; ++device) {
      const int32_t id = static_cast<int32_t>(fabric_.gpus.size());
      Gpu gpu;
      gpu.vertex = add_vertex(VertexKind::kGpu, fmt::format("{}.gpu{}", node.name, device), id);
      gpu.node = n;
      gpu.domain = recipe_.has_nvlink ? n / recipe_.domain_nodes : id;
      gpu.device = device;
      node.gpus.push_back(id);
      fabric_.gpus.push_back(std::move(gpu));
    }
  }

  void add_domains() {
    fabric_.domains.resize(static_cast<size_t>(fabric_.gpus.back().domain) + 1);
    for (int32_t g = 0; g < static_cast<int32_t>(fabric_.gpus.size()); ++g)
      fabric_.domains[static_cast<size_t>(fabric_.gpus[static_cast<size_t>(g)].domain)].push_back(
          g);
    for (int32_t d = 0; d < static_cast<int32_t>(fabric_.domains.size()); ++d) {
      fabric_.domain_names.push_back(fmt::format("d{}", d));
      if (!recipe_.has_nvlink) continue;
      const int32_t nvswitch = add_vertex(VertexKind::kNvswitch, fmt::format("d{}.nvswitch", d), d);
      for (const int32_t g : fabric_.domains[static_cast<size_t>(d)]) {
        Gpu& gpu = fabric_.gpus[static_cast<size_t>(g)];
        const std::string name = fabric_.vertices[static_cast<size_t>(gpu.vertex)].name + ".nvlink";
        gpu.nvlink_out =
            add_link(name + ".out", LinkKind::kNvlink, gpu.vertex, nvswitch, recipe_.nvlink);
        gpu.nvlink_in =
            add_link(name + ".in", LinkKind::kNvlink, nvswitch, gpu.vertex, recipe_.nvlink);
      }
    }
  }

  void add_leaves() {
    const int32_t count = recipe_.network == NetworkKind::kFlat ? 1 : recipe_.nics;
    for (int32_t leaf = 0; leaf < count; ++leaf)
      fabric_.leaves.push_back(
          {.vertex = add_vertex(VertexKind::kLeaf, fmt::format("leaf{}", leaf), leaf)});
  }

  void add_nics(int32_t n) {
    Node& node = fabric_.nodes[static_cast<size_t>(n)];
    for (int32_t rail = 0; rail < recipe_.nics; ++rail) {
      const int32_t id = static_cast<int32_t>(fabric_.nics.size());
      const std::string name = fmt::format("{}.nic{}", node.name, rail);
      const size_t leaf = recipe_.network == NetworkKind::kFlat ? 0 : static_cast<size_t>(rail);
      const int32_t leaf_vertex = fabric_.leaves[leaf].vertex;
      Nic nic;
      nic.vertex = add_vertex(VertexKind::kNic, name, id);
      nic.node = n;
      nic.rail = rail;
      nic.out = add_link(name + ".out", LinkKind::kNic, nic.vertex, leaf_vertex, recipe_.nic);
      nic.in = add_link(name + ".in", LinkKind::kNic, leaf_vertex, nic.vertex, recipe_.nic);
      node.nics.push_back(id);
      fabric_.nics.push_back(nic);
    }
  }

  void own_nics() {
    for (const Node& node : fabric_.nodes) {
      const size_t gpus = node.gpus.size(), nics = node.nics.size();
      for (size_t i = 0; i < std::max(gpus, nics); ++i) {
        const size_t g = nics >= gpus ? i * gpus / nics : i;
        const size_t nic = nics >= gpus ? i : i * nics / gpus;
        fabric_.gpus[static_cast<size_t>(node.gpus[g])].nics.push_back(node.nics[nic]);
      }
    }
  }

  void add_spine() {
    fabric_.spine = add_vertex(VertexKind::kSpine, "spine", 0);
    if (recipe_.oversubscription <= 1) return;
    const Port port = {node_count_ * recipe_.nic.rate / recipe_.oversubscription,
                       recipe_.spine_latency};
    for (Leaf& leaf : fabric_.leaves) {
      const std::string name = fabric_.vertices[static_cast<size_t>(leaf.vertex)].name;
      leaf.up = add_link(name + ".up", LinkKind::kSpine, leaf.vertex, fabric_.spine, port);
      leaf.down = add_link(name + ".down", LinkKind::kSpine, fabric_.spine, leaf.vertex, port);
    }
  }

  const Recipe& recipe_;
  const int32_t node_count_;
  Fabric fabric_;
};

}  // namespace

FabricSource load_fabric_source(const std::string& name_or_path) {
  const std::string path = find_data_file("topologies", name_or_path);
  if (path.empty())
    fail("fabric", quote(name_or_path),
         fmt::format("a file or one of: {}", list_data_files("topologies")));
  return {.text = read_file(path), .name = path};
}

NodeShape node_shape(const FabricSource& source) {
  const Recipe recipe = read_recipe(source);
  // Without NVLink a domain is a GPU, and a whole node is the least that placement deals in.
  return {.gpus_per_node = recipe.gpus,
          .nodes_per_domain = recipe.domain_nodes,
          .fixed_nodes = recipe.fixed_nodes};
}

Fabric make_fabric(const FabricSource& source, int32_t nodes) {
  const Recipe recipe = read_recipe(source);
  if (recipe.fixed_nodes > 0 && nodes != recipe.fixed_nodes)
    fail(source.name, fmt::format("{} nodes asked for", nodes),
         fmt::format("the {} nodes of the fabric", recipe.fixed_nodes));
  const int32_t most = kMostGpus / std::max(recipe.gpus, recipe.nics);
  if (nodes < 1 || nodes > most)
    fail(source.name, fmt::format("{} nodes", nodes), fmt::format("1 to {}", most));
  return Generator(recipe, nodes).make();
}

}  // namespace refit
