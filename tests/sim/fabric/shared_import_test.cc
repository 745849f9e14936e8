// Every public file under ../shared is imported with the counts that were taken from it by hand
// (grep and eye), or refused for a reason. Without ../shared the cases are skipped.

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "tests/sim/fabric/imports.h"

namespace refit {
namespace {

using ::testing::HasSubstr;

struct Expected {
  const char* file = "";
  const char* refused = nullptr;  // what the message says; nullptr: imported
  size_t hosts = 1, gpus = 0, nics = 0, domains = 0, rails = 0;
  ImportOptions options = {};
  int node_gpus = 0, node_nics = 0;  // of the node given beside a network file
  size_t plugged = 0, switches = 0;  // of a network file
};

std::string shared_folder() {
  const char* given = std::getenv("REFIT_SHARED");
  return std::string(given ? given : REFIT_SOURCE_DIR "/../shared") + "/data/";
}

const Expected kFiles[] = {
    // <pci class="0x0302..."/> and "0x02..." leaves counted; NVLink is nowhere, so a GPU is a
    // domain.
    {"nccl_topo_xml/aws_p4d-24xl-topo.xml", nullptr, 1, 8, 4, 8, 4, {.nic = 12.5e9}},
    {"nccl_topo_xml/aws_p4de-24xl-topo.xml", nullptr, 1, 8, 4, 8, 4, {.nic = 12.5e9}},
    {"nccl_topo_xml/azure_ndv2-topo.xml", nullptr, 1, 8, 1, 8, 1, {.nic = 12.5e9}},
    {"nccl_topo_xml/azure_ndv4-topo.xml", nullptr, 1, 8, 8, 8, 8, {.nic = 25e9}},
    {"nccl_topo_xml/azure_ndv5-topo.xml", nullptr, 1, 8, 8, 8, 8, {.nic = 50e9}},
    {"nccl_topo_xml/oci_topo-flattened.xml", nullptr, 1, 8, 8, 8, 8, {.nic = 25e9}},
    {"nccl_topo_xml/oci_topo-flattened-b4.xml", nullptr, 1, 8, 8, 8, 8, {.nic = 25e9}},
    // <gpu> and <net> counted.
    {"nccl_topo_xml/aws_p5.48xl-topo_2026.xml", nullptr, 1, 8, 32, 8, 32, {}},
    {"nccl_topo_xml/oci_BM.GPU.H100-topology.xml", nullptr, 1, 8, 16, 1, 16, {}},
    {"nccl_topo_xml/oci_BM.GPU.H100-topology-kubernetes.xml", nullptr, 1, 8, 16, 1, 16, {}},
    {"nccl_topo_xml/modal_b200_vm_nvlink_mesh.xml", nullptr, 1, 8, 13, 1, 13, {}},
    // 60 more <net> are of docker and calico, outside PCIe; no NVLink.
    {"nccl_topo_xml/rtx4090_8numa_calico.xml", nullptr, 1, 4, 1, 4, 1, {}},
    {"nccl_topo_xml/modal_b200_graph.xml", "not a topology"},
    {"nccl_topo_xml/rccl_mi300x_8p.xml", "AMD"},
    {"nccl_topo_xml/rccl_mi300x_8p_vm.xml", "AMD"},
    {"nccl_topo_xml/rccl_rome_mi50_1nic.xml", "AMD"},

    {"nvidia_smi_topo/a100_4gpu_nv4_4numa.txt", nullptr, 1, 4, 0, 1, 0, {.gpu = "a100"}},
    {"nvidia_smi_topo/a100_8gpu_condensed_blanks.txt", nullptr, 1, 8, 0, 1, 0, {.gpu = "a100"}},
    {"nvidia_smi_topo/b200_8gpu_no_nic.txt", nullptr, 1, 8, 0, 1, 0, {.gpu = "b200"}},
    {"nvidia_smi_topo/h100_8gpu_condensed_blanks.txt", nullptr, 1, 8, 0, 1, 0, {.gpu = "h100"}},
    {"nvidia_smi_topo/dgx1_v100_8gpu_hybrid_cube_mesh.txt",
     nullptr,
     1,
     8,
     4,
     1,
     4,
     {.gpu = "v100", .nic = 12.5e9}},
    // NV2 in the first machine, PHB in the second.
    {"nvidia_smi_topo/two_gpu_nv2_and_phb_numa_na.txt", nullptr, 2, 4, 0, 3, 0, {.gpu = "v100"}},

    // 119 "gpunode-NNN", ubuntu and ufm-02; NICs by their text: 102 + 102 + 92 + 102 HCA-n, 4 x 17
    // mlx5_n, 2 of ubuntu, 2 of ufm-02. 31 leaves; 9 spines share leaves and are one.
    {"fabric/ibnetdiscover_dgx_ndr_119nodes.out",
     nullptr,
     121,
     968,
     484,
     121,
     4,
     {},
     8,
     4,
     470,
     32},
    // 3 hosts; two leaves with hosts, one spine.
    {"fabric/ibnetdiscover_p_ports.out", nullptr, 3, 3, 3, 3, 1, {}, 1, 1, 3, 3},
    {"fabric/slurm_block_azure_gb200.conf", nullptr, 72, 288, 288, 4, 4, {}, 4, 4, 288, 1},
    {"fabric/slurm_tree_azure.conf", nullptr, 16, 128, 128, 16, 8, {}, 8, 8, 128, 6},
    {"fabric/slurm_tree_oci_sim.conf", nullptr, 96, 768, 768, 96, 8, {}, 8, 8, 768, 19},
    {"fabric/ibsim_net_2switch.txt", "ibsim"},
    {"fabric/ibsim_net_2sw2path4hca.txt", "ibsim"},
    {"fabric/ibsim_net_dual_port_hca.txt", "ibsim"},
    {"fabric/astrasim_h100_validated_flow_style.yml", "ASTRA-sim"},
    {"fabric/astrasim_hgx_h100_8gpu.yml", "ASTRA-sim"},
    {"fabric/astrasim_hgx_h100_32gpu.yml", "ASTRA-sim"},
    {"fabric/htsim_8nodes.topo", "htsim"},
    {"fabric/topograph_nvl72.yaml", "topograph"},
    {"fabric/topograph_dual_irregular_racks.yaml", "topograph"},
    {"fabric/simai_spectrumx_128g_A100.txt", "SimAI"},
    {"fabric/simai_spectrumx_8g_H100.txt", "SimAI"},
    {"fabric/simai_rail_6field_header_A100.txt", "SimAI"},
};

TEST(SharedImport, EveryFileAsCountedByHand) {
  if (!std::filesystem::exists(shared_folder())) GTEST_SKIP() << "skipped: no ../shared";
  for (const Expected& expected : kFiles) {
    SCOPED_TRACE(expected.file);
    std::vector<ImportFile> files = {{read_file(shared_folder() + expected.file), expected.file}};
    if (expected.node_gpus > 0) files.push_back(small_node(expected.node_gpus, expected.node_nics));
    if (expected.refused != nullptr) {
      EXPECT_THAT(import_error(files, expected.options), HasSubstr(expected.refused));
      continue;
    }
    Fabric fabric;
    try {
      import_and_reload(files, expected.options, fabric);
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
      continue;
    }
    const FabricCounts counts = count_parts(fabric);
    EXPECT_EQ(counts.nodes, expected.hosts);
    EXPECT_EQ(counts.gpus, expected.gpus);
    EXPECT_EQ(counts.nics, expected.nics);
    EXPECT_EQ(counts.domains, expected.domains);
    EXPECT_EQ(counts.rails, expected.rails);
    if (expected.switches == 0) continue;
    EXPECT_EQ(fabric.leaves.size(), expected.switches);
    EXPECT_EQ(static_cast<size_t>(
                  std::ranges::count_if(fabric.nics, [](const Nic& nic) { return nic.out >= 0; })),
              expected.plugged);
  }
}

TEST(SharedImport, NoFileIsForgotten) {
  if (!std::filesystem::exists(shared_folder())) GTEST_SKIP() << "skipped: no ../shared";
  std::set<std::string> known, there;
  for (const Expected& expected : kFiles) known.insert(expected.file);
  for (const std::string folder : {"nccl_topo_xml", "nvidia_smi_topo", "fabric"})
    for (const auto& entry : std::filesystem::directory_iterator(shared_folder() + folder))
      there.insert(folder + "/" + entry.path().filename().string());
  EXPECT_EQ(known, there);
}

TEST(SharedImport, RatesOfRealFiles) {
  if (!std::filesystem::exists(shared_folder())) GTEST_SKIP() << "skipped: no ../shared";
  const auto import = [](const std::string& name, const ImportOptions& options) {
    return import_fabric({{read_file(shared_folder() + name), name}}, options);
  };
  // 18 links in four counts of 5, 5, 4, 4 to four NVSwitches.
  EXPECT_EQ(import("nccl_topo_xml/oci_BM.GPU.H100-topology.xml", {}).kinds[0].nvlink.rate, 450e9);
  // A mesh that sums to 126 links of a GPU is an NVSwitch of 18.
  EXPECT_EQ(import("nccl_topo_xml/modal_b200_vm_nvlink_mesh.xml", {}).kinds[0].nvlink.rate, 900e9);
  // Two ports of 180 Gbit/s a GPU; four of 100 on AWS.
  const NodeKind oci = import("nccl_topo_xml/oci_BM.GPU.H100-topology.xml", {}).kinds[0];
  EXPECT_EQ(oci.nics[5].rate, 22.5e9);
  EXPECT_EQ(oci.nics[5].gpus, std::vector<int32_t>{2});
  const NodeKind p5 = import("nccl_topo_xml/aws_p5.48xl-topo_2026.xml", {.nvlink = 450e9}).kinds[0];
  EXPECT_EQ(p5.nics[31].gpus, std::vector<int32_t>{7});
  EXPECT_TRUE(p5.nvswitch);
  // One NIC for eight GPUs of two sockets.
  const NodeKind ndv2 = import("nccl_topo_xml/azure_ndv2-topo.xml", {.nic = 12.5e9}).kinds[0];
  EXPECT_EQ(ndv2.nics[0].gpus.size(), 8u);
  EXPECT_EQ(ndv2.pcie.size(), 2u) << "GPUs without NVLink talk over the two sockets";
  // DGX-1: GPU 0 to 3 and 4 are neighbours with two NVLinks, 0 to 5 are none.
  const FabricFile dgx1 =
      import("nvidia_smi_topo/dgx1_v100_8gpu_hybrid_cube_mesh.txt", {.gpu = "v100", .nic = 12.5e9});
  const Fabric cube = build_fabric(dgx1, 1);
  EXPECT_EQ(route(cube, 0, 4).size(), 1u);
  EXPECT_EQ(route(cube, 0, 5).size(), 2u);
  EXPECT_EQ(cube.links[static_cast<size_t>(route(cube, 0, 4)[0])].rate, 50e9);
  EXPECT_EQ(dgx1.kinds[0].nics[1].name, "mlx5_2");
  EXPECT_EQ(dgx1.kinds[0].nics[1].gpus, (std::vector<int32_t>{4, 5}));
}

}  // namespace
}  // namespace refit
