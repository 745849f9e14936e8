#include "sim/cost/cost_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/refused.h"
#include "tests/sim/fabric/fabrics.h"

namespace refit {
namespace {

TEST(CostModel, NominalCostsNothing) {
  const CostModel cost = parse_cost(load_cost_source("nominal"));
  EXPECT_EQ(cost.name, "nominal");
  for (const LinkCost& link : {cost.nvlink, cost.net}) {
    EXPECT_EQ(link.efficiency, 1);
    EXPECT_EQ(link.flow_rate, 0);
    EXPECT_EQ(link.step_start, 0);
    EXPECT_EQ(link.message_start, 0);
  }
  EXPECT_EQ(cost.gpu_rate, 0);
  EXPECT_EQ(cost.memory_rate, 0);
  EXPECT_EQ(cost.copy_start, 0);
  const Fabric fabric = SmallFabric().make(2);
  const std::vector<double> rates = link_rates(fabric, cost);
  ASSERT_EQ(rates.size(), fabric.links.size());
  for (size_t i = 0; i < rates.size(); ++i) EXPECT_EQ(rates[i], fabric.links[i].rate);
}

// The published figures, to three digits.
TEST(CostModel, AchievableRates) {
  const Fabric h100 = make_fabric(load_fabric_source("dgx-h100"), 1);
  const std::vector<double> rates =
      link_rates(h100, parse_cost(load_cost_source(h100.default_cost)));
  EXPECT_NEAR(rates[static_cast<size_t>(h100.gpus[0].nvlink_in)], 370.8e9, 0.1e9);
  EXPECT_NEAR(rates[static_cast<size_t>(h100.nics[7].out)], 48.4e9, 0.01e9);
  const Fabric gb200 = make_fabric(load_fabric_source("gb200-nvl72"), 1);
  const std::vector<double> gb200_rates =
      link_rates(gb200, parse_cost(load_cost_source(gb200.default_cost)));
  EXPECT_NEAR(gb200_rates[static_cast<size_t>(gb200.gpus[0].nvlink_in)], 721.8e9, 0.1e9);
  EXPECT_NEAR(gb200_rates[static_cast<size_t>(gb200.nics[3].in)], 48.4e9, 0.01e9);
}

// One message of one byte: what was measured as a whole, see the files.
TEST(CostModel, StartUpsAddUp) {
  const auto start = [](const char* fabric_name, bool net) {
    const Fabric fabric = make_fabric(load_fabric_source(fabric_name), 32);
    const CostModel cost = parse_cost(load_cost_source(fabric.default_cost));
    const LinkCost& link = net ? cost.net : cost.nvlink;
    double seconds = link.step_start + link.message_start;
    for (const int32_t id : route(fabric, 0, net ? 64 : 1))
      seconds += fabric.links[static_cast<size_t>(id)].latency;
    return seconds;
  };
  EXPECT_NEAR(start("dgx-h100", false), 6.3e-6, 1e-9);
  EXPECT_NEAR(start("dgx-h100", true), 27e-6, 1e-9);
  EXPECT_NEAR(start("gb200-nvl72", false), 10.5e-6, 1e-9);
  EXPECT_NEAR(start("gb200-nvl72", true), 25.2e-6, 1e-9);
}

TEST(CostModel, EveryFabricHasItsCosts) {
  for (const char* name : {"dgx-h100", "gb200-nvl72", "emulated-4x4"}) {
    const FabricSource source = load_fabric_source(name);
    const int32_t fixed = node_shape(source).fixed_nodes;
    const Fabric fabric = make_fabric(source, fixed > 0 ? fixed : 2);
    EXPECT_EQ(parse_cost(load_cost_source(fabric.default_cost)).name, fabric.default_cost);
  }
  EXPECT_THROW(load_cost_source("no-such-model"), Error);
}

const char* const kRight = R"(name: wrong
nvlink: {efficiency: 0.8, flow_rate: 100GB/s, step_start: 5us, message_start: 1us}
net:
  efficiency: 0.9
  flow_rate: none
  step_start: 20us
  message_start: 2us
gpu_rate: 400GB/s
memory_rate: 1TB/s
copy_start: 4us
)";

TEST(CostModel, EveryFieldIsRead) {
  const CostModel cost = parse_cost({kRight, "right.yaml"});
  EXPECT_EQ(cost.nvlink.efficiency, 0.8);
  EXPECT_EQ(cost.nvlink.flow_rate, 100e9);
  EXPECT_DOUBLE_EQ(cost.nvlink.step_start, 5e-6);
  EXPECT_DOUBLE_EQ(cost.nvlink.message_start, 1e-6);
  EXPECT_EQ(cost.net.efficiency, 0.9);
  EXPECT_EQ(cost.net.flow_rate, 0);
  EXPECT_DOUBLE_EQ(cost.net.step_start, 20e-6);
  EXPECT_DOUBLE_EQ(cost.net.message_start, 2e-6);
  EXPECT_EQ(cost.gpu_rate, 400e9);
  EXPECT_EQ(cost.memory_rate, 1e12);
  EXPECT_DOUBLE_EQ(cost.copy_start, 4e-6);
}

const char* const kNccl = R"(nccl:
  channels: 32
  max_peers: 8
  pxn: true
  nvlink: {channels: 24, channel_rate: 19GB/s, chunk: 512KiB, fills: 1}
  net: {channels: 4, channel_rate: 14GB/s, chunk: 128KiB, fills: 2}
)";

