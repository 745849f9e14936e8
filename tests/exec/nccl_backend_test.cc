// The nccl backend on a test double of CUDA and NCCL (fake_gpu.h): real plans of all strategies,
// verified byte by byte.

#include "exec/nccl_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "exec/executor.h"
#include "exec/nccl_replay.h"
#include "plans/plan_io.h"
#include "sim/search/problem.h"
#include "sim/search/search.h"
#include "tests/exec/fake_gpu.h"
#include "tests/exec/nccl_job.h"
#include "tests/exec/test_plans.h"
#include "tests/gpu/loopback_gpu.h"
#include "tests/temporary_folder.h"

namespace refit {
namespace {

using testing::expect_no_errors;
using testing::FakeCluster;
using testing::Gathering;
using testing::GatheringBootstrap;
using ::testing::HasSubstr;
using testing::Job;
using testing::plain_plan;
using testing::PlanMaker;
using testing::replay;
using testing::small_problem;

TEST(NcclOnTestDouble, PlansOfAllStrategiesCompleteVerified) {
  const std::pair<std::string, std::string> layouts[] = {
      {"megatron:tp=2,pp=2,ep=2,etp=1,world=4", "vllm:tp=4"},
      {"megatron:tp=2,pp=2,ep=4,etp=1,world=16", "vllm:tp=4,engines=2"},
      {"megatron:tp=4,pp=2,ep=4,etp=1,world=32", "vllm:tp=4,dp=2,ep=on,engines=4"},
  };
  for (const auto& [train, gen] : layouts) {
    const Problem problem = small_problem(train, gen);
    for (const auto& [strategy, what] : list_strategies()) {
      SCOPED_TRACE(train + " to " + gen + ", " + strategy);
      const Plan plan = search(problem, {.strategy = strategy});
      FakeCluster cluster(static_cast<int32_t>(plan.ranks.size()));
      Job job;
      std::atomic<int32_t> graphs = 0;
      job.after = [&](int32_t, const NcclBackend& backend) { graphs += backend.setup().graph; };
      expect_no_errors(replay(plan, cluster, job));
      EXPECT_EQ(graphs, std::ssize(plan.ranks));  // the third replay was a graph's
      EXPECT_EQ(cluster.use(), FakeCluster::Use{});
      // Kernels of all channels of a rank fit on the device.
      EXPECT_LE(cluster.most_ctas(), 132);
    }
  }
}

TEST(NcclOnTestDouble, CastsOfAllFormatsCompleteVerified) {
  const testing::TemporaryFolder folder;
  InputSpec inputs;
  inputs.model = folder.path("config.json");
  write_file(inputs.model, R"({"model_type": "qwen3_moe", "hidden_size": 128,
      "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
      "num_experts": 4, "moe_intermediate_size": 128, "vocab_size": 256,
      "tie_word_embeddings": false, "torch_dtype": "bfloat16"})");
  inputs.train = "megatron:tp=2,pp=2,ep=2,etp=1,world=4";
  inputs.fabric = "dgx-h100";
  // Whole blocks at the source, and blocks that have to be assembled from several.
  for (const char* gen : {"vllm:tp=2,ep=on", "vllm:tp=4"}) {
    for (const char* cast : {"dtype=fp32", "quant=fp8_block,skip=*self_attn*", "quant=mxfp8",
                             "quant=fp8", "quant=nvfp4"}) {
      inputs.gen = std::string(gen) + "," + cast;
      std::optional<Problem> problem;
      try {
        problem = load_problem(inputs);
      } catch (const Error& error) {  // 128 x 128 blocks do not suit every cut
        EXPECT_THAT(error.what(), HasSubstr("cuts inside a"));
        EXPECT_THAT(cast, HasSubstr("fp8_block"));
        continue;
      }
      for (const char* strategy : {"refit", "relay", "direct"}) {
        SCOPED_TRACE(inputs.gen + ", " + strategy);
        const Plan plan = search(*problem, {.strategy = strategy});
        FakeCluster cluster(static_cast<int32_t>(plan.ranks.size()));
        Job job;
        std::atomic<int64_t> graphs = 0, casts = 0;
        job.after = [&](int32_t, const NcclBackend& backend) {
          graphs += backend.setup().graph;
          casts += backend.setup().casts;
        };
        expect_no_errors(replay(plan, cluster, job));
        EXPECT_EQ(graphs, std::ssize(plan.ranks));
        EXPECT_GT(casts, 0);
        EXPECT_EQ(cluster.use(), FakeCluster::Use{});
      }
    }
  }
}

TEST(NcclOnTestDouble, TwoHundredRoundsDoNotGrow) {
  const Plan plan = plain_plan();
  FakeCluster cluster(8);
  Job job;
  job.iterations = 200;
  FakeCluster::Use early;
  std::mutex mutex;
  int64_t differences = 0;
  job.before = [&](int32_t rank, int32_t iteration, Bootstrap&) {
    if (rank != 0 || iteration < 10) return;
    const std::lock_guard lock(mutex);
    if (iteration == 10) early = cluster.use();
    differences += cluster.use() == early ? 0 : 1;
  };
  expect_no_errors(replay(plan, cluster, job));
  EXPECT_EQ(differences, 0);
  EXPECT_EQ(cluster.counts().captures, 8);
  EXPECT_EQ(cluster.counts().graph_launches, 8 * 199);
  EXPECT_EQ(cluster.use(), FakeCluster::Use{});
}

TEST(NcclOnTestDouble, WithoutGraphEveryReplayIsEnqueued) {
  const Plan plan = plain_plan();
  FakeCluster cluster(8);
  Job job;
  job.options.graph = false;
  expect_no_errors(replay(plan, cluster, job));
  EXPECT_EQ(cluster.counts().graph_launches, 0);
}

TEST(NcclOnTestDouble, SplitsACommunicatorThatItIsGiven) {
  const Plan plan = plain_plan();
  FakeCluster cluster(8);
  Job job;
  job.with_bootstrap = false;
  expect_no_errors(replay(plan, cluster, job));
  EXPECT_EQ(cluster.use(), FakeCluster::Use{});
}

TEST(NcclOnTestDouble, NvlinkChannelIsACommunicatorOfTheDomain) {
  // Two domains of 8; transfers inside the second: its ranks are 0..7 of their communicator.
  PlanMaker maker(16, 1);
  const Dims shape{8, 16};
  maker.add_tensor("w", shape, Dtype::kBf16, testing::split(shape, 0, 8, 4),
                   testing::split(shape, 1, 12, 4));
  maker.add_direct_transfers();
  Plan plan = maker.finish();
  plan.channels[0].lane = Lane::kNvlink;
  FakeCluster cluster(16);
  expect_no_errors(replay(plan, cluster, {}));
}

TEST(NcclOnTestDouble, LanesHaveSettingsOfTheirOwn) {
  PlanMaker maker(16, 2);
  const Dims shape{8, 16};
  maker.add_tensor("w", shape, Dtype::kBf16, testing::split(shape, 0, 8, 4),
                   testing::split(shape, 1, 12, 4));
  maker.add_direct_transfers();
  Plan plan = maker.finish();
  plan.channels[0].lane = Lane::kNvlink;
  plan.channels[1].lane = Lane::kNet;
  FakeCluster cluster(16, 40);
  Job job;
  job.options.net_channels_per_peer = 6;
  expect_no_errors(replay(plan, cluster, job));
  const std::vector<CommSettings> made = cluster.settings(9);  // control, nvlink, net
  ASSERT_EQ(made.size(), 3U);
  EXPECT_EQ(made[0].max_ctas, 1);
  // 39 thread blocks are left for two channels: 16 each is the largest power of two.
  EXPECT_EQ(made[1].max_ctas, 16);
  EXPECT_EQ(made[1].channels_per_net_peer, 0);
  EXPECT_EQ(made[2].max_ctas, 16);
  EXPECT_EQ(made[2].channels_per_net_peer, 6);
}

TEST(NcclOnTestDouble, LargeBuffersAreRegisteredWhereMessagesTouchThem) {
  for (const bool wanted : {true, false}) {
    // Rank 0 sends rows, which lie in one run; rank 2 receives columns, through packing.
    PlanMaker maker(3, 1);
    const Dims shape{1024, 1024};
    const int32_t rows =
        maker.add_tensor("rows", shape, Dtype::kBf16, testing::split(shape, 0, 0, 1),
                         testing::split(shape, 0, 1, 1));
    const int32_t small =
        maker.add_tensor("small", {16, 16}, Dtype::kBf16, testing::replicate({16, 16}, 0, 1),
                         testing::replicate({16, 16}, 2, 1));
    maker.add_transfer(0, 1, 0, 0, {{rows, whole(shape)}});
    maker.add_transfer(0, 2, 0, 0, {{small, whole({16, 16})}});
    const Plan plan = maker.finish();
    FakeCluster cluster(3);
    Job job;
    job.options.register_buffers = wanted;
    std::mutex mutex;
    std::map<int32_t, int64_t> bytes;
    job.after = [&](int32_t rank, const NcclBackend& backend) {
      const std::lock_guard lock(mutex);
      bytes[rank] = backend.setup().registered_bytes;
    };
    expect_no_errors(replay(plan, cluster, job));
    EXPECT_GE(bytes[0], wanted ? 2 << 20 : 0);
    EXPECT_GE(bytes[1], wanted ? 2 << 20 : 0);
    EXPECT_EQ(bytes[2], 0);  // too small to be worth it
    if (!wanted) {
      EXPECT_EQ(bytes[0] + bytes[1], 0);
    }
    EXPECT_EQ(cluster.use(), FakeCluster::Use{});  // and taken back
  }
}

/// Runs `refit-exec --backend nccl` but for its command line, a thread a rank; `path` by rank.
std::vector<std::string> replay_files(const std::vector<std::string>& paths,
                                      std::optional<NcclOutcome>* outcome) {
  const auto world = static_cast<int32_t>(paths.size());
  Gathering gathering(world);
  FakeCluster cluster(world);
  std::vector<std::string> errors(paths.size());
  std::vector<std::jthread> threads;
  for (int32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      const auto index = static_cast<size_t>(rank);
      GatheringBootstrap bootstrap(gathering, rank);
      try {
        ReplayOptions how;
        how.verify = true;
        auto mine = replay_on_nccl(paths[index], cluster.gpu(rank), bootstrap, how, {});
        EXPECT_EQ(mine.has_value(), rank == 0);
        if (mine) *outcome = std::move(mine);
      } catch (const std::exception& error) {
        errors[index] = error.what();
      }
      cluster.leave(rank);
    });
  }
  threads.clear();
  EXPECT_EQ(cluster.use(), FakeCluster::Use{});
  return errors;
}

