#include "sim/fabric/import.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include "base/error.h"
#include "sim/fabric/names.h"
#include "sim/fabric/readers.h"

namespace refit {
namespace {

enum class FileKind { kNcclXml, kSmiTopo, kInfiniband, kSlurm, kFabric };

bool finds(const std::string& text, const char* pattern) {
  return std::regex_search(text, std::regex(pattern, std::regex::multiline | std::regex::icase));
}

/// A line that begins with GPU0 (or another) and goes on as a row or header does.
bool has_gpu_matrix(const std::string& text) {
  for (const std::string_view line : split_lines(text)) {
    const std::vector<std::string_view> words = split_words(line.substr(0, 200));
    if (words.size() < 2 || words[0].find("GPU") > 4) continue;
    for (const std::string_view next :
         {"X", "NV", "GPU", "CPU", "PIX", "PXB", "PHB", "NODE", "SYS"})
      if (words[1].starts_with(next)) return true;
  }
  return false;
}

/// What the file is, from its content; what it should not be is refused by name.
FileKind find_kind(const ImportFile& file) {
  const std::string& text = file.text;
  const std::string_view start = trim(text);
  constexpr const char* kExpected =
      "NCCL topology XML, nvidia-smi topo -m, ibnetdiscover, iblinkinfo, a Slurm topology.conf "
      "or a fabric of Refit";
  if (start.empty()) fail(file.name, "an empty file", kExpected);
  if (start[0] == '<') return FileKind::kNcclXml;
  if (finds(text, "rocm|amd-smi")) fail(file.name, "output of rocm-smi", kExpected);
  if (finds(text, "^Hca\\s+\\d+\\s")) fail(file.name, "an ibsim configuration", kExpected);
  if (finds(text, "==\\(|^(Switch|Ca)\\s+\\d+\\s+\"|^(CA|SW)\\s+\\d+\\s+\\d+\\s+0x"))
    return FileKind::kInfiniband;
  if (finds(text, "^#?\\s*(SwitchName|BlockName)=")) return FileKind::kSlurm;
  if (has_gpu_matrix(text)) return FileKind::kSmiTopo;
  if (finds(text, "^default_cost:")) return FileKind::kFabric;
  if (finds(text, "^npus_count:")) fail(file.name, "a network of ASTRA-sim", kExpected);
  if (finds(text, "^Tiers\\s+\\d")) fail(file.name, "a topology of htsim", kExpected);
  if (finds(text, "^switches:")) fail(file.name, "a model of topograph", kExpected);
  if (std::regex_search(text, std::regex(R"(^\d+ \d+ \d+ \d+ \d+( \d+)? ?\w*\s*\n)")))
    fail(file.name, "a topology of SimAI", kExpected);
  fail(file.name, "a file of no kind that is known", kExpected);
}

/// Hosts of several network files: switches from one, NVLink domains from another.
void merge_network(Network& network, Network&& more, const std::string& place) {
  if (!network.switches.empty() && !more.switches.empty())
    fail(place, "switches, which another file gives too", "one file with switches");
  if (!more.switches.empty()) network.switches = std::move(more.switches);
  if (network.hosts.empty()) {
    network.hosts = std::move(more.hosts);
    return;
  }
  std::map<std::string, NetworkHost*> known;
  for (NetworkHost& host : network.hosts) known[host.name] = &host;
  std::vector<NetworkHost> added;
  for (NetworkHost& host : more.hosts) {
    const auto it = known.find(host.name);
    if (it == known.end()) {
      added.push_back(std::move(host));
      continue;
    }
    if (!host.domain.empty()) it->second->domain = host.domain;
    if (!host.nics.empty()) it->second->nics = std::move(host.nics);
  }
  network.hosts.insert(network.hosts.end(), std::make_move_iterator(added.begin()),
                       std::make_move_iterator(added.end()));
}

/// "mlx5_3" and "HCA-4" are the same card: the number, from 0.
int nic_number(const std::string& name) {
  const size_t digits = name.find_first_of("0123456789", name.starts_with("mlx") ? 5 : 0);
  if (digits == std::string::npos) return 0;
  const int number = std::stoi(name.substr(digits, 6));
  return name.starts_with("HCA-") ? number - 1 : number;
}

class Merger {
 public:
  Merger(const ImportOptions& options, Notes& notes) : options_(options), notes_(notes) {
    file_.name = options.name;
    file_.default_cost = options.cost;
  }

