// NCCL topology XML (NCCL_TOPO_DUMP_FILE, or the files that clouds ship as NCCL_TOPO_FILE).

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <pugixml.hpp>
#include <set>
#include <tuple>

#include "base/error.h"
#include "sim/fabric/readers.h"

namespace refit {
namespace {

struct Nvlink {
  std::string target;
  int count = 0;
  bool to_switch = false;
};

/// A GPU or NIC with its way to the CPU: the bus ids of the PCIe switches above it, topmost first.
struct Device {
  std::string busid = {}, name = {};
  std::vector<std::string> above = {};
  int cpu = 0;
  int dev = -1;
  double rate = 0;  // of a NIC's port, or of a GPU's PCIe port; 0: not said
  std::string sm = {};
  std::vector<Nvlink> nvlinks = {};
  int line = 0;
};

struct CpuEntry {
  std::string numa;
  double interconnect = 0;
};

/// One host of the file.
struct System {
  std::vector<Device> gpus, nics;
  std::vector<CpuEntry> cpus;
  std::map<std::string, double> switch_rate;  // of a PCIe switch to what is above it
};

bool starts_with_any(std::string_view text, std::initializer_list<const char*> prefixes) {
  return std::ranges::any_of(prefixes, [&](const char* p) { return text.starts_with(p); });
}

class XmlReader {
 public:
  XmlReader(const ImportFile& file, Notes& notes) : file_(file), notes_(notes) {}

  std::vector<System> read() {
    if (file_.text.find("<!DOCTYPE") != std::string::npos ||
        file_.text.find("<topology") != std::string::npos)
      fail(file_.name, "an hwloc topology", "NCCL topology XML: <system version=...>");
    pugi::xml_document document;
    const pugi::xml_parse_result result =
        document.load_buffer(file_.text.data(), file_.text.size());
    if (!result)
      fail(fmt::format("{}:{}", file_.name, line_at(result.offset)), result.description(),
           "well-formed XML, complete to the closing </system>");
    const pugi::xml_node root = document.document_element();
    if (std::strcmp(root.name(), "graphs") == 0)
      fail(place(root), "<graphs>: rings and trees that NCCL found, not a topology",
           "<system version=...> (NCCL_TOPO_DUMP_FILE)");
    if (std::strcmp(root.name(), "system") != 0)
      fail(place(root), fmt::format("<{}>", root.name()), "<system version=...>");
    for (const pugi::xml_node child : root.children()) {
      if (std::strcmp(child.name(), "cpu") == 0)
        read_cpu(child);
      else if (child.type() == pugi::node_element)
        note_once(fmt::format("<{}>", child.name()));
    }
    if (systems_.empty()) fail(place(root), "no <cpu>", "the CPUs of a node");
    if (!outside_.empty())
      notes_.push_back(fmt::format("{}: left out {} nets outside PCIe, such as {}", file_.name,
                                   outside_.size(), *outside_.begin()));
    std::vector<System> result_systems;
    for (const std::string& host : order_) result_systems.push_back(std::move(systems_[host]));
    return result_systems;
  }

  std::string place(const pugi::xml_node& node) const {
    return fmt::format("{}:{}", file_.name, line_at(node.offset_debug()));
  }
  std::string place(int line) const { return fmt::format("{}:{}", file_.name, line); }

 private:
  int line_at(ptrdiff_t offset) const {
    const auto end = file_.text.begin() + std::min<ptrdiff_t>(offset, std::ssize(file_.text));
    return 1 + static_cast<int>(std::count(file_.text.begin(), end, '\n'));
  }

  void note_once(const std::string& what) {
    if (noted_.insert(what).second) notes_.push_back(file_.name + ": left out " + what);
  }

  void read_cpu(const pugi::xml_node& cpu) {
    const std::string host = cpu.attribute("host_hash").value();
    if (!systems_.contains(host)) order_.push_back(host);
    System& system = systems_[host];
    system.cpus.push_back({cpu.attribute("numaid").value(), interconnect(cpu)});
    for (const pugi::xml_node child : cpu.children()) {
      if (std::strcmp(child.name(), "pci") == 0)
        read_pci(child, {}, system);
      else if (std::strcmp(child.name(), "nic") == 0)
        for (const pugi::xml_node net : child.children("net"))
          outside_.insert(net.attribute("name").value());
    }
  }