TEST(NcclReplay, VerifiesAPlanFileAndComparesWhatRanksSay) {
  const testing::TemporaryFolder folder;
  const std::string good = folder.path("good.plan"), other = folder.path("other.plan");
  const Plan plan = plain_plan();
  save_plan(plan, good);
  Plan another = plan;
  another.seed = 1;
  save_plan(another, other);

  std::optional<NcclOutcome> outcome;
  expect_no_errors(replay_files(std::vector<std::string>(8, good), &outcome));
  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(outcome->report.verified_bytes, 24 * 48 * 2);
  EXPECT_EQ(outcome->report.bytes_wire, 24 * 48 * 2);
  EXPECT_EQ(outcome->report.seconds.size(), 3U);
  EXPECT_TRUE(outcome->setup.graph);
  EXPECT_GT(outcome->setup.sweeps, 0);

  std::vector<std::string> paths(8, good);
  paths[5] = other;
  for (const std::string& error : replay_files(paths, &outcome)) {
    EXPECT_THAT(error, HasSubstr("digest of rank 5"));
  }
  paths[5] = folder.path("none.plan");
  for (const std::string& error : replay_files(paths, &outcome)) {
    EXPECT_THAT(error, HasSubstr("rank 5: "));
    EXPECT_THAT(error, HasSubstr("none.plan"));
  }
  for (const std::string& error : replay_files(std::vector<std::string>(7, good), &outcome)) {
    EXPECT_THAT(error, HasSubstr("processes: found 7, expected 8"));
  }
}

