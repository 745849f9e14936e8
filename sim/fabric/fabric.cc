#include "sim/fabric/fabric.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "sim/fabric/fabric_file.h"

namespace refit {

FabricSource load_fabric_source(const std::string& name_or_path) {
  std::string path = find_data_file("topologies", name_or_path), parameters;
  const size_t slash = name_or_path.rfind('/');
  const size_t colon = name_or_path.find(':', slash == std::string::npos ? 0 : slash);
  if (path.empty() && colon != std::string::npos) {
    path = find_data_file("topologies", name_or_path.substr(0, colon));
    parameters = name_or_path.substr(colon + 1);
  }
  if (path.empty())
    fail("fabric", quote(name_or_path),
         fmt::format("a file or one of: {}", list_data_files("topologies")));
  FabricSource source{.text = read_file(path), .name = path};
  if (path == name_or_path || colon == std::string::npos) return source;
  FabricFile file = parse_fabric_file(source);
  set_parameters(file, parameters, name_or_path);
  return {.text = print_fabric_file(file), .name = name_or_path};
}

NodeShape node_shape(const FabricSource& source) {
  const FabricFile file = parse_fabric_file(source);
  // Without NVLink a domain is a GPU, and a whole node is the least that placement deals in.
  NodeShape shape{
      .gpus_per_node = 0,
      .nodes_per_domain = file.domain_nodes,
      .fixed_nodes = file.hosts.empty() ? file.nodes : static_cast<int32_t>(file.hosts.size()),
      .listed = !file.hosts.empty()};
  for (const NodeKind& kind : file.kinds)
    shape.gpus_per_node = std::max(shape.gpus_per_node, kind.gpus);
  return shape;
}

Fabric make_fabric(const FabricSource& source, int32_t nodes) {
  const FabricFile file = parse_fabric_file(source);
  try {
    return build_fabric(file, nodes);
  } catch (const Error& error) {
    throw Error(source.name + ": " + error.what(), error.kind());
  }
}

}  // namespace refit
