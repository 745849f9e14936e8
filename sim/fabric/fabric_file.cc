#include "sim/fabric/fabric_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/document.h"
#include "base/error.h"
#include "sim/fabric/names.h"

namespace refit {
namespace {

constexpr int32_t kMostGpusPerNode = 1024;
constexpr int32_t kMostGpus = 1 << 20;
constexpr double kMostOversubscription = 1e6;

int32_t read_count(const Value& value, int32_t most) {
  return static_cast<int32_t>(value.as_int(1, most));
}

const std::string& read_name(const Value& value) {
  const std::string& text = value.as_text();
  if (text.empty()) fail(value.place(), "an empty text", "a name");
  return text;
}

/// Numbers below `count`, each at most once.
std::vector<int32_t> read_numbers(const Value& list, size_t count) {
  std::vector<int32_t> numbers;
  for (size_t i = 0; i < list.size(); ++i) {
    const auto number = static_cast<int32_t>(list[i].as_int(0, static_cast<int64_t>(count) - 1));
    if (std::ranges::find(numbers, number) != numbers.end())
      fail(list[i].place(), fmt::format("{} twice", number), "it once");
    numbers.push_back(number);
  }
  return numbers;
}

/// Names that have been given, each once: name -> position.
class NameTable {
 public:
  void add(const Value& value) {
    const auto [it, added] = position_.try_emplace(read_name(value), std::ssize(position_));
    if (!added) fail(value.place(), quote(it->first) + " twice", "a name of its own");
  }
  int32_t find(const Value& value) const {
    const auto it = position_.find(value.as_text());
    if (it == position_.end())
      fail(value.place(), quote(value.as_text()), "a name given before it in the list");
    return static_cast<int32_t>(it->second);
  }