TEST(NcclOnTestDouble, RankAloneReplaysItsProgramWithItself) {
  // As tests/gpu/run.sh does where only one GPU, and one rank of it, can be had.
  const Problem problem = small_problem("megatron:tp=2,pp=2,ep=2,etp=1,world=4", "vllm:tp=4");
  const Plan plan = search(problem, {.strategy = "refit"});
  for (const int32_t rank : {0, static_cast<int32_t>(plan.ranks.size()) - 1}) {
    int64_t largest = 0, messages = 0;
    const Program& program = plan.programs[static_cast<size_t>(rank)];
    for (const Message& message : program.messages) {
      largest = std::max(largest, message_bytes(program, message));
      messages += message.peer != rank ? 1 : 0;
    }
    FakeCluster cluster(1);
    {
      testing::LoopbackGpu gpu(cluster.gpu(0), largest);
      NcclBackend backend(gpu, plan, rank, nullptr, &gpu, {});
      Executor executor(plan, backend, allocate_buffers(plan, backend));
      for (int round = 0; round < 3; ++round) executor.run();
      EXPECT_TRUE(backend.setup().graph);
      EXPECT_EQ(backend.setup().messages, messages);
    }
    EXPECT_EQ(cluster.use(), FakeCluster::Use{});
  }
}

}  // namespace
}  // namespace refit
