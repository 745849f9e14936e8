// The nccl backend on a test double of CUDA and NCCL (fake_gpu.h): real plans of all strategies,
// verified byte by byte, and what happens when a rank fails.

#include "exec/nccl_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "exec/executor.h"
#include "exec/nccl_replay.h"
#include "exec/verify.h"
#include "plans/plan_io.h"
#include "sim/search/problem.h"
#include "sim/search/search.h"
#include "tests/exec/fake_gpu.h"
#include "tests/exec/test_plans.h"
#include "tests/gpu/loopback_gpu.h"
#include "tests/sim/search/small_fabric.h"
#include "tests/temporary_folder.h"

namespace refit {
namespace {

using testing::FakeCluster;
using ::testing::HasSubstr;
using testing::PlanMaker;

/// Threads of this process that meet.
class Meeting {
 public:
  explicit Meeting(int32_t world) : blobs(static_cast<size_t>(world)) {}

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> blobs, last;
  size_t arrived = 0;
  int64_t rounds = 0;
  std::string failure;
};

class MeetingBootstrap final : public Bootstrap {
 public:
  MeetingBootstrap(Meeting& meeting, int32_t rank) : meeting_(meeting), rank_(rank) {}
  int32_t rank() const override { return rank_; }
  int32_t world() const override { return static_cast<int32_t>(meeting_.blobs.size()); }
  std::vector<std::string> all_gather(std::string_view mine) override {
    std::unique_lock lock(meeting_.mutex);
    meeting_.blobs[static_cast<size_t>(rank_)] = mine;
    const int64_t round = meeting_.rounds;
    if (++meeting_.arrived == meeting_.blobs.size()) {
      meeting_.arrived = 0;
      meeting_.last = meeting_.blobs;
      ++meeting_.rounds;
      meeting_.changed.notify_all();
    }
    meeting_.changed.wait(lock,
                          [&] { return meeting_.rounds != round || !meeting_.failure.empty(); });
    if (meeting_.rounds == round) throw Error(meeting_.failure, ErrorKind::kWork);
    return meeting_.last;
  }
  void publish_failure(const std::string& reason) override {
    const std::lock_guard lock(meeting_.mutex);
    if (meeting_.failure.empty()) meeting_.failure = reason;
    meeting_.changed.notify_all();
  }
  std::string failure() override {
    const std::lock_guard lock(meeting_.mutex);
    return meeting_.failure;
  }

 private:
  Meeting& meeting_;
  const int32_t rank_;
};

struct Job {
  int32_t iterations = 3;
  NcclOptions options;
  bool with_bootstrap = true;  // else ranks learn of failures by themselves
  /// Called before each replay of each rank; what it throws is the rank's failure.
  std::function<void(int32_t rank, int32_t iteration, Bootstrap&)> before;
  std::function<void(int32_t rank, const NcclBackend&)> after;
};

/// What each rank says: empty where all went well.
std::vector<std::string> replay(const Plan& plan, FakeCluster& cluster, const Job& job) {
  const auto world = static_cast<int32_t>(plan.ranks.size());
  Meeting meeting(world);
  std::vector<std::string> errors(plan.ranks.size());
  std::vector<std::jthread> threads;
  for (int32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      MeetingBootstrap bootstrap(meeting, rank);
      try {
        GpuApi& gpu = cluster.gpu(rank);
        GpuApi::Comm parent = nullptr;
        if (!job.with_bootstrap) {
          parent = gpu.make_comm("parent", world, rank, {1, 0});
          while (!gpu.is_settled(parent)) std::this_thread::yield();
        }
        {
          NcclBackend backend(gpu, plan, rank, job.with_bootstrap ? &bootstrap : nullptr, parent,
                              job.options);
          const Executor::Buffers buffers = allocate_buffers(plan, backend);
          Executor executor(plan, backend, buffers);
          for (int32_t iteration = 0; iteration < job.iterations; ++iteration) {
            fill_train(plan, rank, buffers, iteration);
            poison_gen(plan, rank, buffers, iteration);
            try {
              if (job.before) job.before(rank, iteration, bootstrap);
            } catch (const std::exception& error) {
              backend.abort(error.what());
              throw;
            }
            executor.run();
            verify_gen(plan, rank, buffers, iteration);
          }
          if (job.after) job.after(rank, backend);
        }
        if (parent != nullptr) gpu.destroy_comm(parent);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
        bootstrap.publish_failure(error.what());
      }
      cluster.leave(rank);
    });
  }
  threads.clear();
  return errors;
}

