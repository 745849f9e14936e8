#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "sim/fabric/fabric.h"
#include "sim/flow/multicast.h"

namespace refit::testing {

/// Cases of a property test: the environment's REFIT_FUZZ_SCALE times as many, at most `most`.
inline int cases(int usual, int most) {
  const char* text = std::getenv("REFIT_FUZZ_SCALE");
  const int scale = text == nullptr ? 1 : std::max(1, std::atoi(text));
  return std::min(usual * scale, most);
}

/// Small fabrics of many kinds: one NVLink domain or several, rails that a spine joins, an
/// oversubscribed one or none, leaves in pods, several NICs a GPU, NICs that GPUs share, bridges,
/// PCIe.
inline Fabric random_fabric(std::mt19937& random, int32_t nodes, int32_t gpus) {
  const auto below = [&](uint32_t n) { return static_cast<int32_t>(random() % n); };
  const int32_t rates[] = {10, 20, 40, 100};
  std::string node = fmt::format("gpus: {}, nics: {}, nic: {}GB/s, nic_latency: 1us", gpus,
                                 below(3) == 0   ? 2 * gpus
                                 : below(4) == 0 ? 1
                                                 : gpus,
                                 rates[below(3)]);
  std::string text = "name: small\ndefault_cost: nominal\n";
  std::string domain;
  switch (below(5)) {
    case 0:
      break;  // no NVLink
    case 1:
      if (gpus > 1) {
        node += fmt::format(", nvlink_latency: 1us, bridges: [{{gpus: [0, 1], rate: {}GB/s}}]",
                            rates[below(4)]);
      }
      break;
    default:
      node += fmt::format(", nvlink: {}GB/s, nvlink_latency: 1us", rates[below(4)]);
      domain = fmt::format("domain: {{nodes: {}}}\n", below(3) == 0 ? 2 : 1);
  }
  if (domain.empty() && node.find("bridges") == std::string::npos && below(3) == 0) {
    std::string list;
    for (int32_t gpu = 0; gpu < gpus; ++gpu) list += fmt::format("{}{}", gpu > 0 ? ", " : "", gpu);
    node += fmt::format(
        ", pcie_port: {}GB/s, pcie_latency: 1us, pcie: [{{name: sw, up: 30GB/s, gpus: [{}], nics: "
        "[0]}}, {{name: far, up: 30GB/s, nics: [{}]}}]",
        rates[below(4)], list, "REST");
    std::string rest;
    const size_t nics_at = node.find("nics: ") + 6;
    const int nics = std::atoi(node.c_str() + nics_at);
    for (int nic = 1; nic < nics; ++nic) rest += fmt::format("{}{}", nic > 1 ? ", " : "", nic);
    node.replace(node.find("REST"), 4, rest);
  }
  const char* networks[] = {"flat", "rail-optimized", "rail-only"};
  const char* network = networks[below(3)];
  text += "node: {" + node + "}\n" + domain;
  text += fmt::format("network: {{kind: {}{}}}\n", network,
                      std::string(network) == "rail-optimized"
                          ? fmt::format(", oversubscription: {}", 1 + below(4))
                          : "");
  return make_fabric({text, "small.yaml"}, nodes);
}

inline std::vector<double> nominal_rates(const Fabric& fabric) {
  std::vector<double> rates;
  for (const Link& link : fabric.links) rates.push_back(link.rate);
  return rates;
}

/// Each GPU holds with a chance of one in `holders`, and needs with one in `needers`; one of each
/// at least.
inline Multicast random_multicast(std::mt19937& random, int32_t gpus, uint32_t holders,
                                  uint32_t needers) {
  Multicast item;
  std::vector<int32_t> others;
  for (int32_t gpu = 0; gpu < gpus; ++gpu) {
    if (random() % holders == 0)
      item.holders.push_back(gpu);
    else
      others.push_back(gpu);
  }
  if (others.empty()) {
    others.push_back(item.holders.back());
    item.holders.pop_back();
  }
  if (item.holders.empty()) {
    const auto one = others.begin() + static_cast<ptrdiff_t>(random() % others.size());
    item.holders.push_back(*one);
    others.erase(one);
  }
  for (const int32_t gpu : others)
    if (random() % needers == 0) item.needers.push_back(gpu);
  if (item.needers.empty()) item.needers.push_back(others[random() % others.size()]);
  item.bytes = 1e9 * static_cast<double>(1 + random() % 20);
  return item;
}

}  // namespace refit::testing