TEST(CostModel, NcclMayBeLeftOut) {
  EXPECT_EQ(parse_cost({kRight, "right.yaml"}).nccl.channels, 0);
  const NcclCost nccl = parse_cost({std::string(kRight) + kNccl, "right.yaml"}).nccl;
  EXPECT_EQ(nccl.channels, 32);
  EXPECT_EQ(nccl.max_peers, 8);
  EXPECT_TRUE(nccl.pxn);
  EXPECT_EQ(nccl.nvlink.channels, 24);
  EXPECT_EQ(nccl.nvlink.rate, 19e9);
  EXPECT_EQ(nccl.nvlink.chunk, 512 * 1024);
  EXPECT_EQ(nccl.net.fills, 2);
}

TEST(CostModel, AWrittenFileReadsBack) {
  for (const char* name : {"nominal", "nccl-h100", "nccl-h100-default", "nccl-gb200", "put-h100",
                           "put-gb200", "emulated"}) {
    const CostModel cost = parse_cost(load_cost_source(name));
    EXPECT_EQ(cost.name, name);
    const CostModel read =
        parse_cost({print_cost(cost, {"made\nup", "a", "b", "c", "d", "e"}), name});
    EXPECT_NEAR(read.nvlink.efficiency, cost.nvlink.efficiency, 1e-6);
    EXPECT_NEAR(read.net.step_start, cost.net.step_start, 1e-11);
    EXPECT_NEAR(read.memory_rate, cost.memory_rate, 1e-6 * cost.memory_rate);
    EXPECT_EQ(read.gpu_rate, cost.gpu_rate);
    EXPECT_EQ(read.nccl.channels, cost.nccl.channels);
    EXPECT_EQ(read.nccl.max_peers, cost.nccl.max_peers);
    EXPECT_EQ(read.nccl.pxn, cost.nccl.pxn);
    EXPECT_EQ(read.nccl.net.chunk, cost.nccl.net.chunk);
    EXPECT_NEAR(read.nccl.nvlink.rate, cost.nccl.nvlink.rate, 1e-6 * cost.nccl.nvlink.rate);
  }
}

TEST(CostModel, SpineAndNicsAreTheNet) {
  SmallFabric small;
  small.network = "{kind: rail-optimized, oversubscription: 2}";
  const Fabric fabric = small.make(2);
  const std::vector<double> rates = link_rates(fabric, parse_cost({kRight, "right.yaml"}));
  EXPECT_DOUBLE_EQ(rates[static_cast<size_t>(fabric.gpus[0].nvlink_out)], 0.8 * 100e9);
  EXPECT_DOUBLE_EQ(rates[static_cast<size_t>(fabric.nics[0].out)], 0.9 * 10e9);
  EXPECT_DOUBLE_EQ(rates[static_cast<size_t>(fabric.leaves[0].down)], 0.9 * 10e9);
}

/// A right model with one text replaced by another that makes it wrong, and what the message has to
/// contain.
struct Wrong {
  const char* name;
  const char* old_text;
  const char* new_text;
  const char* message;
};

class WrongCost : public ::testing::TestWithParam<Wrong> {};

TEST_P(WrongCost, IsRefused) {
  const std::string text =
      with_change(std::string(kRight) + kNccl, GetParam().old_text, GetParam().new_text);
  expect_refused([&] { parse_cost({text, "wrong.yaml"}); }, {"wrong.yaml", GetParam().message});
}

