#include <gtest/gtest.h>

#include <cmath>

#include "sim/simulator/simulator.h"
#include "tests/sim/simulator/small.h"

// Published point-to-point measurements against the simulator, from 16 MiB up. A row that supplied
// a constant of the cost model is marked as a fit; the others were not looked at for it. Sources of
// the constants: topologies/cost.

namespace refit {
namespace {

constexpr int64_t kMiB = 1 << 20;

struct Row {
  const char* name;
  const char* fabric;
  const char* cost;
  int32_t to;  // GPU; from GPU 0
  bool both_ways;
  int64_t bytes;
  double rate;  // measured, one way, bytes/s
  bool fitted;
};

class PublishedRow : public ::testing::TestWithParam<Row> {};

TEST_P(PublishedRow, IsWithinTenPercent) {
  const Row& row = GetParam();
  PlanWriter writer(row.to + 1, 1);
  writer.send(0, row.to, 0, 0, row.bytes);
  if (row.both_ways) writer.send(row.to, 0, 0, 0, row.bytes);
  const Fabric fabric = make_fabric(load_fabric_source(row.fabric), 32);
  const double seconds =
      simulate(writer.write(), fabric, parse_cost(load_cost_source(row.cost))).refit_s;
  const double simulated = static_cast<double>(row.bytes) / seconds;
  RecordProperty("permille_off", static_cast<int>(std::lround(1000 * (simulated / row.rate - 1))));
  EXPECT_NEAR(simulated / row.rate, 1, 0.10) << simulated * 1e-9 << " GB/s";
}

INSTANTIATE_TEST_SUITE_P(
    Measured, PublishedRow,
    ::testing::Values(
        // NCCL send/recv between two H100s both ways, aggregate / 2: meta-pytorch/torchcomms
        // comms/prims/docs/P2pNvlSendRecvBenchmark.md. Supplied the start-up (1 byte) and the rate
        // of a channel (16 to 256 MiB).
        Row{"NcclH100_16MiB", "dgx-h100", "nccl-h100", 1, true, 16 * kMiB, 205.5e9, true},
        Row{"NcclH100_64MiB", "dgx-h100", "nccl-h100", 1, true, 64 * kMiB, 262e9, true},
        Row{"NcclH100_256MiB", "dgx-h100", "nccl-h100", 1, true, 256 * kMiB, 302.5e9, true},
        Row{"NcclH100_512MiB", "dgx-h100", "nccl-h100", 1, true, 512 * kMiB, 356e9, true},
        Row{"NcclH100_1GiB", "dgx-h100", "nccl-h100", 1, true, 1024 * kMiB, 361.5e9, true},
        // Put by a copy engine between two H100s: microsoft/mscclpp
        // docs/tutorials/04-port-channel.md. Supplied the start-up (1 KiB).
        Row{"CopyEngineH100_128MiB", "dgx-h100", "put-h100", 1, false, 128 * kMiB, 367.2e9, true},
        // Copy between two GB200s over NV18 by copy engines: torchcomms
        // comms/ctran/gpe/benchmarks/results.md, without and with a graph. Supplied nothing.
        Row{"CopyEngineGb200_1GiB", "gb200-nvl72", "put-gb200", 1, false, 1024 * kMiB, 776.9e9,
            false},
        Row{"CopyEngineGb200Graph_1GiB", "gb200-nvl72", "put-gb200", 1, false, 1024 * kMiB, 779.8e9,
            false},
        // IBGDA put between two GB200s, one 400 Gbps NIC: torchcomms
        // comms/prims/benchmarks/results/IbrcBenchmarkResults.md. Supplied nothing.
        Row{"IbgdaGb200_16MiB", "gb200-nvl72", "put-gb200", 64, false, 16 * kMiB, 45.4e9, false},
        Row{"IbgdaGb200_1GiB", "gb200-nvl72", "put-gb200", 64, false, 1024 * kMiB, 48.35e9, false}),
    [](const auto& row) { return std::string(row.param.name) + (row.param.fitted ? "_fit" : ""); });

}  // namespace
}  // namespace refit
