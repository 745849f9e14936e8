#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/file.h"
#include "sim/fabric/import.h"
#include "sim/fabric/report.h"
#include "tests/refused.h"

namespace refit {

/// A node for network files that do not say what is in one: an NVSwitch, a NIC a GPU.
inline ImportFile small_node(int gpus, int nics, const std::string& rate = "400Gbps") {
  return {"name: node\ndefault_cost: nominal\nnode: {gpus: " + std::to_string(gpus) +
              ", nvlink: 450GB/s, nvlink_latency: 300ns, nics: " + std::to_string(nics) +
              ", nic: " + rate + ", nic_latency: 1us}\ndomain: {nodes: 1}\nnetwork: {kind: flat}\n",
          "node.yaml"};
}

inline Fabric fabric_of(const FabricFile& file) {
  return build_fabric(file, file.hosts.empty() ? 1 : static_cast<int32_t>(file.hosts.size()));
}

/// Imported, and the same again from its own text.
inline FabricFile import_and_reload(const std::vector<ImportFile>& files,
                                    const ImportOptions& options, Fabric& fabric,
                                    std::vector<std::string>* notes = nullptr) {
  const FabricFile file = import_fabric(files, options, notes);
  const std::string text = print_fabric_file(file);
  const FabricFile again = parse_fabric_file({text, "saved.yaml"});
  EXPECT_EQ(file, again) << text;
  EXPECT_EQ(print_fabric_file(again), text);
  fabric = fabric_of(file);
  EXPECT_EQ(fabric, fabric_of(again));
  return file;
}

inline std::string import_error(const std::vector<ImportFile>& files,
                                const ImportOptions& options) {
  return error_of([&] { import_fabric(files, options); });
}

}  // namespace refit
