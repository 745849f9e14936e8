// The nccl backend on a test double of CUDA and NCCL (fake_gpu.h) when something fails: a plan that
// cannot end, a rank, a device.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "exec/executor.h"
#include "exec/nccl_backend.h"
#include "sim/search/search.h"
#include "tests/exec/fake_gpu.h"
#include "tests/exec/nccl_job.h"
#include "tests/exec/test_plans.h"

namespace refit {
namespace {

using testing::FakeCluster;
using testing::Gathering;
using testing::GatheringBootstrap;
using ::testing::HasSubstr;
using testing::Job;
using testing::plain_plan;
using testing::PlanMaker;
using testing::replay;
using testing::small_problem;

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
  Gathering gathering(8);
  std::vector<std::jthread> threads;
  for (int32_t rank = 0; rank < 8; ++rank) {
    threads.emplace_back([&, rank] {
      GatheringBootstrap bootstrap(gathering, rank);
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

}  // namespace
}  // namespace refit
