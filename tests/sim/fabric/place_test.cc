#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "sim/fabric/fabric.h"
#include "tests/refused.h"

namespace refit {
namespace {

using ::testing::ElementsAre;

std::vector<int32_t> range(int32_t first, int32_t last) {
  std::vector<int32_t> ranks(static_cast<size_t>(last - first));
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

const NodeShape kDgx = {.gpus_per_node = 8, .nodes_per_domain = 1, .fixed_nodes = 0};
const NodeShape kNvl72 = {.gpus_per_node = 4, .nodes_per_domain = 16, .fixed_nodes = 0};

TEST(PlaceRanks, GenStartsOnANewDomain) {
  const PlacedRanks dgx = place_ranks(kDgx, range(0, 4), range(4, 16));
  EXPECT_THAT(dgx.gpu, ElementsAre(0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19));
  EXPECT_EQ(dgx.nodes, 3);

  const PlacedRanks nvl72 = place_ranks(kNvl72, range(0, 70), range(70, 75));
  EXPECT_EQ(nvl72.gpu[69], 69);
  EXPECT_EQ(nvl72.gpu[70], 128);
  EXPECT_EQ(nvl72.nodes, 34);  // 133 GPUs of trays of 4
}

TEST(PlaceRanks, FullDomainsLeaveNoGap) {
  const PlacedRanks placed = place_ranks(kDgx, range(0, 16), range(16, 24));
  EXPECT_EQ(placed.gpu[16], 16);
  EXPECT_EQ(placed.nodes, 3);
}

TEST(PlaceRanks, ColocatedRanksStayWhereTheyTrain) {
  const PlacedRanks placed = place_ranks(kDgx, range(0, 8), range(0, 8));
  EXPECT_THAT(placed.gpu, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(placed.nodes, 1);
  // Ranks 2 and 3 train, too; only rank 4 needs another domain.
  const PlacedRanks mixed = place_ranks(kDgx, range(0, 4), range(2, 5));
  EXPECT_THAT(mixed.gpu, ElementsAre(0, 1, 2, 3, 8));
  EXPECT_EQ(mixed.nodes, 2);
}

TEST(PlaceRanks, RankNumbersMayBeAnySet) {
  const std::vector<int32_t> train = {9, 2}, gen = {7, 0};
  const PlacedRanks placed = place_ranks(kDgx, train, gen);
  EXPECT_THAT(placed.gpu, ElementsAre(8, -1, 0, -1, -1, -1, -1, 9, -1, 1));
}

TEST(PlaceRanks, NoEmptyDomainForNobody) {
  EXPECT_EQ(place_ranks(kNvl72, range(0, 5), {}).nodes, 2);
  EXPECT_THAT(place_ranks(kNvl72, {}, range(0, 3)).gpu, ElementsAre(0, 1, 2));
}

TEST(PlaceRanks, FixedNodesBoundThem) {
  const NodeShape shape = {.gpus_per_node = 4, .nodes_per_domain = 1, .fixed_nodes = 4};
  EXPECT_EQ(place_ranks(shape, range(0, 2), range(2, 3)).nodes, 4);
  EXPECT_EQ(place_ranks(shape, range(0, 8), range(8, 16)).gpu[15], 15);
  EXPECT_THROW(place_ranks(shape, range(0, 8), range(8, 17)), Error);
  // 16 ranks on 16 GPUs, but 6 train ranks waste two GPUs.
  expect_refused([&] { place_ranks(shape, range(0, 6), range(6, 16)); },
                 {"6 train and 10 gen ranks, which take 5 nodes of 4 GPUs", "at most the 4 nodes"});
}

TEST(PlaceRanks, RefusesWhatAreNoRanks) {
  EXPECT_THROW(place_ranks(kDgx, {}, {}), Error);
  const std::vector<int32_t> negative = {0, -1};
  EXPECT_THROW(place_ranks(kDgx, negative, range(1, 2)), Error);
}

}  // namespace
}  // namespace refit