void expect_no_errors(const std::vector<std::string>& errors) {
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    ASSERT_EQ(errors[rank], "") << "rank " << rank;
  }
}

/// A mixture-of-experts model small enough for threads, cut by every kind of parallelism.
Problem small_problem(const std::string& train, const std::string& gen) {
  const Model model = parse_model(
      R"({"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 32,
          "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
          "head_dim": 8, "intermediate_size": 64, "moe_intermediate_size": 16,
          "num_experts": 8, "num_experts_per_tok": 2, "decoder_sparse_step": 1,
          "mlp_only_layers": [], "vocab_size": 64, "tie_word_embeddings": false,
          "torch_dtype": "bfloat16"})",
      "small model");
  return testing::make_small_problem(model, train, gen);
}

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

/// Two holders per half, receivers across nodes, two channels.
Plan plain_plan(int32_t gens = 6) {
  PlanMaker maker(2 + gens, 2);
  const Dims shape{24, 48};
  maker.add_tensor("w", shape, Dtype::kBf16, testing::split(shape, 0, 0, 2),
                   testing::split(shape, 1, 2, gens));
  maker.add_direct_transfers();
  return maker.finish();
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

TEST(NcclOnTestDouble, MessageOutOfTheDomainOnAnNvlinkChannelIsRefused) {
  PlanMaker maker(9, 1);
  const Dims shape{8, 16};
  maker.add_tensor("w", shape, Dtype::kBf16, testing::replicate(shape, 0, 1),
                   testing::replicate(shape, 8, 1));
  maker.add_direct_transfers();
  Plan plan = maker.finish();
  plan.channels[0].lane = Lane::kNvlink;
  FakeCluster cluster(9);
  const std::vector<std::string> errors = replay(plan, cluster, {});
  EXPECT_THAT(errors[0], HasSubstr("rank 0, channel 0, step 1: found a message with rank 8"));
}

/// The plan without the receive of `rank` from `peer` in its last step that has one.
void drop_receive(Plan& plan, int32_t rank, int32_t peer) {
  Program& program = plan.programs[static_cast<size_t>(rank)];
  for (size_t s = program.steps.size(); s-- > 0;) {
    Step& step = program.steps[s];
    for (int32_t m = step.first_recv; m < step.last_message; ++m) {
      if (program.messages[static_cast<size_t>(m)].peer != peer) continue;
      program.messages.erase(program.messages.begin() + m);
      --step.last_message;
      for (size_t later = s + 1; later < program.steps.size(); ++later) {
        --program.steps[later].first_send;
        --program.steps[later].first_recv;
        --program.steps[later].last_message;
      }
      return;
    }
  }
  FAIL() << "no receive to drop";
}

TEST(NcclOnTestDouble, RemovedReceiveIsADeadlockThatNamesTheRanks) {
  // Rank 3 has a second message from rank 1, so that the two are connected all the same.
  PlanMaker maker(4, 1);
  const Dims shape{8, 16};
  const int32_t tensor = maker.add_tensor("w", shape, Dtype::kBf16, testing::replicate(shape, 1, 1),
                                          testing::replicate(shape, 3, 1));
  maker.add_transfer(1, 3, 0, 0, {{tensor, {{0, 0}, {4, 16}}}});
  maker.add_transfer(1, 3, 0, 1, {{tensor, {{4, 0}, {8, 16}}}});
  Plan plan = maker.finish();
  drop_receive(plan, 3, 1);
  FakeCluster cluster(4);
  const std::vector<std::string> errors = replay(plan, cluster, {});
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("deadlock"));
    EXPECT_THAT(error, HasSubstr("rank 1 waits to send to rank 3"));
  }
}