INSTANTIATE_TEST_SUITE_P(
    CostModel, WrongCost,
    ::testing::Values(
        Wrong{"NoName", "name: wrong\n", "", "name"},
        Wrong{"EmptyName", "name: wrong\n", "name: ''\n", "name"},
        Wrong{"UnknownKey", "gpu_rate:", "gpu_rates: none\ngpu_rate:", "gpu_rates"},
        Wrong{"UnknownLinkKey", "  efficiency: 0.9", "  efficiency: 0.9\n  rate: 50GB/s", "rate"},
        Wrong{"NoEfficiency", "  efficiency: 0.9\n", "", "efficiency"},
        Wrong{"ZeroEfficiency", "efficiency: 0.9", "efficiency: 0", "efficiency"},
        Wrong{"NegativeEfficiency", "efficiency: 0.9", "efficiency: -0.9", "efficiency"},
        Wrong{"EfficiencyAboveOne", "efficiency: 0.9", "efficiency: 1.01", "at most 1"},
        Wrong{"EfficiencyNotANumber", "efficiency: 0.9", "efficiency: .nan", "efficiency"},
        Wrong{"EfficiencyWithUnit", "efficiency: 0.9", "efficiency: 90%", "efficiency"},
        Wrong{"NoFlowRate", "  flow_rate: none\n", "", "flow_rate"},
        Wrong{"FlowRateWithoutUnit", "flow_rate: 100GB/s", "flow_rate: 100", "flow_rate"},
        Wrong{"ZeroFlowRate", "flow_rate: 100GB/s", "flow_rate: 0GB/s", "flow_rate"},
        Wrong{"NegativeGpuRate", "gpu_rate: 400GB/s", "gpu_rate: -400GB/s", "gpu_rate"},
        Wrong{"NoGpuRate", "gpu_rate: 400GB/s\n", "", "gpu_rate"},
        Wrong{"MemoryRateIsATime", "memory_rate: 1TB/s", "memory_rate: 1us", "memory_rate"},
        Wrong{"StartWithoutUnit", "step_start: 20us", "step_start: 20", "step_start"},
        Wrong{"NegativeStart", "message_start: 2us", "message_start: -2us", "message_start"},
        Wrong{"NoCopyStart", "copy_start: 4us\n", "", "copy_start"},
        Wrong{"HostWithoutCall", "copy_start: 4us\n", "copy_start: 4us\nhost: {parameter: 1us}\n",
              "call"},
        Wrong{"HostOfAnotherPeer", "copy_start: 4us\n",
              "copy_start: 4us\nhost: {parameter: 1us, call: 1us, tensor: 1us}\n", "tensor"},
        Wrong{"HostWithoutUnit", "copy_start: 4us\n",
              "copy_start: 4us\nhost: {parameter: 1, call: 1us}\n", "parameter"},
        Wrong{"CopyStartIsNone", "copy_start: 4us", "copy_start: none", "copy_start"},
        Wrong{"NetIsNoMap", "net:\n", "net: 1\nnetwork:\n", "net"},
        Wrong{"NoNet", "net:\n", "network:\n", "net"},
        Wrong{"NoChannels", "nccl:\n  channels: 32\n", "nccl:\n", "channels"},
        Wrong{"NoChannelAtAll", "  channels: 32", "  channels: 0", "channels"},
        Wrong{"TooManyChannels", "  channels: 32", "  channels: 65", "channels"},
        Wrong{"PeersAreNobody", "max_peers: 8", "max_peers: none", "max_peers"},
        Wrong{"NoPeers", "max_peers: 8", "max_peers: 0", "max_peers"},
        Wrong{"PxnIsANumber", "pxn: true", "pxn: 2", "pxn"},
        Wrong{"UnknownNcclKey", "  pxn: true", "  pxn: true\n  rings: 3", "rings"},
        Wrong{"UnknownChannelKey", "fills: 1}", "fills: 1, depth: 8}", "depth"},
        Wrong{"ChunkOfNothing", "chunk: 512KiB", "chunk: 1B", "chunk"},
        Wrong{"ChannelWithoutRate", "channel_rate: 14GB/s, ", "", "channel_rate"},
        Wrong{"NegativeFills", "fills: 2", "fills: -1", "fills"},
        Wrong{"RateIsAList", "gpu_rate: 400GB/s", "gpu_rate: [400GB/s]", "gpu_rate"},
        Wrong{"TwiceTheSameKey", "copy_start: 4us", "copy_start: 4us\ncopy_start: 4us",
              "copy_start"}),
    [](const auto& wrong) { return wrong.param.name; });

}  // namespace
}  // namespace refit
