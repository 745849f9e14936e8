#include <gmock/gmock.h>

#include "tests/sim/fabric/imports.h"

namespace refit {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ImportFile fixture(const std::string& name) {
  return {read_file(REFIT_SOURCE_DIR "/tests/sim/fabric/data/" + name), name};
}

using Lists = std::vector<std::vector<int32_t>>;

/// NICs of every GPU, by number.
Lists nics_of_gpus(const Fabric& fabric) {
  Lists result;
  for (const Gpu& gpu : fabric.gpus) result.push_back(gpu.nics);
  return result;
}

TEST(ImportSmi, GpusAndNics) {
  Fabric fabric;
  const FabricFile file =
      import_and_reload({fixture("smi_h100_8_nics.txt")}, {.gpu = "h100", .nic = 50e9}, fabric);
  EXPECT_EQ(file.kinds[0].nics[1].name, "mlx5_3") << "the legend says what NIC1 is";
  EXPECT_EQ(file.kinds[0].nvlink.rate, 18 * 25e9);
  EXPECT_EQ(nics_of_gpus(fabric), (Lists{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}));
  EXPECT_THAT(find_faults(fabric), IsEmpty());
}

TEST(ImportSmi, OddPastesReadTheSame) {
  const ImportOptions options{.gpu = "h100", .nic = 50e9};
  const FabricFile right = import_fabric({fixture("smi_h100_8_nics.txt")}, options);
  EXPECT_EQ(import_fabric({fixture("smi_lost_tab.txt")}, options), right);
  EXPECT_EQ(import_fabric({fixture("smi_coloured_indented.txt")}, options), right);
  ImportFile glued = fixture("smi_h100_8_nics.txt");
  glued.text.insert(0, "node-a:~$ nvidia-smi topo -m\n");
  EXPECT_EQ(import_fabric({glued}, options), right);
}

TEST(ImportSmi, CutRowsAreReadFromTheirMirror) {
  Fabric fabric;
  import_and_reload({fixture("smi_36_nics.txt")}, {.gpu = "h100", .nic = 12.5e9}, fabric);
  EXPECT_EQ(fabric.nics.size(), 36u);
  EXPECT_EQ(nics_of_gpus(fabric)[7], (std::vector<int32_t>{28, 29, 30, 31}));
  // NIC32 to NIC35 are near no GPU.
  EXPECT_THAT(find_faults(fabric), ElementsAre(HasSubstr("NIC32: no GPU"), HasSubstr("NIC33"),
                                               HasSubstr("NIC34"), HasSubstr("NIC35")));
  // Without the mirror rows nothing says what is in the cut cells.
  ImportFile cut = fixture("smi_36_nics.txt");
  cut.text.resize(cut.text.find("NIC32\tSYS"));
  EXPECT_THAT(import_error({cut}, {.gpu = "h100", .nic = 12.5e9}),
              AllOf(HasSubstr("smi_36_nics.txt:2"), HasSubstr("GPU0 and NIC32"), HasSubstr("44")));
}

TEST(ImportSmi, OneGpuOffNvlink) {
  Fabric fabric;
  import_and_reload({fixture("smi_gpu2_off_nvlink.txt")}, {.gpu = "h100"}, fabric);
  EXPECT_EQ(fabric.domains, (Lists{{0, 1, 3, 4, 5, 6, 7}, {2}}));
  EXPECT_EQ(fabric.gpus[2].nvlink_out, -1);
}

TEST(ImportSmi, PairsOfBridgedGpus) {
  Fabric fabric;
  import_and_reload({fixture("smi_pairs.txt")}, {.gpu = "a100"}, fabric);
  EXPECT_EQ(fabric.domains, (Lists{{0, 3}, {1, 2}, {4, 5}}));
  EXPECT_EQ(fabric.links.size(), 6u);
  EXPECT_EQ(fabric.links[0].rate, 4 * 25e9);
}

TEST(ImportSmi, TwoMatricesAreTwoHosts) {
  Fabric fabric;
  std::vector<std::string> notes;
  const FabricFile file =
      import_and_reload({fixture("smi_two_matrices.txt")}, {.gpu = "a100"}, fabric, &notes);
  EXPECT_EQ(file.hosts.size(), 2u);
  EXPECT_EQ(fabric.domains, (Lists{{0, 1}, {2}, {3}}));
  EXPECT_THAT(notes, Contains(HasSubstr("topo -p2p")));
}

TEST(ImportSmi, WithoutHeaderRowsNameTheColumns) {
  Fabric fabric;
  import_and_reload({fixture("smi_no_header.txt")}, {.gpu = "a100", .nic = 25e9}, fabric);
  EXPECT_EQ(fabric.gpus.size(), 2u);
  EXPECT_EQ(nics_of_gpus(fabric), (Lists{{0}, {0}}));
}

TEST(ImportSmi, RefusesWhatItCannotKnow) {
  const ImportFile right = fixture("smi_h100_8_nics.txt");
  EXPECT_THAT(import_error({right}, {.nic = 50e9}), AllOf(HasSubstr("NV18"), HasSubstr("--gpu")));
  EXPECT_THAT(import_error({right}, {.gpu = "h100"}),
              AllOf(HasSubstr("mlx5_0"), HasSubstr("--nic")));
  EXPECT_THAT(import_error({right}, {.gpu = "rtx", .nic = 50e9}), HasSubstr("rtx"));
  EXPECT_THAT(import_error({fixture("rocm_smi.txt")}, {}), HasSubstr("rocm-smi"));
  const auto changed = [&](const std::string& from, const std::string& to) {
    ImportFile file = right;
    file.text.replace(file.text.find(from), from.size(), to);
    return import_error({file}, {.gpu = "h100", .nic = 50e9});
  };
  EXPECT_THAT(changed("GPU1\tNV18", "GPU1\tNV17"), HasSubstr("smi_h100_8_nics.txt:2"));
  EXPECT_THAT(changed("GPU1\tNV18", "GPU1\tPIX"), HasSubstr("way back"));
  EXPECT_THAT(changed("GPU1\tNV18\t", "GPU1\t"), HasSubstr("GPU1"));
  EXPECT_THAT(changed("GPU1\tNV18", "GPU1\tNV18\tNV18\tNV18"), HasSubstr("16 columns"));
  EXPECT_THAT(changed("\nGPU2\t", "\nGPU1\t"), HasSubstr("twice"));
  EXPECT_THAT(changed("\nNIC7\t", "\nNIC9\t"), HasSubstr("NIC9"));
}

TEST(ImportNccl, HostsApartByHash) {
  Fabric fabric;
  const FabricFile file = import_and_reload({fixture("nccl_two_hosts.xml")}, {}, fabric);
  EXPECT_EQ(file.hosts.size(), 2u);
  EXPECT_EQ(file.kinds.size(), 1u) << "the trays are alike";
  EXPECT_EQ(fabric.domains, (Lists{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(file.kinds[0].nvlink.rate, 900e9);
  EXPECT_EQ(fabric.nics.size(), 8u);
  EXPECT_EQ(file.kinds[0].nics[0].rate, 100e9);
}

TEST(ImportNccl, BridgesAndWhatMeansNothing) {
  Fabric fabric;
  std::vector<std::string> notes;
  const FabricFile file = import_and_reload({fixture("nccl_bridge.xml")}, {}, fabric, &notes);
  ASSERT_EQ(file.kinds[0].bridges.size(), 1u);
  EXPECT_EQ(file.kinds[0].bridges[0], (Bridge{0, 1, 3 * 25e9}));
  EXPECT_EQ(fabric.nics.size(), 2u) << "both ports of the card";
  EXPECT_EQ(nics_of_gpus(fabric), (Lists{{0}, {1}}));
  EXPECT_THAT(notes, Contains(HasSubstr("docker0")));
  EXPECT_THAT(notes, Contains(HasSubstr("0000:99:00.0")));
  EXPECT_THAT(notes, Contains(HasSubstr("0000:1d:00.0")));
}

TEST(ImportNccl, TwoGpusInOneDevice) {
  Fabric fabric;
  import_and_reload({fixture("nccl_mlopart.xml")}, {}, fabric);
  EXPECT_EQ(fabric.domains, (Lists{{0, 1}}));
}

TEST(ImportNccl, RefusesByName) {
  EXPECT_THAT(import_error({fixture("nccl_not_closed.xml")}, {}),
              AllOf(HasSubstr("nccl_not_closed.xml:3"), HasSubstr("</system>")));
  EXPECT_THAT(import_error({fixture("nccl_fragment.xml")}, {}),
              AllOf(HasSubstr("nccl_fragment.xml:1"), HasSubstr("<pci>")));
  EXPECT_THAT(import_error({fixture("hwloc.xml")}, {}), HasSubstr("hwloc"));
  EXPECT_THAT(import_error({fixture("nccl_graph.xml")}, {}), HasSubstr("not a topology"));
  ImportFile file = fixture("nccl_bridge.xml");
  file.text.replace(file.text.find("count=\"3\""), 9, "count=\"2\"");
  EXPECT_THAT(import_error({file}, {}), HasSubstr("2 NVLinks from GPU 0 to 1, 3 back"));
  file = fixture("nccl_two_hosts.xml");
  for (size_t at; (at = file.text.find("sm=\"103\"")) != std::string::npos;)
    file.text.replace(at, 8, "sm=\"199\"");
  EXPECT_THAT(import_error({file}, {}), AllOf(HasSubstr("sm 199"), HasSubstr("--gpu")));
}

TEST(ImportInfiniband, LeavesSpinesAndNames) {
  Fabric fabric;
  std::vector<std::string> notes;
  const FabricFile file =
      import_and_reload({small_node(2, 2), fixture("ibnetdiscover.out")}, {}, fabric, &notes);
  ASSERT_EQ(file.hosts.size(), 2u);
  // spine-01 and spine-02 are one; cables add up: 3 x 400 Gbps of leaf-01, 2 of leaf-02.
  ASSERT_EQ(file.switches.size(), 3u);
  EXPECT_EQ(file.switches[0].name, "spine-01 and 1 more");
  for (const SwitchEntry& item : file.switches) {
    const double cables = item.name == "leaf-01" ? 3 : item.name == "leaf-02" ? 2 : 0;
    EXPECT_EQ(item.up.rate, cables * 50e9) << item.name;
  }
  // "host-1 mlx5_1" and "host-2 HCA-2" are the second NIC of their hosts, on leaf-02.
  EXPECT_EQ(route(fabric, 1, 3).size(), 2u);
  EXPECT_EQ(route(fabric, 1, 2).size(), 4u);
  EXPECT_THAT(notes, Contains(HasSubstr("cabled to itself")));
  EXPECT_THAT(notes, Contains(HasSubstr("1 aggregation nodes")));
  EXPECT_THAT(notes, Contains(HasSubstr("1 NICs left out")));
  EXPECT_THAT(notes, Contains(HasSubstr("1 lines before the first record")));
  EXPECT_THAT(find_faults(fabric), IsEmpty());
}

TEST(ImportInfiniband, CaRecordsAlone) {
  Fabric fabric;
  const FabricFile file = import_and_reload(
      {small_node(2, 2, "200Gbps"), fixture("ibnetdiscover_ca_only.out")}, {}, fabric);
  EXPECT_EQ(file.hosts.size(), 2u);
  EXPECT_EQ(file.switches.size(), 2u);
  EXPECT_TRUE(file.changes.empty());
}

TEST(ImportInfiniband, LinkInfoCountsLanes) {
  Fabric fabric;
  const FabricFile file =
      import_and_reload({small_node(1, 1), fixture("iblinkinfo.out")}, {}, fabric);
  EXPECT_EQ(file.hosts.size(), 2u);
  // 4X 53.125 is HDR, 200 Gbps; the node says 400: both hosts differ from it.
  ASSERT_EQ(file.changes.size(), 2u);
  EXPECT_EQ(fabric.links[static_cast<size_t>(fabric.nics[0].out)].rate, 25e9);
  EXPECT_EQ(fabric.leaves.size(), 2u);
}

TEST(ImportInfiniband, Refuses) {
  const ImportFile right = fixture("ibnetdiscover.out");
  EXPECT_THAT(import_error({right}, {}), AllOf(HasSubstr("2 hosts"), HasSubstr("node file")));
  EXPECT_THAT(import_error({small_node(8, 8), right}, {}),
              AllOf(HasSubstr("mlx5_"), HasSubstr("8")));
  const auto changed = [&](const std::string& from, const std::string& to) {
    ImportFile file = right;
    file.text.replace(file.text.find(from), from.size(), to);
    return import_error({small_node(2, 2), file}, {});
  };
  EXPECT_THAT(changed("lid 7 4xNDR", "lid 7 4xHDR"), HasSubstr("from the other end"));
  EXPECT_THAT(changed("lid 7 4xNDR", "lid 7 4xZDR"), HasSubstr("4xZDR"));
  EXPECT_THAT(changed("[2]\t\"H-c201\"[1]", "[1]\t\"H-c201\"[1]"), HasSubstr("another cable"));
  EXPECT_THAT(changed("[2]\t\"H-c201\"", "nonsense"), HasSubstr("ibnetdiscover.out:11"));
  EXPECT_THAT(import_error({small_node(2, 2), right, right}, {}), HasSubstr("another file"));
  EXPECT_THAT(import_error({small_node(2, 2), small_node(4, 4), right}, {}), HasSubstr("2 kinds"));
  EXPECT_THAT(
      import_error({{"# ibsim\nSwitch 8 \"S1\"\n[1] \"H1\"[1]\n\nHca 2 \"H1\"\n", "net"}}, {}),
      HasSubstr("ibsim"));
}

TEST(ImportSlurm, TreeOfThreeTiers) {
  Fabric fabric;
  const FabricFile file =
      import_and_reload({small_node(1, 1), fixture("slurm_tree.conf")}, {}, fabric);
  std::vector<std::string> names;
  for (const HostEntry& host : file.hosts) names.push_back(host.name);
  EXPECT_THAT(names, ElementsAre("node01", "node02", "node03", "node04", "node7", "gpu-a", "gpu-b",
                                 "0xdead01", "node10", "node11"));
  EXPECT_EQ(file.switches.size(), 7u);
  // Nothing says how fast they are joined: nothing binds but NICs.
  EXPECT_EQ(route(fabric, 0, 9).size(), 2u);
}

TEST(ImportSlurm, BlocksAreNvlinkDomains) {
  Fabric fabric;
  import_and_reload({small_node(2, 2), fixture("slurm_block.conf")}, {}, fabric);
  EXPECT_THAT(fabric.domain_names, ElementsAre("rack1", "rack2"));
  EXPECT_EQ(fabric.domains, (Lists{{0, 1, 2, 3}, {4, 5, 6, 7}}));
}

TEST(ImportSlurm, BlocksJoinAnInfinibandFile) {
  ImportFile blocks{"BlockName=b Nodes=host-[1-2]\n", "topology.conf"};
  Fabric fabric;
  const FabricFile file =
      import_and_reload({small_node(2, 2), blocks, fixture("ibnetdiscover.out")}, {}, fabric);
  EXPECT_EQ(file.switches.size(), 3u);
  EXPECT_EQ(fabric.domains, (Lists{{0, 1, 2, 3}}));
}

TEST(ImportSlurm, Refuses) {
  const auto refused = [](const std::string& text) {
    return import_error({small_node(1, 1), {text, "topology.conf"}}, {});
  };
  EXPECT_THAT(refused("SwitchName=a Switches=b\nSwitchName=b Switches=a\n"),
              HasSubstr("above itself"));
  EXPECT_THAT(refused("SwitchName=a Switches=b\n"),
              AllOf(HasSubstr("topology.conf:1"), HasSubstr("\"b\"")));
  EXPECT_THAT(refused("SwitchName=a Nodes=n[1-3]\nSwitchName=b Nodes=n3\n"),
              HasSubstr("topology.conf:2"));
  EXPECT_THAT(refused("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n"), HasSubstr("twice"));
  EXPECT_THAT(refused("SwitchName=a Nodes=n[1-\n"), HasSubstr("n[1-"));
  EXPECT_THAT(refused("SwitchName=a Nodes=n[3-1]\n"), HasSubstr("rises"));
  EXPECT_THAT(refused("SwitchName=a Nodes=n[0-99999999]\n"), HasSubstr("fewer"));
  EXPECT_THAT(refused("SwitchName=a Nods=n1\n"), HasSubstr("Nods"));
  EXPECT_THAT(refused("#BlockName=b1 Nodes=n[1-4]\n"), HasSubstr("commented out"));
  EXPECT_THAT(refused("BlockName=b Nodes=n1\nSwitchName=s Nodes=n2\n"), HasSubstr("one of them"));
  EXPECT_THAT(refused("SwitchName=a Switches=c\nSwitchName=b Switches=c\nSwitchName=c Nodes=n\n"),
              HasSubstr("below"));
}

TEST(ImportOther, RefusesByName) {
  EXPECT_THAT(import_error({{"", "f"}}, {}), HasSubstr("empty"));
  EXPECT_THAT(import_error({{"hello\n", "f"}}, {}), HasSubstr("no kind that is known"));
  EXPECT_THAT(import_error({{"18 8 1 9 24 H100\n8 9 10\n", "f"}}, {}), HasSubstr("SimAI"));
  EXPECT_THAT(import_error({{"topology: [ Switch ]\nnpus_count: [ 8 ]\n", "f"}}, {}),
              HasSubstr("ASTRA-sim"));
  EXPECT_THAT(import_error({}, {}), HasSubstr("no file"));
}

/// Cut anywhere and with bytes changed, a file is read or refused: no crash, no endless loop.
TEST(ImportOther, SurvivesCutAndChangedFiles) {
  uint32_t state = 1;
  const auto next = [&](size_t below) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % below;
  };
  for (const char* name : {"smi_h100_8_nics.txt", "nccl_two_hosts.xml", "nccl_bridge.xml",
                           "ibnetdiscover.out", "iblinkinfo.out", "slurm_tree.conf"})
    for (int i = 0; i < 150; ++i) {
      ImportFile file = fixture(name);
      if (i % 3 == 0) file.text.resize(next(file.text.size()));
      for (size_t changes = next(4); changes > 0 && !file.text.empty(); --changes)
        file.text[next(file.text.size())] = static_cast<char>(next(256));
      for (const bool with_node : {false, true}) {
        std::vector<ImportFile> files = {file};
        if (with_node) files.push_back(small_node(2, 2));
        try {
          fabric_of(import_fabric(files, {.gpu = "h100", .nic = 50e9}));
        } catch (const Error&) {
        }
      }
    }
}

}  // namespace
}  // namespace refit