  /// NCCL's figures between the CPUs of a node: src/graph/topo.h of NCCL 2.30.
  static double interconnect(const pugi::xml_node& cpu) {
    const std::string_view vendor = cpu.attribute("vendor").value();
    const int model = cpu.attribute("modelid").as_int();
    if (std::string_view(cpu.attribute("arch").value()) == "arm64") return 6e9;
    if (vendor == "AuthenticAMD") return 16e9;
    if (vendor == "GenuineIntel")
      return model >= 207 ? 40e9 : model >= 143 ? 22e9 : model >= 85 ? 10e9 : 6e9;
    return 10e9;
  }

  /// Nominal, one direction, in tenths of GB/s: "16 GT/s", "32.0 GT/s PCIe"; 0 where the file says
  /// nothing.
  static double pcie_rate(const pugi::xml_node& pci) {
    const double transfers = pci.attribute("link_speed").as_double();
    const double lanes = pci.attribute("link_width").as_double();
    const double exact = transfers * lanes / 8 * (transfers >= 8 ? 128.0 / 130 : 0.8);
    return std::round(exact * 10) * 1e8;
  }

  void read_pci(const pugi::xml_node& pci, const std::vector<std::string>& above, System& system) {
    const std::string_view kind = pci.attribute("class").value();
    const std::string busid = pci.attribute("busid").value();
    Device device{.busid = busid, .above = above, .cpu = static_cast<int>(system.cpus.size()) - 1};
    device.line = line_at(pci.offset_debug());
    bool leaf = true;
    for (const pugi::xml_node child : pci.children()) {
      const std::string_view name = child.name();
      if (name == "gpu") {
        leaf = false;
        add_gpu(child, pci, device, system);
      } else if (name == "nic") {
        leaf = false;
        for (const pugi::xml_node net : child.children("net")) add_nic(net, device, system);
      } else if (name == "pci") {
        leaf = false;
        std::vector<std::string> below = above;
        below.push_back(busid);
        read_pci(child, below, system);
      }
    }
    if (!leaf) {
      system.switch_rate[busid] = pcie_rate(pci);
      return;
    }
    const std::string_view vendor = pci.attribute("vendor").value();
    if (starts_with_any(kind, {"0x0300", "0x0302"})) {
      if (vendor.empty() || vendor == "0x10de") add_gpu({}, pci, device, system);
    } else if (starts_with_any(kind, {"0x0200", "0x0207"})) {
      system.nics.push_back(device);
    } else if (starts_with_any(kind, {"0x0380", "0x1200"})) {
      refuse_amd(pci);
    } else {
      note_once(fmt::format("PCIe device {} of class {}", busid, kind.empty() ? "unknown" : kind));
    }
  }

  [[noreturn]] void refuse_amd(const pugi::xml_node& node) const {
    fail(place(node), "a GPU of AMD", "GPUs of NVIDIA: plans are replayed over NCCL");
  }

  void add_gpu(const pugi::xml_node& gpu, const pugi::xml_node& pci, Device device,
               System& system) {
    if (gpu.child("xgmi") || gpu.attribute("gcn") ||
        std::string_view(pci.attribute("vendor").value()) == "0x1002")
      refuse_amd(gpu ? gpu : pci);
    device.dev = gpu ? gpu.attribute("dev").as_int(-1) : -1;
    device.sm = gpu.attribute("sm").value();
    device.rate = pcie_rate(pci);
    for (const pugi::xml_node link : gpu.children("nvlink")) {
      const std::string target = link.attribute("target").value();
      const int count = link.attribute("count").as_int();
      // Targets that mean nothing: itself, no links, the sentinel of a link that goes nowhere.
      if (count <= 0 || target == device.busid || target.starts_with("ffff")) continue;
      device.nvlinks.push_back(
          {target, count,
           std::string_view(link.attribute("tclass").value()).starts_with("0x0680")});
    }
    system.gpus.push_back(std::move(device));
  }

  void add_nic(const pugi::xml_node& net, Device device, System& system) {
    device.name = net.attribute("name").value();
    device.dev = net.attribute("dev").as_int(-1);
    device.rate = net.attribute("speed").as_double() * 1e6 / 8;  // Mbit/s
    const auto same = [&](const Device& other) { return other.name == device.name; };
    if (std::ranges::any_of(system.nics, same))
      fail(place(net), "net " + quote(device.name) + " twice", "a name of its own");
    system.nics.push_back(std::move(device));
  }

