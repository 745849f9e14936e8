// refit topo import, show, validate: fabrics.

#include <fmt/core.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/units.h"
#include "sim/cli/commands.h"
#include "sim/cli/print.h"
#include "sim/fabric/import.h"
#include "sim/fabric/report.h"

namespace refit::cli {
namespace {

using Json = nlohmann::ordered_json;

Json counts_json(const Fabric& fabric) {
  const FabricCounts counts = count_parts(fabric);
  return {{"fabric", fabric.name},   {"nodes", counts.nodes},
          {"gpus", counts.gpus},     {"nvlink_domains", counts.domains},
          {"nics", counts.nics},     {"rails", counts.rails},
          {"leaves", counts.leaves}, {"links", counts.links}};
}

/// A fabric whose nodes are not counted is shown with one whole NVLink domain and a node of the
/// next.
Fabric load_fabric(const TopoOptions& options) {
  const FabricSource source = load_fabric_source(options.fabric);
  const NodeShape shape = node_shape(source);
  const int32_t nodes = options.nodes > 0       ? options.nodes
                        : shape.fixed_nodes > 0 ? shape.fixed_nodes
                                                : shape.nodes_per_domain + 1;
  Fabric fabric = make_fabric(source, nodes);
  return options.exclude.empty() ? fabric : exclude(fabric, options.exclude);
}

/// Graphviz draws; the text goes in by a pipe, so that no name reaches a shell.
void write_svg(const std::string& dot, const std::string& path) {
  if (find_program("dot").empty())
    throw Error("--svg: found no program dot, expected Graphviz; --dot writes what it reads",
                ErrorKind::kWork);
  const std::string drawn = path + ".drawn";
  std::string quoted = "'";
  for (const char c : drawn) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  FILE* pipe = popen(("dot -Tsvg -o " + quoted + "'").c_str(), "w");
  if (pipe == nullptr) throw Error("dot: cannot be started", ErrorKind::kWork);
  const bool written = std::fwrite(dot.data(), 1, dot.size(), pipe) == dot.size();
  const bool ended = pclose(pipe) == 0;
  if (!written || !ended) {
    std::filesystem::remove(drawn);
    throw Error(path + ": dot could not draw it", ErrorKind::kWork);
  }
  std::filesystem::rename(drawn, path);
}

}  // namespace

int run_topo_import(const Common& common, const TopoImportOptions& options) {
  ImportOptions how;
  how.gpu = options.gpu;
  if (!options.name.empty())
    how.name = options.name;
  else
    how.name = std::filesystem::path(options.output).stem().string();
  if (how.name.empty() || how.name == "-") how.name = "imported";
  if (!options.cost.empty()) how.cost = options.cost;
  if (!options.nvlink.empty()) how.nvlink = parse_rate(options.nvlink, "--nvlink");
  if (!options.nic.empty()) how.nic = parse_rate(options.nic, "--nic");
  std::vector<ImportFile> files;
  for (const std::string& name : options.files) {
    if (std::filesystem::exists(name)) {
      files.push_back({read_file(name), name});
    } else {
      const FabricSource named = load_fabric_source(name);
      files.push_back({named.text, named.name});
    }
  }
  std::vector<std::string> notes;
  const FabricFile file = import_fabric(files, how, &notes);
  log_notes(common.quiet, notes);
  std::string text = "# Made by: refit topo import";
  for (const std::string& name : options.files)
    text += " " + std::filesystem::path(name).filename().string();
  for (char& c : text)
    if (c == '\n' || c == '\r') c = ' ';
  text += "\n";
  if (file.hosts.empty() || file.network == NetworkKind::kFlat)
    text += "# Latencies are those of topologies/; the network is not known.\n";
  text += print_fabric_file(file);
  if (options.output == "-") {
    fmt::print("{}", text);
    return 0;
  }
  write_file(options.output, text);
  const int32_t nodes = file.hosts.empty() ? 1 : static_cast<int32_t>(file.hosts.size());
  const Fabric fabric = build_fabric(file, nodes);
  if (common.json) {
    fmt::print("{}\n", counts_json(fabric).dump(2));
    return 0;
  }
  fmt::print("{}{}: {} faults (refit topo validate)\n", print_tree(fabric), options.output,
             find_faults(fabric).size());
  return 0;
}

int run_topo_show(const Common& common, const TopoOptions& options) {
  const Fabric fabric = load_fabric(options);
  if (!options.dot.empty() && options.dot != "-") write_file(options.dot, print_dot(fabric));
  if (!options.svg.empty()) write_svg(print_dot(fabric), options.svg);
  if (options.dot == "-")
    fmt::print("{}", print_dot(fabric));
  else if (common.json)
    fmt::print("{}\n", counts_json(fabric).dump(2));
  else
    fmt::print("{}", print_tree(fabric));
  return 0;
}

int run_topo_validate(const Common& common, const TopoOptions& options) {
  const Fabric fabric = load_fabric(options);
  const std::vector<std::string> faults = find_faults(fabric);
  if (common.json) {
    Json json = counts_json(fabric);
    json["ok"] = faults.empty();
    json["faults"] = faults;
    fmt::print("{}\n", json.dump(2));
  } else if (faults.empty()) {
    const FabricCounts counts = count_parts(fabric);
    fmt::print("{}: right: {} nodes, {} GPUs, {} NICs, {} links\n", options.fabric, counts.nodes,
               counts.gpus, counts.nics, counts.links);
  } else {
    for (const std::string& fault : faults) fmt::print("{}: {}\n", options.fabric, fault);
  }
  return faults.empty() ? 0 : 1;
}

}  // namespace refit::cli
