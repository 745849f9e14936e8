// Plans on fabrics whose parts differ: they follow the bound for the right reason.

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "sim/search/problem.h"
#include "sim/search/search.h"
#include "tests/temporary_folder.h"

namespace refit {
namespace {

struct Scene {
  const char* name;
  const char* model;
  const char* train;
  const char* gen;
  const char* fabric;
  std::vector<std::string> exclude = {};
  const char* whole = nullptr;  // fabric to compare with
  double slower = 1;            // bound beside that of `whole`
  int32_t attempts = 12;
};

void PrintTo(const Scene& scene, std::ostream* out) { *out << scene.name; }

Problem load(const Scene& scene) {
  return load_problem({.model = scene.model,
                       .train = scene.train,
                       .gen = scene.gen,
                       .fabric = scene.fabric,
                       .cost = "",
                       .dtype = "",
                       .exclude = scene.exclude});
}

/// No transfer between NVLink domains leaves its rail.
void expect_one_rail(const Plan& plan) {
  for (size_t rank = 0; rank < plan.programs.size(); ++rank) {
    for (const Message& message : plan.programs[rank].messages) {
      if (same_domain(plan, static_cast<int32_t>(rank), message.peer)) continue;
      ASSERT_EQ(plan.ranks[rank].rails, plan.ranks[static_cast<size_t>(message.peer)].rails);
    }
  }
}

class Uneven : public ::testing::TestWithParam<Scene> {};

TEST_P(Uneven, WithinATenthOfTheBound) {
  const Scene& scene = GetParam();
  const Problem problem = load(scene);
  const LowerBound bound = lower_bound(problem);
  if (scene.whole != nullptr) {
    Scene whole = scene;
    whole.fabric = scene.whole;
    whole.exclude.clear();
    EXPECT_NEAR(bound.seconds / lower_bound(load(whole)).seconds, scene.slower, 1e-6);
  }
  const Plan plan = search(problem, {.attempts = scene.attempts});
  EXPECT_GE(plan.prediction.predicted_s, plan.prediction.lower_bound_s);
  EXPECT_LE(plan.prediction.predicted_s, 1.10 * plan.prediction.lower_bound_s) << bound.reason;
  if (!is_joined(problem.fabric)) expect_one_rail(plan);
}

// Bounds by hand, with 1 for a NIC: a node of eight has 8; one down leaves 7; one at half rate 7.5.
// Of two gen nodes that each need all, the one with NICs of half the rate takes twice as long.
INSTANTIATE_TEST_SUITE_P(
    Fabrics, Uneven,
    ::testing::Values(
        Scene{"rail_only",
              "qwen3-4b",
              "megatron:tp=4,pp=2",
              "vllm:tp=8",
              "dgx-h100-rail-only",
              {},
              "dgx-h100"},
        Scene{"rail_only_experts",
              "qwen3-30b-a3b",
              "megatron:ep=8,pp=2",
              "vllm:tp=8,dp=2",
              "dgx-h100-rail-only",
              {},
              "dgx-h100",
              1,
              2},
        Scene{"rail_only_engines",
              "qwen3-8b",
              "megatron:tp=4,pp=2",
              "vllm:tp=8,dp=2",
              "dgx-h100-rail-only",
              {},
              "dgx-h100"},
        Scene{"nic_of_gen_down",
              "qwen3-4b",
              "megatron:dp=8",
              "vllm:tp=8",
              "dgx-h100",
              {"n1.nic3"},
              "dgx-h100",
              8.0 / 7},
        Scene{"nic_of_train_down",
              "qwen3-4b",
              "megatron:tp=8",
              "vllm:tp=8",
              "dgx-h100",
              {"n0.nic3"},
              "dgx-h100",
              8.0 / 7},
        Scene{"slow_rail",
              "qwen3-4b",
              "megatron:dp=8",
              "vllm:tp=8",
              "dgx-h100:*.nic5=200Gbps",
              {},
              "dgx-h100",
              8 / 7.5},
        Scene{"nic_of_gen_down_stages",
              "qwen3-4b",
              "megatron:tp=4,pp=2",
              "vllm:tp=8",
              "dgx-h100",
              {"n1.nic0"},
              "dgx-h100",
              8.0 / 7},
        Scene{"nic_of_gen_down_experts",
              "qwen3-30b-a3b",
              "megatron:ep=8,pp=2",
              "vllm:tp=8,dp=2",
              "dgx-h100",
              {"n2.nic0"},
              "dgx-h100",
              8.0 / 7,
              2},
        Scene{"slow_rail_experts",
              "qwen3-30b-a3b",
              "megatron:ep=8,pp=2",
              "vllm:tp=8,dp=2",
              "dgx-h100:*.nic3=200Gbps",
              {},
              "dgx-h100",
              8 / 7.5,
              2},
        Scene{"half_of_the_nodes",
              "qwen3-4b",
              "megatron:dp=16",
              "vllm:tp=8,dp=2",
              "dgx-h100:n3.nic*=200Gbps",
              {},
              "dgx-h100",
              2},
        Scene{"four_gpus_a_nic",
              "qwen3-1.7b",
              "megatron:pp=8",
              "vllm:tp=8",
              "emulated-4x4",
              {},
              nullptr,
              1,
              2},
        Scene{"several_nics", "qwen3-4b", "megatron:dp=8", "vllm:tp=8", "aws-p5", {}, "dgx-h100"},
        Scene{"oversubscribed",
              "qwen3-4b",
              "megatron:tp=4,pp=2,dp=2",
              "vllm:tp=8,dp=2",
              "dgx-h100-2to1",
              {},
              "dgx-h100"}),
    [](const auto& scene) { return scene.param.name; });

constexpr const char* kTwoLeaves =
    "name: f\ndefault_cost: nccl-h100\n"
    "node: {gpus: 8, nvlink: 450GB/s, nvlink_latency: 300ns, nics: 8, nic: 400Gbps, "
    "nic_latency: 1us}\n"
    "network: {kind: switches, switches: [{name: core}, {name: leaf-a, parent: core, up: 1.6Tbps, "
    "latency: 1us}, {name: leaf-b, parent: core, up: 1.6Tbps, latency: 1us}]}\n"
    "hosts: [{name: a, leaves: leaf-a}, {name: b, leaves: leaf-b}]\n";

// Trainer below one leaf, engine below the other, and half as much between them as their NICs have.
TEST(UnevenFiles, BetweenLeaves) {
  const testing::TemporaryFolder folder;
  const std::string file = folder.path("leaves.yaml");
  write_file(file, kTwoLeaves);
  const Scene scene = {"", "qwen3-4b", "megatron:dp=8", "vllm:tp=8", file.c_str()};
  const Plan plan = search(load(scene), {.attempts = 1});
  // 8.04 GB (each needer's part, replicated tensors once) at 1.6 Tbps x 0.968.
  EXPECT_NEAR(plan.prediction.lower_bound_s, 8.04e9 / (200e9 * 0.968), 1e-4);
  EXPECT_LE(plan.prediction.predicted_s, 1.10 * plan.prediction.lower_bound_s);
}

// Eight trainers, each on GPU 0 of another node. With a spine all NICs of the gen node are in use;
// without one all comes in by rail 0.
TEST(UnevenFiles, SourcesOnOneRail) {
  const testing::TemporaryFolder folder;
  const std::string file = folder.path("place.yaml");
  write_file(file, "train: n[0-7].gpu0\ngen: n8\n");
  double whole = 0;
  for (const char* fabric : {"dgx-h100:nodes=9", "dgx-h100-rail-only:nodes=9"}) {
    const Problem problem = load_problem({.model = "qwen3-4b",
                                          .train = "megatron:tp=8",
                                          .gen = "vllm:tp=8",
                                          .fabric = fabric,
                                          .cost = "",
                                          .dtype = "",
                                          .place = file});
    const Plan plan = search(problem, {.attempts = 6});
    EXPECT_LE(plan.prediction.predicted_s, 1.10 * plan.prediction.lower_bound_s) << fabric;
    if (whole == 0)
      whole = plan.prediction.lower_bound_s;
    else
      EXPECT_NEAR(plan.prediction.lower_bound_s / whole, 8, 0.01);  // norms are everywhere
    if (!is_joined(problem.fabric)) expect_one_rail(plan);
  }
}

// What has to move, each element once.
int64_t moved_once(const Problem& problem) {
  int64_t bytes = 0;
  for (const DemandClass& item : problem.demand.classes) bytes += item.bytes;
  return bytes;
}

// Rank j of a stage has quarter j of most tensors, which gen ranks 2j and 2j + 1 want, nearly all
// of them on other rails. search() judges order and memory of the relays, here with little of it.
TEST(RailOnly, RelaysKeepToTheirMemory) {
  const Problem problem =
      load({"", "qwen3-0.6b", "megatron:tp=4,pp=2", "vllm:tp=8", "dgx-h100-rail-only"});
  for (const int64_t staging : {int64_t{1} << 30, int64_t{64} << 20}) {
    const Plan plan = search(problem, {.staging_bytes = staging, .attempts = 4});
    expect_one_rail(plan);
    const PlanTotals totals = plan_totals(plan);
    EXPECT_EQ(totals.bytes_inter_domain, moved_once(problem));
    EXPECT_LE(totals.peak_staging_bytes, staging);
  }
}

// Gen ranks are on rails 0 to 3 only: what trainers 4 to 7 have crosses NVLink before.
TEST(RailOnly, RelaysBesideTheHolder) {
  const Problem problem =
      load({"", "qwen3-0.6b", "megatron:tp=8", "vllm:tp=4", "dgx-h100-rail-only"});
  const Plan plan = search(problem, {.attempts = 4});
  expect_one_rail(plan);
  EXPECT_EQ(plan_totals(plan).bytes_inter_domain, moved_once(problem));
}

// Four engines: relays of one pass on to the next what they do not need themselves.
TEST(RailOnly, RelaysPassOn) {
  const Problem problem =
      load({"", "qwen3-0.6b", "megatron:tp=4,pp=2", "vllm:tp=8,dp=4", "dgx-h100-rail-only"});
  const Plan plan = search(problem, {.attempts = 2});
  expect_one_rail(plan);
  EXPECT_EQ(plan_totals(plan).bytes_inter_domain, 4 * moved_once(problem));
}

// Trainers on rail 0, engine on rail 1, nobody beside them.
TEST(RailOnly, NoWay) {
  const testing::TemporaryFolder folder;
  const std::string file = folder.path("place.yaml");
  write_file(file, "train: n0.gpu0\ngen: n1.gpu1\n");
  const Problem problem = load_problem({.model = "qwen3-0.6b",
                                        .train = "megatron:tp=1",
                                        .gen = "vllm:tp=1",
                                        .fabric = "dgx-h100-rail-only:nodes=2",
                                        .cost = "",
                                        .dtype = "",
                                        .place = file});
  EXPECT_THROW(search(problem, {}), Error);
}

}  // namespace
}  // namespace refit
