#include "sim/search/guide.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/sim/search/small_fabric.h"

namespace refit {
namespace {

/// Ranks on GPUs of the same number: nodes of eight, each an NVLink domain.
Problem place(int32_t nodes) {
  Problem problem;
  problem.fabric = make_fabric(testing::small_fabric(8), nodes);
  for (int32_t gpu = 0; gpu < 8 * nodes; ++gpu) problem.gpu_of_rank.push_back(gpu);
  problem.cost = parse_cost(load_cost_source("nominal"));
  return problem;
}

EntryGuide::Class make_class(std::vector<int32_t> holders, std::vector<int32_t> needers,
                             int64_t bytes) {
  const auto copies = static_cast<int64_t>(needers.size());
  return {std::move(holders), {{1, std::move(needers)}}, bytes, copies};
}

/// Bytes by entry when all of a class is taken byte by byte.
std::map<int32_t, int64_t> take_all(EntryGuide& guide, int32_t of_class, int64_t bytes) {
  std::map<int32_t, int64_t> taken;
  for (int64_t i = 0; i < bytes; ++i) ++taken[guide.take(of_class, 1, 1)];
  return taken;
}

using Taken = std::map<int32_t, int64_t>;

// Four holders with 1000 bytes each that ranks 8 to 11 all need: one entry each, a different one.
TEST(EntryGuide, ClassesHaveOneEntryWhereTheyFit) {
  const Problem problem = place(2);
  std::vector<EntryGuide::Class> classes;
  for (int32_t holder = 0; holder < 4; ++holder)
    classes.push_back(make_class({holder}, {8, 9, 10, 11}, 1000));
  EntryGuide guide(problem, classes);
  for (int32_t c = 0; c < 4; ++c) EXPECT_EQ(take_all(guide, c, 1000), (Taken{{8 + c, 1000}}));
}

// A rank lets in what it alone needs, so that the class of both goes to the other one: 1500 bytes
// each, to 1/256.
TEST(EntryGuide, LeastChoiceComesFirst) {
  const Problem problem = place(2);
  EntryGuide guide(problem, {make_class({0}, {8, 9}, 2000), make_class({1}, {8}, 1000)});
  EXPECT_EQ(take_all(guide, 1, 1000), (Taken{{8, 1000}}));
  const Taken both = take_all(guide, 0, 2000);
  EXPECT_NEAR(static_cast<double>(both.at(9)), 1500, 1500.0 / 256 + 2);
}

// With a holder's first class at one entry, its second goes there, too, as long as there is room.
TEST(EntryGuide, FollowsWhatTheHolderSendsAnyhow) {
  const Problem problem = place(2);
  EntryGuide guide(problem, {make_class({0}, {8, 9}, 700), make_class({0}, {8, 9}, 300),
                             make_class({1}, {8, 9}, 1000)});
  const Taken first = take_all(guide, 0, 700), second = take_all(guide, 1, 300);
  EXPECT_EQ(first.size(), 1U);
  ASSERT_EQ(second.size(), 1U);
  EXPECT_EQ(first.begin()->first, second.begin()->first);
}

// What 16 ranks need enters by two of them at least: else one would pass on 15 copies of it.
TEST(EntryGuide, WhatManyNeedHasMoreEntries) {
  Problem problem = place(1);
  problem.fabric = make_fabric(testing::small_fabric(8, 2), 4);  // two domains of 16
  problem.gpu_of_rank.clear();
  for (int32_t gpu = 0; gpu < 32; ++gpu) problem.gpu_of_rank.push_back(gpu);
  std::vector<int32_t> needers;
  for (int32_t rank = 16; rank < 32; ++rank) needers.push_back(rank);
  EntryGuide guide(problem, {make_class({0}, needers, 1600)});
  const Taken taken = take_all(guide, 0, 1600);
  EXPECT_GE(taken.size(), 2U);
  for (const auto& [entry, bytes] : taken) EXPECT_LE(bytes, 800) << entry;
}

TEST(EntryGuide, WhatIsGivenBackIsTakenAgain) {
  const Problem problem = place(2);
  EntryGuide guide(problem, {make_class({0}, {8, 9}, 100), make_class({1}, {8, 9}, 100)});
  const int32_t entry = guide.take(0, 1, 60);
  guide.give_back(0, 1, entry, 60);
  EXPECT_EQ(take_all(guide, 0, 100), (Taken{{entry, 100}}));
}

// A domain with a holder has no entry: its needers get it from there.
TEST(EntryGuide, DomainsOfHoldersAreLeftOut) {
  const Problem problem = place(2);
  EntryGuide guide(problem, {make_class({0, 12}, {8, 9}, 100), make_class({1}, {8, 9}, 100)});
  EXPECT_EQ(take_all(guide, 1, 100).size(), 2U) << "nothing else enters: even parts";
}

}  // namespace
}  // namespace refit