  FabricFile merge(std::vector<NodeKind> nodes, const Network& network, const std::string& place) {
    if (nodes.empty()) {
      std::set<std::string> nics;
      for (const NetworkHost& host : network.hosts)
        for (const NetworkNic& nic : host.nics) nics.insert(nic.name);
      fail(place,
           fmt::format("{} hosts with {} names of NICs, but nothing of their GPUs",
                       network.hosts.size(), nics.size()),
           "a node file too: NCCL XML, nvidia-smi topo -m or a fabric such as dgx-h100");
    }
    if (network.hosts.empty())
      alone(std::move(nodes));
    else
      together(std::move(nodes), network);
    for (NodeKind& kind : file_.kinds)
      for (NicPort& nic : kind.nics) {
        if (nic.rate == 0) nic.rate = options_.nic;
        if (nic.rate == 0)
          fail(place, fmt::format("no rate of NIC {}", nic.name),
               "--nic RATE, or a network file that says it");
      }
    return std::move(file_);
  }

 private:
  /// Position of the kind, which is added if it is new.
  int32_t find_kind_of(NodeKind&& node) {
    const auto it = std::ranges::find(file_.kinds, node);
    if (it != file_.kinds.end()) return static_cast<int32_t>(it - file_.kinds.begin());
    file_.kinds.push_back(std::move(node));
    return static_cast<int32_t>(file_.kinds.size()) - 1;
  }

  void alone(std::vector<NodeKind>&& nodes) {
    file_.network = NetworkKind::kFlat;
    if (nodes.size() == 1) {
      file_.kinds = std::move(nodes);
      notes_.push_back("no network file: as many such nodes as are needed, all NICs on one switch");
      return;
    }
    notes_.push_back("no network file: all NICs on one switch");
    for (NodeKind& node : nodes)
      file_.hosts.push_back({.name = fmt::format("host{}", file_.hosts.size()),
                             .kind = find_kind_of(std::move(node))});
    if (file_.kinds.size() > 1)
      for (size_t k = 0; k < file_.kinds.size(); ++k)
        file_.kinds[k].name = fmt::format("kind{}", k);
  }

  void together(std::vector<NodeKind>&& nodes, const Network& network) {
    for (NodeKind& node : nodes) find_kind_of(std::move(node));
    if (file_.kinds.size() > 1)
      fail("node files", fmt::format("{} kinds of nodes", file_.kinds.size()),
           "one, of which all hosts of the network file are");
    NodeKind& kind = file_.kinds[0];
    file_.switches = network.switches;
    file_.network = file_.switches.empty() ? NetworkKind::kFlat : NetworkKind::kSwitches;
    std::map<std::string, int32_t> switch_at;
    for (size_t s = 0; s < file_.switches.size(); ++s)
      switch_at[file_.switches[s].name] = static_cast<int32_t>(s);
    // Rails of the network: the numbers that its NICs have.
    std::set<int> numbers;
    for (const NetworkHost& host : network.hosts)
      for (const NetworkNic& nic : host.nics)
        if (!nic.name.empty()) numbers.insert(nic_number(nic.name));
    size_t missing = 0, partial = 0;
    for (const NetworkHost& host : network.hosts) {
      HostEntry& entry = file_.hosts.emplace_back();
      entry.name = host.name;
      entry.domain = kind.nvswitch ? host.domain : "";
      if (file_.network != NetworkKind::kSwitches) continue;
      entry.leaves.assign(kind.nics.size(), -1);
      for (const NetworkNic& nic : host.nics) {
        if (nic.name.empty()) {
          std::ranges::fill(entry.leaves, switch_at.at(nic.leaf));
          continue;
        }
        const size_t n = find_nic(kind, nic, numbers);
        if (entry.leaves[n] >= 0)
          fail(nic.place, fmt::format("NIC {} of {} again", nic.name, host.name), "it once");
        entry.leaves[n] = switch_at.at(nic.leaf);
        if (kind.nics[n].rate == 0) kind.nics[n].rate = nic.rate;
        if (nic.rate != kind.nics[n].rate && nic.rate > 0)
          file_.changes.push_back({.links = host.name + "." + kind.nics[n].name, .rate = nic.rate});
      }
      const auto unplugged = static_cast<size_t>(std::ranges::count(entry.leaves, -1));
      missing += unplugged;
      partial += unplugged > 0 ? 1 : 0;
    }
    if (partial > 0)
      notes_.push_back(
          fmt::format("{} hosts have fewer NICs in the network file than the node has, {} in all: "
                      "not plugged in",
                      partial, missing));
  }

