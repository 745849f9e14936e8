#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "base/units.h"
#include "sim/fabric/fabric_file.h"
#include "sim/fabric/names.h"

namespace refit {
namespace {

using Unit = std::pair<const char*, double>;

/// A text that reads back as exactly this value: in the first unit in which it is a short whole
/// number, else the shortest.
template <typename Parse>
std::string print_exact(double value, std::initializer_list<Unit> units, const Parse& parse) {
  constexpr size_t kShort = 8;
  std::string best;
  for (const auto& [unit, scale] : units) {
    const std::string text = fmt::format("{}{}", value / scale, unit);
    if (text.find('e') != std::string::npos || parse(text, "fabric") != value) continue;
    if (text.find('.') == std::string::npos && text.size() <= kShort) return text;
    if (best.empty() || text.size() < best.size()) best = text;
  }
  REFIT_CHECK(!best.empty());
  return best;
}

std::string exact_rate(double rate) {
  return print_exact(rate, {{"GB/s", 1e9}, {"Gbps", 0.125e9}, {"MB/s", 1e6}, {"B/s", 1}},
                     parse_rate);
}

/// Of NICs and switches, of which people think in bits.
std::string exact_net_rate(double rate) {
  return print_exact(rate, {{"Gbps", 0.125e9}, {"Tbps", 0.125e12}, {"GB/s", 1e9}, {"B/s", 1}},
                     parse_rate);
}

std::string exact_time(double seconds) {
  return print_exact(seconds, {{"us", 1e-6}, {"ns", 1e-9}, {"ms", 1e-3}, {"s", 1}}, parse_time);
}

std::string numbers(const std::vector<int32_t>& list) {
  return fmt::format("[{}]", fmt::join(list, ", "));
}

bool is_plain(const NodeKind& kind) {
  const std::vector<std::vector<int32_t>> owners =
      deal_nics(static_cast<int32_t>(kind.nics.size()), kind.gpus);
  for (size_t i = 0; i < kind.nics.size(); ++i) {
    const NicPort& nic = kind.nics[i];
    if (nic.name != fmt::format("nic{}", i) || nic.rail != static_cast<int32_t>(i) ||
        nic.rate != kind.nics[0].rate || nic.gpus != owners[i])
      return false;
  }
  return true;
}

void print_kind(const NodeKind& kind, const std::string& indent, std::string& out) {
  const auto line = [&](const std::string& text) { out += indent + text + "\n"; };
  line(fmt::format("gpus: {}", kind.gpus));
  if (kind.nvswitch) {
    line("nvlink: " + exact_rate(kind.nvlink.rate));
    line("nvlink_latency: " + exact_time(kind.nvlink.latency));
    if (!kind.nvlink_off.empty()) line("nvlink_off: " + numbers(kind.nvlink_off));
  } else if (!kind.bridges.empty()) {
    line("nvlink_latency: " + exact_time(kind.nvlink.latency));
    line("bridges:");
    for (const Bridge& bridge : kind.bridges)
      line(fmt::format("  - {{gpus: [{}, {}], rate: {}}}", bridge.first, bridge.second,
                       exact_rate(bridge.rate)));
  }
  if (!kind.nics.empty()) {
    if (is_plain(kind)) {
      line(fmt::format("nics: {}", kind.nics.size()));
      line("nic: " + exact_net_rate(kind.nics[0].rate));
    } else {
      line("nics:");
      for (const NicPort& nic : kind.nics)
        line(fmt::format("  - {{name: {}, rate: {}, rail: {}, gpus: {}}}", quoted(nic.name),
                         exact_net_rate(nic.rate), nic.rail, numbers(nic.gpus)));
    }
    line("nic_latency: " + exact_time(kind.nic_latency));
  }
  if (kind.pcie.empty()) return;
  line("pcie_port: " + exact_rate(kind.pcie_port.rate));
  line("pcie_latency: " + exact_time(kind.pcie_port.latency));
  line("pcie:");
  for (const PcieHub& hub : kind.pcie) {
    std::string text = "  - {name: " + quoted(hub.name);
    if (hub.parent >= 0)
      text += ", parent: " + quoted(kind.pcie[static_cast<size_t>(hub.parent)].name);
    if (hub.up > 0) text += ", up: " + exact_rate(hub.up);
    if (!hub.gpus.empty()) text += ", gpus: " + numbers(hub.gpus);
    if (!hub.nics.empty()) text += ", nics: " + numbers(hub.nics);
    line(text + "}");
  }
}

void print_network(const FabricFile& file, std::string& out) {
  out += "network:\n";
  switch (file.network) {
    case NetworkKind::kRailOptimized:
      out += fmt::format("  kind: rail-optimized\n  oversubscription: {}\n", file.oversubscription);
      if (file.oversubscription > 1) out += "  latency: " + exact_time(file.spine_latency) + "\n";
      return;
    case NetworkKind::kRailOnly:
      out += "  kind: rail-only\n";
      return;
    case NetworkKind::kFlat:
      out += "  kind: flat\n";
      return;
    case NetworkKind::kSwitches:
      break;
  }
  out += "  kind: switches\n  switches:\n";
  for (const SwitchEntry& item : file.switches) {
    out += "    - {name: " + quoted(item.name);
    if (item.parent >= 0)
      out += ", parent: " + quoted(file.switches[static_cast<size_t>(item.parent)].name);
    if (item.up.rate > 0)
      out += ", up: " + exact_net_rate(item.up.rate) + ", latency: " + exact_time(item.up.latency);
    out += "}\n";
  }
}

/// Neighbours that differ in name only share a line.
void print_hosts(const FabricFile& file, std::string& out) {
  out += "hosts:\n";
  for (size_t i = 0; i < file.hosts.size();) {
    const HostEntry& host = file.hosts[i];
    std::vector<std::string> names;
    for (; i < file.hosts.size(); ++i) {
      HostEntry same = file.hosts[i];
      same.name = host.name;
      if (!(same == host)) break;
      names.push_back(file.hosts[i].name);
    }
    out += "  - {name: " + quoted(fold_names(names));
    if (file.kinds.size() > 1)
      out += ", kind: " + quoted(file.kinds[static_cast<size_t>(host.kind)].name);
    if (!host.domain.empty()) out += ", domain: " + quoted(host.domain);
    if (file.network == NetworkKind::kSwitches) {
      const auto name = [&](int32_t leaf) {
        return leaf < 0 ? "~" : quoted(file.switches[static_cast<size_t>(leaf)].name);
      };
      const bool one = !host.leaves.empty() && host.leaves[0] >= 0 &&
                       std::ranges::count(host.leaves, host.leaves[0]) == std::ssize(host.leaves);
      std::string list;
      for (const int32_t leaf : host.leaves) list += (list.empty() ? "" : ", ") + name(leaf);
      out += ", leaves: " + (one ? name(host.leaves[0]) : "[" + list + "]");
    }
    out += "}\n";
  }
}

/// Leaves the first GPUs of a node, and the NICs that are theirs.
void keep_gpus(NodeKind& kind, int32_t gpus, const std::string& place) {
  if (gpus > kind.gpus)
    fail(place, fmt::format("gpus={}", gpus), fmt::format("at most the {} of a node", kind.gpus));
  if (gpus == kind.gpus) return;
  const auto is_gone = [gpus](int32_t gpu) { return gpu >= gpus; };
  kind.gpus = gpus;
  std::erase_if(kind.nvlink_off, is_gone);
  std::erase_if(kind.bridges,
                [&](const Bridge& b) { return is_gone(b.first) || is_gone(b.second); });
  std::vector<NicPort> kept;
  std::vector<int32_t> new_number(kind.nics.size(), -1);
  std::map<int32_t, int32_t> new_rail;
  for (size_t i = 0; i < kind.nics.size(); ++i) {
    NicPort& nic = kind.nics[i];
    std::erase_if(nic.gpus, is_gone);
    if (nic.gpus.empty()) continue;
    new_number[i] = static_cast<int32_t>(kept.size());
    kept.push_back(std::move(nic));
    new_rail[kept.back().rail] = 0;
  }
  int32_t rails = 0;
  for (auto& [rail, number] : new_rail) number = rails++;
  for (NicPort& nic : kept) nic.rail = new_rail[nic.rail];
  kind.nics = std::move(kept);
  for (PcieHub& hub : kind.pcie) {
    std::erase_if(hub.gpus, is_gone);
    std::vector<int32_t> nics;
    for (const int32_t nic : hub.nics)
      if (new_number[static_cast<size_t>(nic)] >= 0)
        nics.push_back(new_number[static_cast<size_t>(nic)]);
    hub.nics = std::move(nics);
  }
}

/// At commas outside brackets.
std::vector<std::string> split_parameters(const std::string& text) {
  std::vector<std::string> items(1);
  bool bracket = false;
  for (const char c : text) {
    bracket = c == '[' || (bracket && c != ']');
    if (c == ',' && !bracket)
      items.emplace_back();
    else
      items.back() += c;
  }
  return items;
}

}  // namespace

std::string print_fabric_file(const FabricFile& file) {
  std::string out =
      "name: " + quoted(file.name) + "\n" + "default_cost: " + quoted(file.default_cost) + "\n";
  if (file.nodes > 0) out += fmt::format("nodes: {}\n", file.nodes);
  if (file.kinds.size() == 1 && file.kinds[0].name.empty()) {
    out += "node:\n";
    print_kind(file.kinds[0], "  ", out);
  } else {
    out += "kinds:\n";
    for (const NodeKind& kind : file.kinds) {
      out += "  - name: " + quoted(kind.name) + "\n    node:\n";
      print_kind(kind, "      ", out);
    }
  }
  if (file.hosts.empty() && file.kinds[0].nvswitch)
    out += fmt::format("domain: {{nodes: {}}}\n", file.domain_nodes);
  print_network(file, out);
  if (!file.hosts.empty()) print_hosts(file, out);
  if (!file.changes.empty()) out += "links:\n";
  for (const LinkChange& change : file.changes) {
    out += "  - {name: " + quoted(change.links);
    if (change.rate > 0) out += ", rate: " + exact_net_rate(change.rate);
    if (change.factor != 1) out += fmt::format(", factor: {}", change.factor);
    if (change.latency >= 0) out += ", latency: " + exact_time(change.latency);
    out += "}\n";
  }
  return out;
}

void set_parameters(FabricFile& file, const std::string& parameters, const std::string& place) {
  for (const std::string& item : split_parameters(parameters)) {
    const size_t equals = item.find('=');
    const std::string key = item.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : item.substr(equals + 1);
    const std::string where = place + ": " + key;
    const auto generated = [&] {
      if (!file.hosts.empty()) fail(where, "a fabric with named hosts", "one with generated nodes");
    };
    if (key == "nodes") {
      generated();
      file.nodes = static_cast<int32_t>(parse_int(value, 1, 1 << 20, where));
    } else if (key == "gpus") {
      const auto gpus = static_cast<int32_t>(parse_int(value, 1, 1024, where));
      generated();
      for (NodeKind& kind : file.kinds) keep_gpus(kind, gpus, place);
    } else if (key == "segment") {
      generated();
      if (!file.kinds[0].nvswitch) fail(where, "a fabric without NVSwitch", "one with");
      file.domain_nodes = static_cast<int32_t>(parse_int(value, 1, 1 << 20, where));
    } else if (key == "nic") {
      const double rate = parse_rate(value, where);
      for (NodeKind& kind : file.kinds)
        for (NicPort& nic : kind.nics) nic.rate = rate;
    } else if (key == "oversubscription") {
      if (file.network != NetworkKind::kRailOptimized)
        fail(where, "another network", "a rail-optimized one");
      char* end = nullptr;
      file.oversubscription = std::strtod(value.c_str(), &end);
      if (value.empty() || *end != '\0' || !(file.oversubscription >= 1) ||
          file.oversubscription > 1e6)
        fail(where, quote(value), "1 to 1e+06");
    } else if (key.find('.') != std::string::npos) {
      file.changes.push_back({.links = key, .rate = parse_rate(value, where)});
    } else {
      fail(place, quote(item),
           "nodes=N, gpus=N, segment=N, nic=RATE, oversubscription=N or LINKS=RATE");
    }
  }
}

}  // namespace refit
