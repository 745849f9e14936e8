#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "sim/simulator/simulator.h"
#include "tests/refused.h"
#include "tests/sim/simulator/small.h"

// Plans that cannot be replayed, and what the error says.

namespace refit {
namespace {

void expect_error(const Plan& plan, const Fabric& fabric, ErrorKind kind,
                  const std::string& message) {
  EXPECT_EQ(error_of([&] { simulate(plan, fabric, free_cost()); }, kind), message);
}

void expect_stuck(const PlanWriter& writer, const std::string& message) {
  expect_error(writer.write(), SmallCluster{}.make(2), ErrorKind::kWork, message);
}

TEST(Stuck, SendThatNobodyReceives) {
  PlanWriter writer(4, 1);
  writer.half(0, 2, 0, 3, 100, 1, true);
  expect_stuck(
      writer, "rank 0, channel 0, step 3: never ends, waits for rank 2 to receive, which does not");
}

TEST(Stuck, ReceiveThatNobodySends) {
  PlanWriter writer(4, 1);
  writer.send(0, 3, 0, 0, 100);
  writer.half(3, 1, 0, 1, 100, 1, false);
  expect_stuck(writer,
               "rank 3, channel 0, step 1: never ends, waits for rank 1 to send, which does not");
}

TEST(Stuck, EndsUnderDifferentSteps) {
  PlanWriter writer(4, 2);
  writer.half(0, 2, 0, 0, 100, 1, true);
  writer.half(2, 0, 1, 0, 100, 1, false);
  expect_stuck(
      writer, "rank 0, channel 0, step 0: never ends, waits for rank 2 to receive, which does not");
}

TEST(Stuck, WaitsInACircle) {
  PlanWriter writer(4, 2);
  writer.send(0, 2, 0, 0, 100);
  writer.send(0, 2, 1, 0, 100);
  writer.wait(0, 0, 0, 1, 0);
  writer.wait(0, 1, 0, 0, 0);
  // Rank 2 has begun; what it waits for says more than the circle's own first step would.
  expect_stuck(
      writer,
      "rank 2, channel 0, step 0: never ends, waits for rank 0 to send, which never gets there");
}

TEST(Stuck, CircleOfOneRank) {
  PlanWriter writer(4, 2);
  writer.send(1, 1, 0, 0, 100);
  writer.send(1, 1, 1, 0, 100);
  writer.wait(1, 0, 0, 1, 0);
  writer.wait(1, 1, 0, 0, 0);
  expect_stuck(
      writer,
      "rank 1, channel 0, step 0: never ends, waits for its channel 1, step 0, which never ends");
}

TEST(Stuck, WaitForAStepThatDoesNotExist) {
  PlanWriter writer(4, 2);
  writer.send(1, 1, 0, 0, 100);
  writer.send(1, 1, 0, 1, 100);
  writer.wait(1, 0, 1, 1, 9);
  expect_stuck(writer,
               "rank 1, channel 0, step 1: never ends, waits for its channel 1, step 9, which does "
               "not exist");
}

TEST(Stuck, CircleThroughTwoRanks) {
  // Each sends on its lane 0 only after its lane 1 has received what the other sends after...
  PlanWriter writer(4, 2);
  writer.send(0, 2, 0, 0, 100);
  writer.wait(2, 0, 0, 1, 0);
  writer.send(2, 0, 1, 0, 100);
  writer.wait(0, 1, 0, 0, 0);
  expect_stuck(
      writer,
      "rank 0, channel 0, step 0: never ends, waits for rank 2 to receive, which never gets there");
}

TEST(BadInput, RankWithoutAGpu) {
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 100);
  Plan plan = writer.write();
  plan.ranks[2].gpu = 4;
  expect_error(plan, SmallCluster{}.make(2), ErrorKind::kInput,
               "rank 2: found GPU 4, expected one of the 4 GPUs of fabric small");
  plan.ranks[2].gpu = -1;
  expect_error(plan, SmallCluster{}.make(2), ErrorKind::kInput,
               "rank 2: found GPU -1, expected one of the 4 GPUs of fabric small");
}

TEST(BadInput, IdleRankNeedsNoGpu) {
  PlanWriter writer(4, 1);
  writer.send(0, 2, 0, 0, 100);
  Plan plan = writer.write();
  plan.ranks[3].gpu = -1;
  EXPECT_DOUBLE_EQ(simulate(plan, SmallCluster{}.make(2), free_cost()).refit_s, 10);
}

TEST(BadInput, PeerThatDoesNotExist) {
  PlanWriter writer(4, 1);
  writer.half(0, 7, 0, 0, 100, 1, true);
  expect_error(writer.write(), SmallCluster{}.make(2), ErrorKind::kInput,
               "rank 0, channel 0, step 0: found peer 7, expected 0..3");
}

TEST(BadInput, LinkWithoutARate) {
  PlanWriter writer(4, 1);
  Fabric fabric = SmallCluster{}.make(2);
  fabric.links[2].rate = -1;
  expect_error(
      writer.write(), fabric, ErrorKind::kInput,
      "fabric small, link n0.gpu0.nic0.out: found rate -1, expected a finite rate, 0 (down) "
      "or more");
}

}  // namespace
}  // namespace refit