 private:
  std::map<std::string, int64_t> position_;
};

void read_nics(const Value& node, NodeKind& kind) {
  const Value* nics = node.find("nics");
  if (nics == nullptr) return;
  if (nics->kind() == Value::Kind::kList) {
    NameTable names;
    for (size_t i = 0; i < nics->size(); ++i) {
      const Value& entry = (*nics)[i];
      names.add(entry.at("name"));
      NicPort& nic = kind.nics.emplace_back();
      nic.name = entry.at("name").as_text();
      nic.rate = entry.at("rate").as_rate();
      const Value* rail = entry.find("rail");
      nic.rail = rail ? static_cast<int32_t>(rail->as_int(0, kMostGpusPerNode - 1))
                      : static_cast<int32_t>(i);
      nic.gpus = read_numbers(entry.at("gpus"), static_cast<size_t>(kind.gpus));
      entry.finish();
    }
  } else {
    const int32_t count = read_count(*nics, kMostGpusPerNode);
    const double rate = node.at("nic").as_rate();
    const std::vector<std::vector<int32_t>> owners = deal_nics(count, kind.gpus);
    for (int32_t i = 0; i < count; ++i)
      kind.nics.push_back({fmt::format("nic{}", i), rate, i, owners[static_cast<size_t>(i)]});
  }
  kind.nic_latency = node.at("nic_latency").as_time();
}

void read_nvlink(const Value& node, NodeKind& kind) {
  const Value* nvlink = node.find("nvlink");
  const Value* bridges = node.find("bridges");
  if (nvlink != nullptr && bridges != nullptr)
    fail(node.place(), "nvlink and bridges", "one of them: an NVSwitch or direct NVLinks");
  if (nvlink != nullptr) {
    kind.nvswitch = true;
    kind.nvlink = {nvlink->as_rate(), node.at("nvlink_latency").as_time()};
    if (const Value* off = node.find("nvlink_off"))
      kind.nvlink_off = read_numbers(*off, static_cast<size_t>(kind.gpus));
  } else if (bridges != nullptr) {
    kind.nvlink.latency = node.at("nvlink_latency").as_time();
    std::set<std::pair<int32_t, int32_t>> known;
    for (size_t i = 0; i < bridges->size(); ++i) {
      const Value& entry = (*bridges)[i];
      const Value& pair = entry.at("gpus");
      const std::vector<int32_t> gpus = read_numbers(pair, static_cast<size_t>(kind.gpus));
      if (gpus.size() != 2) fail(pair.place(), fmt::format("{} GPUs", gpus.size()), "two");
      if (!known.insert({std::min(gpus[0], gpus[1]), std::max(gpus[0], gpus[1])}).second)
        fail(pair.place(), "these two GPUs again", "a pair once");
      kind.bridges.push_back({gpus[0], gpus[1], entry.at("rate").as_rate()});
      entry.finish();
    }
  }
}

void read_pcie(const Value& node, NodeKind& kind) {
  const Value* pcie = node.find("pcie");
  if (pcie == nullptr) return;
  NameTable names, nic_names;
  std::vector<char> gpu_seen(static_cast<size_t>(kind.gpus), 0), nic_seen(kind.nics.size(), 0);
  const auto claim = [](const Value& place, std::vector<char>& seen,
                        const std::vector<int32_t>& members) {
    for (const int32_t member : members) {
      if (seen[static_cast<size_t>(member)])
        fail(place.place(), fmt::format("{} again", member), "a place in the PCIe tree once");
      seen[static_cast<size_t>(member)] = 1;
    }
  };
  for (size_t i = 0; i < pcie->size(); ++i) {
    const Value& entry = (*pcie)[i];
    PcieHub hub;
    hub.name = read_name(entry.at("name"));
    if (const Value* parent = entry.find("parent")) hub.parent = names.find(*parent);
    names.add(entry.at("name"));
    if (const Value* up = entry.find("up")) hub.up = up->as_rate();
    if (hub.up == 0 && hub.parent >= 0)
      fail(entry.place(), "no up", "the rate to what is above it");
    if (const Value* gpus = entry.find("gpus")) {
      hub.gpus = read_numbers(*gpus, static_cast<size_t>(kind.gpus));
      claim(*gpus, gpu_seen, hub.gpus);
    }
    if (const Value* nics = entry.find("nics")) {
      hub.nics = read_numbers(*nics, kind.nics.size());
      claim(*nics, nic_seen, hub.nics);
    }
    entry.finish();
    kind.pcie.push_back(std::move(hub));
  }
  const auto roots = std::ranges::count(kind.pcie, -1, &PcieHub::parent);
  for (const PcieHub& hub : kind.pcie)
    if (roots > 1 && hub.up == 0)
      fail(pcie->place(), fmt::format("no up of {}", hub.name), "the rate to the host above it");
  if (std::ranges::count(gpu_seen, 0) + std::ranges::count(nic_seen, 0) > 0)
    fail(pcie->place(), "GPUs or NICs that are nowhere in it", "each of the node at one hub");
  kind.pcie_port = {node.at("pcie_port").as_rate(), node.at("pcie_latency").as_time()};
}

NodeKind read_kind(const Value& node, const std::string& name) {
  NodeKind kind;
  kind.name = name;
  kind.gpus = read_count(node.at("gpus"), kMostGpusPerNode);
  read_nvlink(node, kind);
  read_nics(node, kind);
  read_pcie(node, kind);
  node.finish();
  return kind;
}

void read_switches(const Value& list, FabricFile& file, NameTable& names) {
  for (size_t i = 0; i < list.size(); ++i) {
    const Value& entry = list[i];
    SwitchEntry& item = file.switches.emplace_back();
    item.name = read_name(entry.at("name"));
    if (const Value* parent = entry.find("parent")) {
      item.parent = names.find(*parent);
      if (const Value* up = entry.find("up"))
        item.up = {up->as_rate(), entry.at("latency").as_time()};
    }
    names.add(entry.at("name"));
    entry.finish();
  }
  if (file.switches.empty()) fail(list.place(), "no switch", "at least one");
}

void read_network(const Value& network, FabricFile& file, NameTable& switch_names) {
  const Value& kind = network.at("kind");
  if (kind.as_text() == "rail-optimized") {
    file.network = NetworkKind::kRailOptimized;
    const Value& ratio = network.at("oversubscription");
    file.oversubscription = ratio.as_number();
    if (!(file.oversubscription >= 1 && file.oversubscription <= kMostOversubscription))
      fail(ratio.place(), ratio.as_text(), fmt::format("1 to {:g}", kMostOversubscription));
    if (file.oversubscription > 1)
      if (const Value* latency = network.find("latency")) file.spine_latency = latency->as_time();
  } else if (kind.as_text() == "rail-only") {
    file.network = NetworkKind::kRailOnly;
  } else if (kind.as_text() == "flat") {
    file.network = NetworkKind::kFlat;
  } else if (kind.as_text() == "switches") {
    file.network = NetworkKind::kSwitches;
    read_switches(network.at("switches"), file, switch_names);
  } else {
    fail(kind.place(), quote(kind.as_text()), "rail-optimized, rail-only, flat or switches");
  }
  network.finish();
}

/// Switch of every NIC of a host: one for all, or one each.
std::vector<int32_t> read_leaves(const Value& leaves, const NameTable& names, size_t nics) {
  if (leaves.kind() != Value::Kind::kList) return std::vector<int32_t>(nics, names.find(leaves));
  if (leaves.size() != nics)
    fail(leaves.place(), fmt::format("{} switches", leaves.size()),
         fmt::format("one for each of the {} NICs", nics));
  std::vector<int32_t> result;
  for (size_t i = 0; i < leaves.size(); ++i)
    result.push_back(leaves[i].is_null() ? -1 : names.find(leaves[i]));
  return result;
}

void read_hosts(const Value& list, FabricFile& file, const NameTable& kind_names,
                const NameTable& switch_names) {
  std::set<std::string> known;
  for (size_t i = 0; i < list.size(); ++i) {
    const Value& entry = list[i];
    HostEntry host;
    if (const Value* kind = entry.find("kind"))
      host.kind = kind_names.find(*kind);
    else if (file.kinds.size() > 1)
      entry.at("kind");
    if (const Value* domain = entry.find("domain")) host.domain = read_name(*domain);
    if (file.network == NetworkKind::kSwitches)
      host.leaves = read_leaves(entry.at("leaves"), switch_names,
                                file.kinds[static_cast<size_t>(host.kind)].nics.size());
    const Value& names = entry.at("name");
    for (const std::string& name : expand_names(read_name(names), names.place())) {
      if (!known.insert(name).second) fail(names.place(), quote(name) + " twice", "a host once");
      host.name = name;
      file.hosts.push_back(host);
    }
    entry.finish();
  }
  if (file.hosts.empty()) fail(list.place(), "no host", "at least one");
}

void read_changes(const Value& list, FabricFile& file) {
  for (size_t i = 0; i < list.size(); ++i) {
    const Value& entry = list[i];
    LinkChange& change = file.changes.emplace_back();
    change.links = read_name(entry.at("name"));
    expand_names(change.links, entry.place());
    const Value* rate = entry.find("rate");
    const Value* factor = entry.find("factor");
    const Value* latency = entry.find("latency");
    if (rate != nullptr && factor != nullptr) fail(entry.place(), "rate and factor", "one of them");
    if (rate == nullptr && factor == nullptr && latency == nullptr)
      fail(entry.place(), "nothing that changes", "rate, factor or latency");
    if (rate != nullptr) change.rate = rate->as_rate();
    if (latency != nullptr) change.latency = latency->as_time();
    if (factor != nullptr) {
      change.factor = factor->as_number();
      if (!(change.factor > 0 && change.factor <= 1000))
        fail(factor->place(), factor->as_text(), "more than 0, at most 1000");
    }
    entry.finish();
  }
}

}  // namespace

std::vector<std::vector<int32_t>> deal_nics(int32_t nics, int32_t gpus) {
  std::vector<std::vector<int32_t>> owners(static_cast<size_t>(nics));
  if (nics >= gpus) {
    for (int32_t nic = 0; nic < nics; ++nic)
      owners[static_cast<size_t>(nic)].push_back(static_cast<int32_t>(int64_t{nic} * gpus / nics));
  } else {
    for (int32_t gpu = 0; gpu < gpus; ++gpu)
      owners[static_cast<size_t>(int64_t{gpu} * nics / gpus)].push_back(gpu);
  }
  return owners;
}

FabricFile parse_fabric_file(const FabricSource& source) {
  const Value text = parse_document(source.text, source.name, /*json=*/false);
  FabricFile file;
  file.name = read_name(text.at("name"));
  file.default_cost = read_name(text.at("default_cost"));
  NameTable kind_names, switch_names;
  if (const Value* kinds = text.find("kinds")) {
    for (size_t i = 0; i < kinds->size(); ++i) {
      const Value& entry = (*kinds)[i];
      kind_names.add(entry.at("name"));
      file.kinds.push_back(read_kind(entry.at("node"), entry.at("name").as_text()));
      entry.finish();
    }
    if (file.kinds.empty()) fail(kinds->place(), "no kind", "at least one");
  } else {
    file.kinds.push_back(read_kind(text.at("node"), ""));
  }
  read_network(text.at("network"), file, switch_names);
  if (const Value* hosts = text.find("hosts")) {
    read_hosts(*hosts, file, kind_names, switch_names);
  } else {
    if (file.kinds.size() > 1) fail(text.place(), "several kinds but no hosts", "hosts");
    if (file.network == NetworkKind::kSwitches) text.at("hosts");
    if (const Value* nodes = text.find("nodes")) file.nodes = read_count(*nodes, kMostGpus);
    if (file.kinds[0].nvswitch) {
      const Value& domain = text.at("domain");
      file.domain_nodes = read_count(domain.at("nodes"), kMostGpus);
      domain.finish();
    }
  }
  if (const Value* changes = text.find("links")) read_changes(*changes, file);
  text.finish();
  return file;
}

}  // namespace refit
