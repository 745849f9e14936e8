#include "exec/placement.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace refit {
namespace {

Plan plan_on(const std::vector<std::pair<std::string, std::string>>& ranks) {
  Plan plan;
  for (const auto& [node, domain] : ranks) {
    PlanRank& rank = plan.ranks.emplace_back();
    rank.node = node;
    rank.nvlink_domain = domain;
  }
  return plan;
}

std::string refusal(const Plan& plan, const std::vector<Whereabouts>& found) {
  try {
    check_placement(plan, found);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    return error.what();
  }
  return "";
}

const Plan kTwoNodes = plan_on({{"n0", "d0"}, {"n0", "d0"}, {"n1", "d1"}, {"n1", "d1"}});

TEST(Placement, ClassesCountNotNames) {
  EXPECT_FALSE(check_placement(kTwoNodes, {{"x", "x"}, {"x", "x"}, {"a", "a"}, {"a", "a"}}));
}

TEST(Placement, AllOnOneHostIsARehearsal) {
  EXPECT_TRUE(check_placement(kTwoNodes, {{"x", "x"}, {"x", "x"}, {"x", "x"}, {"x", "x"}}));
  const Plan one_node = plan_on({{"n0", "d0"}, {"n0", "d0"}});
  EXPECT_FALSE(check_placement(one_node, {{"x", "x"}, {"x", "x"}}));
}

TEST(Placement, ANodeOnTwoHostsIsRefused) {
  EXPECT_EQ(
      refusal(kTwoNodes, {{"x", "x"}, {"y", "y"}, {"y", "y"}, {"y", "y"}}),
      "node of ranks 0 and 1: found \"x\" and \"y\", expected one: the plan has both on \"n0\"");
}

TEST(Placement, TwoNodesOnOneOfSeveralHostsAreRefused) {
  const Plan plan = plan_on({{"n0", "d0"}, {"n1", "d1"}, {"n2", "d2"}});
  EXPECT_EQ(
      refusal(plan, {{"x", "x"}, {"y", "y"}, {"x", "x"}}),
      "node of ranks 0 and 2: found \"x\" for both, expected two: the plan has them on \"n0\" "
      "and \"n2\"");
}

TEST(Placement, DomainsMaySpanHosts) {
  const Plan plan = plan_on({{"n0", "d0"}, {"n1", "d0"}});
  EXPECT_FALSE(check_placement(plan, {{"x", "rack"}, {"y", "rack"}}));
  EXPECT_EQ(
      refusal(plan, {{"x", "x"}, {"y", "y"}}),
      "NVLink domain of ranks 0 and 1: found \"x\" and \"y\", expected one: the plan has both "
      "on \"d0\"");
}

TEST(Placement, RanksWithoutANameMayBeAnywhere) {
  const Plan plan = plan_on({{"", ""}, {"n0", ""}, {"", ""}});
  EXPECT_FALSE(check_placement(plan, {{"x", "x"}, {"y", "y"}, {"y", "z"}}));
}

}  // namespace
}  // namespace refit