  const ImportFile& file_;
  Notes& notes_;
  std::map<std::string, System> systems_;  // by host
  std::vector<std::string> order_;
  std::set<std::string> noted_, outside_;
};

/// As NCCL ranks paths: a switch in common, then the CPU, then the way to another CPU.
int pci_distance(const Device& a, const Device& b) {
  constexpr int kCpu = 1000, kOtherCpu = 2000;
  if (a.cpu != b.cpu) return kOtherCpu;
  size_t common = 0;
  while (common < a.above.size() && common < b.above.size() && a.above[common] == b.above[common])
    ++common;
  if (common == 0) return kCpu;
  return static_cast<int>(a.above.size() + b.above.size() - 2 * common);
}

std::string gpu_of_sm(const std::string& sm) {
  if (sm == "70") return "v100";
  if (sm == "80") return "a100";
  if (sm == "90") return "h100";
  if (sm == "100" || sm == "103") return "b200";
  return "";
}

void set_nvlink(const XmlReader& reader, const System& system, const ImportOptions& options,
                NodeKind& kind, Notes& notes, const std::string& file) {
  std::map<std::string, int32_t> gpu_at;
  for (size_t g = 0; g < system.gpus.size(); ++g)
    gpu_at.try_emplace(system.gpus[g].busid, static_cast<int32_t>(g));
  int port = 0;  // links of a GPU to NVSwitches
  std::vector<int> ports(system.gpus.size(), 0);
  std::map<std::pair<int32_t, int32_t>, std::pair<int, int>> direct;  // links said from either end
  std::string gpu = options.gpu;
  for (size_t g = 0; g < system.gpus.size(); ++g) {
    const Device& device = system.gpus[g];
    if (device.nvlinks.empty()) continue;
    if (gpu.empty()) gpu = gpu_of_sm(device.sm);
    int sum = 0, largest = 0;
    for (const Nvlink& link : device.nvlinks) {
      sum += link.count;
      largest = std::max(largest, link.count);
    }
    // More links than the GPU has: the file writes an NVSwitch as links between all pairs.
    const bool all_pairs = sum > most_nvlinks(gpu) && gpu_at.contains(device.nvlinks[0].target);
    if (all_pairs) ports[g] = largest;
    for (const Nvlink& link : device.nvlinks) {
      if (all_pairs) break;
      const auto target = gpu_at.find(link.target);
      if (target == gpu_at.end()) {
        if (link.to_switch)
          ports[g] += link.count;
        else
          notes.push_back(fmt::format("{}: left out NVLinks to {}", file, link.target));
        continue;
      }
      const auto first = static_cast<int32_t>(g);
      auto& [forth, back] =
          direct[{std::min(first, target->second), std::max(first, target->second)}];
      (first < target->second ? forth : back) += link.count;
    }
    port = std::max(port, ports[g]);
  }
  if (port > 0 && !direct.empty())
    fail(file, "NVLinks to switches and between GPUs", "one of them");
  const auto link_rate = [&] {
    return nvlink_rate(gpu, file, fmt::format("NVLinks of a GPU of sm {}", system.gpus[0].sm));
  };
  if (port > 0) {
    kind.nvswitch = true;
    kind.nvlink = {port * link_rate(), kNvlinkLatency};
    for (size_t g = 0; g < ports.size(); ++g) {
      if (ports[g] == 0)
        kind.nvlink_off.push_back(static_cast<int32_t>(g));
      else if (ports[g] < port)
        notes.push_back(fmt::format("{}: GPU {} has {} of {} NVLinks; say so under links", file, g,
                                    ports[g], port));
    }
  }
  for (const auto& [pair, counts] : direct) {
    if (counts.first != counts.second)
      fail(reader.place(system.gpus[static_cast<size_t>(pair.first)].line),
           fmt::format("{} NVLinks from GPU {} to {}, {} back", counts.first, pair.first,
                       pair.second, counts.second),
           "as many both ways");
    kind.nvlink.latency = kNvlinkLatency;
    kind.bridges.push_back({pair.first, pair.second, counts.first * link_rate()});
  }
  if (port == 0 && direct.empty() && system.gpus.size() > 1) {
    if (options.nvlink > 0) {
      kind.nvswitch = true;
      kind.nvlink = {options.nvlink, kNvlinkLatency};
    } else {
      notes.push_back(file + ": says nothing of NVLink; --nvlink RATE adds an NVSwitch");
    }
  }
}

/// The PCIe tree, where it may bind: GPUs without NVLink talk over it, or a GPU's NICs are faster
/// than its port.
void set_pcie(const System& system, NodeKind& kind, Notes& notes, const std::string& file) {
  double port = system.gpus[0].rate;
  for (const Device& gpu : system.gpus) port = std::min(port, gpu.rate);
  bool may_bind = system.gpus.size() > 1 &&
                  ((!kind.nvswitch && kind.bridges.empty()) || !kind.nvlink_off.empty());
  for (int32_t g = 0; g < kind.gpus; ++g) {
    double nics = 0;
    for (const NicPort& nic : kind.nics)
      if (std::ranges::find(nic.gpus, g) != nic.gpus.end())
        nics += nic.rate / static_cast<double>(nic.gpus.size());
    may_bind = may_bind || nics > port;
  }
  if (!may_bind) return;
  if (!(port > 0)) {
    notes.push_back(file + ": left out PCIe: no link speed of a GPU");
    return;
  }
  kind.pcie_port = {port, kPcieLatency};
  std::map<std::string, size_t> hub_of;
  for (size_t c = 0; c < system.cpus.size(); ++c) {
    const std::string name = fmt::format("cpu{}", c);
    hub_of[name] = kind.pcie.size();
    kind.pcie.push_back(
        {.name = name, .up = system.cpus.size() > 1 ? system.cpus[c].interconnect : 0});
  }
  const auto hub_at = [&](const Device& device) -> PcieHub& {
    const std::string cpu = fmt::format("cpu{}", device.cpu);
    if (device.above.empty()) return kind.pcie[hub_of[cpu]];
    const std::string key = cpu + device.above[0];
    const auto [it, added] = hub_of.try_emplace(key, kind.pcie.size());
    if (added) {
      const double up = system.switch_rate.at(device.above[0]);
      kind.pcie.push_back({.name = fmt::format("sw{}", kind.pcie.size() - system.cpus.size()),
                           .parent = device.cpu,
                           .up = up > 0 ? up : port});
    }
    return kind.pcie[it->second];
  };
  for (size_t g = 0; g < system.gpus.size(); ++g)
    hub_at(system.gpus[g]).gpus.push_back(static_cast<int32_t>(g));
  for (size_t n = 0; n < system.nics.size(); ++n)
    hub_at(system.nics[n]).nics.push_back(static_cast<int32_t>(n));
}

}  // namespace

std::vector<NodeKind> read_nccl_xml(const ImportFile& file, const ImportOptions& options,
                                    Notes& notes) {
  XmlReader reader(file, notes);
  std::vector<NodeKind> kinds;
  for (System& system : reader.read()) {
    if (system.gpus.empty()) fail(file.name, "no GPU", "at least one");
    const auto by_number = [](const Device& a, const Device& b) {
      return std::tie(a.dev, a.busid) < std::tie(b.dev, b.busid);
    };
    std::ranges::stable_sort(system.gpus, by_number);
    std::ranges::stable_sort(system.nics, by_number);
    NodeKind& kind = kinds.emplace_back();
    kind.gpus = static_cast<int32_t>(system.gpus.size());
    set_nvlink(reader, system, options, kind, notes, file.name);
    for (const Device& nic : system.nics) {
      const auto number = static_cast<int32_t>(kind.nics.size());
      kind.nics.push_back(
          {nic.name.empty() ? fmt::format("nic{}", number) : nic.name, nic.rate, number, {}});
    }
    if (!kind.nics.empty()) kind.nic_latency = kNicLatency;
    std::vector<std::vector<int>> distance;
    for (const Device& gpu : system.gpus) {
      std::vector<int>& row = distance.emplace_back();
      for (const Device& nic : system.nics) row.push_back(pci_distance(gpu, nic));
    }
    give_nearest(distance, kind);
    set_pcie(system, kind, notes, file.name);
  }
  return kinds;
}

}  // namespace refit
