#pragma once

#include <fmt/core.h>

#include <string>

#include "sim/fabric/fabric.h"

namespace refit {

/// A small fabric to vary: 100 GB/s NVLink and 10 GB/s NICs.
struct SmallFabric {
  int gpus = 4, nics = 4, domain_nodes = 1;
  std::string network = "{kind: rail-optimized, oversubscription: 1}";
  bool nvlink = true;

  FabricSource source() const {
    return {
        fmt::format("name: small\n"
                    "default_cost: nominal\n"
                    "node: {{gpus: {}, {}nics: {}, nic: 10GB/s, nic_latency: 1us}}\n"
                    "{}"
                    "network: {}\n",
                    gpus, nvlink ? "nvlink: 100GB/s, nvlink_latency: 300ns, " : "", nics,
                    nvlink ? fmt::format("domain: {{nodes: {}}}\n", domain_nodes) : "", network),
        "small.yaml"};
  }
  Fabric make(int32_t nodes) const { return make_fabric(source(), nodes); }
};

}  // namespace refit