  /// The NIC of the node that the network file means: by name, else by number where there are as
  /// many.
  static size_t find_nic(const NodeKind& kind, const NetworkNic& nic,
                         const std::set<int>& numbers) {
    const auto named = std::ranges::find(kind.nics, nic.name, &NicPort::name);
    if (named != kind.nics.end()) return static_cast<size_t>(named - kind.nics.begin());
    if (numbers.size() != kind.nics.size())
      fail(nic.place, fmt::format("NIC {}, one of {} of the network", nic.name, numbers.size()),
           fmt::format("one of the {} of the node by name{}, or as many", kind.nics.size(),
                       kind.nics.empty() ? "" : ", such as " + kind.nics[0].name));
    return static_cast<size_t>(std::distance(numbers.begin(), numbers.find(nic_number(nic.name))));
  }

  const ImportOptions& options_;
  Notes& notes_;
  FabricFile file_;
};

}  // namespace

FabricFile import_fabric(const std::vector<ImportFile>& files, const ImportOptions& options,
                         std::vector<std::string>* notes) {
  if (files.empty()) fail("import", "no file", "at least one");
  Notes own;
  Notes& all = notes != nullptr ? *notes : own;
  if (!options.gpu.empty()) nvlink_rate(options.gpu, "--gpu", options.gpu);
  std::vector<NodeKind> nodes;
  Network network;
  const auto add_nodes = [&](std::vector<NodeKind>&& more) {
    for (NodeKind& node : more) nodes.push_back(std::move(node));
  };
  for (const ImportFile& file : files) {
    switch (find_kind(file)) {
      case FileKind::kNcclXml:
        add_nodes(read_nccl_xml(file, options, all));
        break;
      case FileKind::kSmiTopo:
        add_nodes(read_smi_topo(file, options, all));
        break;
      case FileKind::kInfiniband:
        merge_network(network, read_infiniband(file, all), file.name);
        break;
      case FileKind::kSlurm:
        merge_network(network, read_slurm(file, all), file.name);
        break;
      case FileKind::kFabric: {
        std::vector<NodeKind> kinds = parse_fabric_file({file.text, file.name}).kinds;
        for (NodeKind& kind : kinds) kind.name.clear();
        add_nodes(std::move(kinds));
        break;
      }
    }
  }
  const FabricFile file = Merger(options, all).merge(std::move(nodes), network, files[0].name);
  // Says it now, not when it is used, if the parts do not fit.
  parse_fabric_file({print_fabric_file(file), options.name});
  return file;
}

double nvlink_rate(const std::string& gpu, const std::string& place, const std::string& found) {
  // One link, one direction: NVIDIA's datasheets of V100 (300 GB/s, 6 links), A100 (600, 12), H100
  // (900, 18) and B200, GB200 (1800, 18), both ways together.
  constexpr std::pair<const char*, double> kRates[] = {
      {"v100", 25e9}, {"a100", 25e9},  {"h100", 25e9}, {"h200", 25e9}, {"gh200", 25e9},
      {"b200", 50e9}, {"gb200", 50e9}, {"b300", 50e9}, {"gb300", 50e9}};
  for (const auto& [name, rate] : kRates)
    if (gpu == name) return rate;
  fail(place, gpu.empty() ? found : quote(gpu),
       "--gpu, one of v100, a100, h100, h200, gh200, b200, gb200, b300, gb300: how fast a link is");
}

int most_nvlinks(const std::string& gpu) { return gpu == "v100" ? 6 : gpu == "a100" ? 12 : 18; }

void give_nearest(const std::vector<std::vector<int>>& distance, NodeKind& kind) {
  std::map<std::vector<int32_t>, std::vector<int32_t>> gpus_of;  // by set of nearest NICs
  for (size_t g = 0; g < distance.size(); ++g) {
    const std::vector<int>& row = distance[g];
    int nearest = -1;
    for (const int far : row)
      if (far >= 0 && (nearest < 0 || far < nearest)) nearest = far;
    double fastest = 0;
    for (size_t n = 0; n < row.size(); ++n)
      if (row[n] == nearest) fastest = std::max(fastest, kind.nics[n].rate);
    std::vector<int32_t> mine;
    for (size_t n = 0; n < row.size(); ++n)
      if (row[n] == nearest && kind.nics[n].rate == fastest)
        mine.push_back(static_cast<int32_t>(n));
    if (!mine.empty()) gpus_of[mine].push_back(static_cast<int32_t>(g));
  }
  for (const auto& [nics, gpus] : gpus_of) {
    const std::vector<std::vector<int32_t>> owners =
        deal_nics(static_cast<int32_t>(nics.size()), static_cast<int32_t>(gpus.size()));
    for (size_t i = 0; i < nics.size(); ++i)
      for (const int32_t owner : owners[i])
        kind.nics[static_cast<size_t>(nics[i])].gpus.push_back(gpus[static_cast<size_t>(owner)]);
  }
}

}  // namespace refit
