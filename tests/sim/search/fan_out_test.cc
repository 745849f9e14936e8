#include "sim/search/fan_out.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/sim/search/small_fabric.h"

namespace refit {
namespace {

constexpr int64_t kRow = 1024;  // bytes
constexpr int64_t kMessage = 64 * kRow;

/// One domain, in which each of `ranks` passes on to all others what one round after the other
/// brings it: `rows` of a tensor of its own.
struct Case {
  Problem problem;
  Routing routing;
  std::vector<Brought> brought;
  std::vector<std::vector<int32_t>> children;  // none
};

Case all_to_all(int32_t ranks, int32_t rounds, int64_t rows) {
  Case made;
  made.problem.fabric = make_fabric(testing::small_fabric(static_cast<size_t>(ranks)), 1);
  for (int32_t rank = 0; rank < ranks; ++rank) made.problem.gpu_of_rank.push_back(rank);
  made.problem.model.tensors = {Tensor{}};
  made.problem.model.tensors[0].shape = Dims{rows * rounds, kRow / 2};
  made.routing.boxes = {whole(made.problem.model.tensors[0].shape)};
  for (int32_t from = 0; from < ranks; ++from) {
    for (int32_t to = 0; to < ranks; ++to) {
      if (from != to) made.routing.hops.push_back({.tensor = 0, .box = 0, .from = from, .to = to});
    }
  }
  made.children.resize(made.routing.hops.size());
  for (int32_t round = 0; round < rounds; ++round) {
    for (int32_t hop = 0; hop < std::ssize(made.routing.hops); ++hop) {
      const Box part{{round * rows, 0}, {(round + 1) * rows, kRow / 2}};
      made.brought.push_back({{hop, part}, round, ranks - 1});
    }
  }
  return made;
}

void expect_right(const Case& made, const std::vector<FanOutStep>& steps) {
  std::map<int32_t, std::vector<Box>> boxes;  // by hop
  int32_t last = 0;
  for (const FanOutStep& step : steps) {
    EXPECT_GE(step.round, last);
    last = step.round;
    std::map<int32_t, std::set<int32_t>> out, in;
    for (const Brought& brought : step.parts) {
      EXPECT_LE(brought.round, step.round);
      const Hop& hop = made.routing.hops[static_cast<size_t>(brought.part.hop)];
      out[hop.from].insert(hop.to);
      in[hop.to].insert(hop.from);
      boxes[brought.part.hop].push_back(brought.part.box);
    }
    for (const auto* ports : {&out, &in}) {
      for (const auto& [rank, peers] : *ports) EXPECT_LE(std::ssize(peers), kMaxPeersPerStep);
    }
  }
  for (int32_t hop = 0; hop < std::ssize(made.routing.hops); ++hop)
    EXPECT_TRUE(covers_once(made.routing.boxes[0], boxes[hop])) << hop;
}

TEST(PackFanOut, Nothing) { EXPECT_TRUE(pack_fan_out({}, {}, {}, {}, {kMessage, 1}).empty()); }

// A round brings 4 KiB for each pair: 16 rounds are a message, to which 15 come near enough, and 160
// rounds ten of them. Towards the end half a message is enough.
TEST(PackFanOut, WaitsForAMessage) {
  const Case made = all_to_all(4, 160, 4);
  const auto steps =
      pack_fan_out(made.problem, made.routing, made.brought, made.children, {kMessage, 3});
  expect_right(made, steps);
  ASSERT_FALSE(steps.empty());
  EXPECT_EQ(steps.front().round, 14);
  EXPECT_EQ(steps.back().round, 159);
  EXPECT_GE(steps.size(), 10u);
  EXPECT_LE(steps.size(), 20u);
}

// 19 peers are three steps of at most eight.
TEST(PackFanOut, EightPeersAtATime) {
  const Case made = all_to_all(20, 2, 64);
  const auto steps =
      pack_fan_out(made.problem, made.routing, made.brought, made.children, {kMessage, 8});
  expect_right(made, steps);
  EXPECT_EQ(steps.size(), 6u);
}

// One rank alone has something, of many to come for all: it waits for the others.
TEST(PackFanOut, WaitsForOthers) {
  Case made = all_to_all(20, 1, 64);
  for (Brought& brought : made.brought)
    brought.round = made.routing.hops[static_cast<size_t>(brought.part.hop)].from;
  std::ranges::stable_sort(made.brought, {}, &Brought::round);
  const auto steps =
      pack_fan_out(made.problem, made.routing, made.brought, made.children, {kMessage, 8});
  expect_right(made, steps);
  // A step of the least size is half of eight messages of each rank, and 0.8 of that is enough: 64 of
  // all messages, which are there when four ranks have their 19 each.
  EXPECT_EQ(steps.front().round, 3);
}

/// One domain, in which rank 0 passes on what rounds bring to rank 1, which passes it on to 2 and 3.
Case chain(int32_t rounds, int64_t rows) {
  Case made = all_to_all(4, rounds, rows);
  made.routing.hops = {{.tensor = 0, .box = 0, .from = 0, .to = 1},
                       {.tensor = 0, .box = 0, .from = 1, .to = 2, .parent = 0},
                       {.tensor = 0, .box = 0, .from = 1, .to = 3, .parent = 0}};
  made.children = {{1, 2}, {}, {}};
  made.brought.clear();
  for (int32_t round = 0; round < rounds; ++round)
    made.brought.push_back({{0, {{round * rows, 0}, {(round + 1) * rows, kRow / 2}}}, round, 3});
  return made;
}

TEST(PackFanOut, GoesOnWhenItIsThere) {
  const Case made = chain(40, 16);
  const auto steps =
      pack_fan_out(made.problem, made.routing, made.brought, made.children, {kMessage, 2});
  expect_right(made, steps);
  for (size_t step = 0; step < steps.size(); ++step) {
    for (const Brought& part : steps[step].parts) {
      EXPECT_EQ(steps[step].goes_on, part.part.hop == 0);
      if (part.part.hop == 0) continue;
      ASSERT_GE(part.step, 0);
      ASSERT_LT(part.step, static_cast<int32_t>(step));
      const auto& before = steps[static_cast<size_t>(part.step)].parts;
      EXPECT_TRUE(std::ranges::any_of(before, [&](const Brought& parent) {
        return parent.part.hop == 0 && contains(parent.part.box, part.part.box);
      }));
    }
  }
}

// All at once: in steps of one message, not in one of forty.
TEST(PackFanOut, InTurns) {
  Case made = all_to_all(4, 40, 64);
  for (Brought& brought : made.brought) brought.round = 0;
  const auto steps =
      pack_fan_out(made.problem, made.routing, made.brought, made.children, {kMessage, 3});
  expect_right(made, steps);
  EXPECT_EQ(steps.size(), 40u);
}

}  // namespace
}  // namespace refit