TEST(NcclOnTestDouble, RemovedReceiveOfARealPlanIsADeadlockThatNamesTheRanks) {
  const Problem problem = small_problem("megatron:tp=2,pp=2,ep=2,etp=1,world=4", "vllm:tp=4");
  Plan plan = search(problem, {.strategy = "refit"});
  // The first receive of the last rank from another.
  const int32_t rank = static_cast<int32_t>(plan.ranks.size()) - 1;
  const Program& program = plan.programs.back();
  int32_t peer = -1;
  for (const Step& step : program.steps) {
    for (int32_t m = step.first_recv; m < step.last_message && peer < 0; ++m) {
      const Message& message = program.messages[static_cast<size_t>(m)];
      if (message.peer != rank) peer = message.peer;
    }
  }
  ASSERT_GE(peer, 0);
  drop_receive(plan, rank, peer);
  FakeCluster cluster(static_cast<int32_t>(plan.ranks.size()));
  const std::vector<std::string> errors = replay(plan, cluster, {});
  const std::string pair = "to send to rank " + std::to_string(rank);
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("deadlock"));
    EXPECT_THAT(error, HasSubstr(pair));
  }
}

TEST(NcclOnTestDouble, RanksThatSendOtherSizesAreNamed) {
  Plan plan = plain_plan();
  Program& program = plan.programs[7];
  for (Message& message : program.messages) {
    if (message.peer == 1) message.last_piece = message.first_piece;  // receives nothing
  }
  FakeCluster cluster(8);
  const std::vector<std::string> errors = replay(plan, cluster, {});
  // An empty message is none: rank 1 has nobody to send to.
  EXPECT_THAT(errors[1], HasSubstr("rank 7"));
}

TEST(NcclOnTestDouble, RankThatFailsGivesAllTheSameReason) {
  for (const int32_t when : {0, 1, 2, 5}) {  // before, with, and after the graph
    const Plan plan = plain_plan();
    FakeCluster cluster(8);
    Job job;
    job.iterations = 7;
    job.before = [&](int32_t rank, int32_t iteration, Bootstrap&) {
      if (rank == 5 && iteration == when) throw Error("rank 5: the loss is not a number");
    };
    for (const std::string& error : replay(plan, cluster, job)) {
      EXPECT_EQ(error, "rank 5: the loss is not a number") << "iteration " << when;
    }
    EXPECT_EQ(cluster.use(), FakeCluster::Use{}) << "iteration " << when;
  }
}

TEST(NcclOnTestDouble, DeviceThatBreaksInAReplayIsTheReasonOfAll) {
  for (const int32_t when : {0, 1}) {  // enqueued, captured
    const Plan plan = plain_plan();
    FakeCluster cluster(8);
    Job job;
    job.before = [&](int32_t rank, int32_t iteration, Bootstrap&) {
      if (rank == 1 && iteration == when) cluster.break_device(1, 0);
    };
    for (const std::string& error : replay(plan, cluster, job)) {
      EXPECT_EQ(error, "test double: the device of rank 1 is broken") << "iteration " << when;
    }
    EXPECT_EQ(cluster.use(), FakeCluster::Use{}) << "iteration " << when;
  }
}

TEST(NcclOnTestDouble, RankThatStaysAwayTimesOutAndIsNamedByItsPeers) {
  // Rank 7 is busy elsewhere for longer than the timeout: it neither fails nor polls.
  const Plan plan = plain_plan();
  FakeCluster cluster(8);
  Job job;
  job.options.timeout_s = 0.3;
  job.before = [&](int32_t rank, int32_t iteration, Bootstrap& bootstrap) {
    if (rank != 7 || iteration != 1) return;
    while (bootstrap.failure().empty()) std::this_thread::yield();
    throw Error("rank 7: too late");
  };
  const std::vector<std::string> errors = replay(plan, cluster, job);
  // The barrier before the replay is where they wait for it.
  EXPECT_THAT(errors[0], HasSubstr("no progress for 0.3 s while meeting all ranks"));
}

