#include "sim/search/schedule.h"

#include <gtest/gtest.h>

#include "plans/check.h"
#include "tests/sim/search/small_fabric.h"

namespace refit {
namespace {

constexpr int32_t kTrainRanks = 8;

/// Tensors that 8 train ranks and 72 gen ranks, these in one NVLink domain, have whole; the next is
/// three times as large.
Problem replicated_problem(int32_t tensors) {
  Problem problem;
  problem.model.layers = 1;
  int64_t elements = 64;
  for (int32_t t = 0; t < tensors; ++t, elements *= 3) {
    Tensor tensor;
    tensor.name = "t" + std::to_string(t);
    tensor.shape = Dims{elements};
    tensor.layer = 0;
    problem.model.tensors.push_back(tensor);
  }
  problem.train = load_layout("megatron:dp=8", problem.model, Side::kTrain, 0);
  problem.gen = load_layout("vllm:dp=72", problem.model, Side::kGen, kTrainRanks);
  problem.demand = make_demand(problem.model, problem.train, problem.gen);
  const FabricSource source = testing::small_fabric(4, 18);
  const PlacedRanks placed =
      place_ranks(node_shape(source), problem.train.ranks, problem.gen.ranks);
  problem.fabric = make_fabric(source, placed.nodes);
  problem.gpu_of_rank = placed.gpu;
  problem.cost = parse_cost(load_cost_source("nominal"));
  return problem;
}

/// Each tensor enters by a rank of its own, which passes it on to all others.
Routing spread(const Problem& problem) {
  Routing routing;
  for (int32_t t = 0; t < std::ssize(problem.model.tensors); ++t) {
    const Tensor& tensor = problem.model.tensors[static_cast<size_t>(t)];
    routing.boxes.push_back(whole(tensor.shape));
    const int32_t entry = problem.gen.ranks[static_cast<size_t>(t)];
    const auto root = static_cast<int32_t>(routing.hops.size());
    routing.hops.push_back({.tensor = t, .box = t, .from = t % kTrainRanks, .to = entry});
    for (const int32_t needer : problem.gen.ranks) {
      if (needer != entry)
        routing.hops.push_back(
            {.tensor = t, .box = t, .from = entry, .to = needer, .parent = root});
    }
  }
  return routing;
}

// 71 peers are 9 steps, and the 8 small sizes that go together at the end would be 72: more than lie
// between two rounds of a channel.
TEST(ScheduleRounds, FanOutOfManySizesFitsBetweenRounds) {
  const Problem problem = replicated_problem(10);
  for (const int32_t fan_channels : {0, 1}) {
    const Plan plan = schedule_rounds(problem, spread(problem), {}, {.fan_channels = fan_channels});
    for (const Fault& fault : check(plan)) ADD_FAILURE() << print_fault(fault);
  }
}

// 2 ranks get 1 MB each over the network and pass it on to 3 others: 3 MB by NVLink at 450 GB/s,
// in 3 steps of 1 MB of which each starts up.
TEST(PortLoad, CountsWhatRanksPassOn) {
  Problem problem = replicated_problem(1);
  problem.model.tensors[0].shape = Dims{500'000};
  Routing routing;
  routing.boxes = {Box{{0}, {500'000}}};
  for (const int32_t entry : {8, 9}) {
    const auto root = static_cast<int32_t>(routing.hops.size());
    routing.hops.push_back({.tensor = 0, .box = 0, .from = entry - 8, .to = entry});
    for (const int32_t needer : {10 + 3 * (entry - 8), 11 + 3 * (entry - 8), 12 + 3 * (entry - 8)})
      routing.hops.push_back({.tensor = 0, .box = 0, .from = entry, .to = needer, .parent = root});
  }
  const PortLoad load = busiest_port(problem, routing);
  EXPECT_EQ(load.network, 1'000'000);
  EXPECT_EQ(load.fan_out, 3'000'000);
  EXPECT_DOUBLE_EQ(load.peers, 3);
  EXPECT_DOUBLE_EQ(load.network_s, 1e6 / 50e9);
  // One step to three peers; in halves two steps.
  problem.cost.nvlink.step_start = 1e-6;
  EXPECT_DOUBLE_EQ(fan_out_seconds(problem, load, 1'000'000), 1e-6 + 3e6 / 450e9);
  EXPECT_DOUBLE_EQ(fan_out_seconds(problem, load, 500'000), 2e-6 + 3e6 / 450e9);
}

// A channel carries 10 GB/s, and a message of up to 16 MiB gets one of the 32 where there are more
// ranks than that: the least messages that keep up with the network are those that get more.
TEST(UsualFanMessage, IsLargeEnoughForItsChannels) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  Problem problem = replicated_problem(1);
  problem.cost.nccl.channels = 32;
  problem.cost.nccl.nvlink = {.channels = 32, .rate = 10e9, .chunk = kMiB / 2, .fills = 0};
  PortLoad load{.network = 8000 * kMiB, .fan_out = 64000 * kMiB, .network_s = 0.9, .peers = 8};
  // With 16 MiB 8 x 10 GB/s take 0.84 s, more than half of the network's 0.9 s; what two rounds bring
  // gets two channels.
  EXPECT_NEAR(fan_out_seconds(problem, load, 16 * kMiB), 0.839, 0.001);
  EXPECT_EQ(usual_fan_message(problem, load, 16 * kMiB), 32 * kMiB);
  // A network that takes four times as long waits for nobody: what a round brings will do.
  load.network_s = 3.6;
  EXPECT_EQ(usual_fan_message(problem, load, 16 * kMiB), 16 * kMiB);
}

}  // namespace
}  // namespace refit