TEST(NcclOnTestDouble, AfterAnAbortNothingRuns) {
  const Plan plan = plain_plan();
  FakeCluster cluster(8);
  std::vector<std::string> again(8);
  Meeting meeting(8);
  std::vector<std::jthread> threads;
  for (int32_t rank = 0; rank < 8; ++rank) {
    threads.emplace_back([&, rank] {
      MeetingBootstrap bootstrap(meeting, rank);
      try {  // another rank may abort while this one is still being made
        NcclBackend backend(cluster.gpu(rank), plan, rank, &bootstrap, nullptr, {});
        Executor executor(plan, backend, allocate_buffers(plan, backend));
        backend.abort("rank 0: stop");
        executor.run();
      } catch (const Error& error) {
        again[static_cast<size_t>(rank)] = error.what();
      }
      cluster.leave(rank);
    });
  }
  threads.clear();
  for (const std::string& error : again) EXPECT_EQ(error, "rank 0: stop");
}

/// Runs `refit-exec --backend nccl` but for its command line, a thread a rank; `path` by rank.
std::vector<std::string> replay_files(const std::vector<std::string>& paths,
                                      std::optional<NcclOutcome>* outcome) {
  const auto world = static_cast<int32_t>(paths.size());
  Meeting meeting(world);
  FakeCluster cluster(world);
  std::vector<std::string> errors(paths.size());
  std::vector<std::jthread> threads;
  for (int32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      const auto index = static_cast<size_t>(rank);
      MeetingBootstrap bootstrap(meeting, rank);
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

TEST(FakeClusterItself, HoldsUsersToTheRules) {
  FakeCluster cluster(1, 8);
  GpuApi& gpu = cluster.gpu(0);
  GpuApi::Stream a = gpu.make_stream(), b = gpu.make_stream();
  const auto refused = [&](const std::function<void()>& act, const std::string& why) {
    try {
      act();
      ADD_FAILURE() << "not refused: " << why;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(why));
    }
  };
  const auto settle = [&](GpuApi::Comm comm) {
    while (!gpu.is_settled(comm)) {
    }
  };
  GpuApi::Comm comm = gpu.make_comm("x", 1, 0, {4, 0});
  std::byte bytes[2] = {std::byte{7}, std::byte{0}};
  gpu.begin_group();
  refused([&] { gpu.send(bytes, 1, 0, comm, a); }, "in progress");
  settle(comm);
  gpu.send(bytes, 1, 0, comm, a);
  refused([&] { gpu.receive(bytes + 1, 1, 0, comm, b); }, "two streams");
  refused([&] { gpu.receive(bytes + 1, 1, 1, comm, a); }, "no such peer");
  gpu.receive(bytes + 1, 1, 0, comm, a);
  gpu.end_group();
  EXPECT_EQ(bytes[1], std::byte{0});  // nothing moves in the call
  EXPECT_TRUE(gpu.is_done(a));
  EXPECT_EQ(bytes[1], std::byte{7});

  GpuApi::Event event = gpu.make_event();
  gpu.begin_capture(a);
  refused([&] { gpu.is_done(a); }, "captures");
  gpu.record(event, a);
  gpu.wait(b, event);
  gpu.launch_sweep({}, nullptr, 0, b);
  refused([&] { gpu.end_capture(a); }, "not joined");
  EXPECT_TRUE(gpu.is_done(a));  // that was the end of the capture

  gpu.begin_capture(a);
  gpu.record(event, a);
  gpu.wait(b, event);
  gpu.launch_sweep({}, nullptr, 0, b);
  gpu.record(event, b);
  gpu.wait(a, event);
  gpu.destroy_graph(gpu.end_capture(a));
  refused([&] { gpu.wait(b, event); }, "capture that is over");
}

}  // namespace
}  // namespace refit
