#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "base/error.h"
#include "sim/layout/layout.h"
#include "tests/refused.h"

namespace refit {
namespace {

using Range = std::pair<int64_t, int64_t>;

std::vector<Range> ranges(int64_t n, int64_t parts, Split split) {
  std::vector<Range> all;
  for (int64_t i = 0; i < parts; ++i) all.push_back(split_range(n, parts, i, split, "x"));
  return all;
}

TEST(SplitRange, FollowsTorch) {
  // torch.arange(5).chunk(4): 2, 2, 1 and nothing.
  EXPECT_EQ(ranges(5, 4, Split::kChunk), (std::vector<Range>{{0, 2}, {2, 4}, {4, 5}, {5, 5}}));
  // torch.arange(30).chunk(8): seven of 4, one of 2.
  EXPECT_EQ(ranges(30, 8, Split::kChunk).back(), (Range{28, 30}));
  // torch.arange(30).tensor_split(8): six of 4, two of 3.
  EXPECT_EQ(ranges(30, 8, Split::kBalanced)[5], (Range{20, 24}));
  EXPECT_EQ(ranges(30, 8, Split::kBalanced)[6], (Range{24, 27}));
  EXPECT_EQ(ranges(30, 8, Split::kBalanced)[7], (Range{27, 30}));
  EXPECT_EQ(ranges(12, 4, Split::kEven), (std::vector<Range>{{0, 3}, {3, 6}, {6, 9}, {9, 12}}));
  EXPECT_EQ(ranges(0, 2, Split::kEven), (std::vector<Range>{{0, 0}, {0, 0}}));
}

TEST(SplitRange, EvenRefusesWhatDoesNotDivide) {
  EXPECT_EQ(
      error_of([] { split_range(10, 4, 0, Split::kEven, "tensor w, dimension 0 over tp=4"); }),
      "tensor w, dimension 0 over tp=4: found extent 10, expected a multiple of 4");
}

TEST(MakeMap, RefusesADimensionThatTheTensorLacks) {
  const Mesh mesh{{"tp"}, {2}, {0, 1}};
  const std::vector<Placement> placements{{1}};
  EXPECT_THROW(make_map(Dims{8}, mesh, placements, Split::kEven, "w"), Error);
  EXPECT_THROW(make_map(Dims{}, mesh, placements, Split::kEven, "w"), Error);
}

TEST(MakeMap, ShardsAreDenseAndSortedByRank) {
  // Mesh order 3, 1: rank 3 has the first half.
  const Mesh mesh{{"tp"}, {2}, {3, 1}};
  const std::vector<Placement> placements{{0}};
  const RankMap map = make_map(Dims{12, 4}, mesh, placements, Split::kEven, "w");
  ASSERT_EQ(map.shards.size(), 2u);
  EXPECT_EQ(map.shards[0].first, 1);
  EXPECT_EQ(map.shards[0].second, (std::vector<Shard>{{Box{{6, 0}, {12, 4}}, 0, Dims{4, 1}}}));
  EXPECT_EQ(map.shards[1].first, 3);
  EXPECT_EQ(map.shards[1].second, (std::vector<Shard>{{Box{{0, 0}, {6, 4}}, 0, Dims{4, 1}}}));
}

TEST(MakeMap, RanksWithoutElementsAreAbsent) {
  const Mesh mesh{{"fsdp"}, {4}, {0, 1, 2, 3}};
  const std::vector<Placement> placements{{0}};
  const RankMap map = make_map(Dims{5, 10}, mesh, placements, Split::kChunk, "w");
  EXPECT_EQ(map.shards.size(), 3u);
  EXPECT_EQ(map.find(3), nullptr);
}

TEST(MakeMap, AScalarIsReplicated) {
  const Mesh mesh{{"tp"}, {2}, {0, 1}};
  const std::vector<Placement> placements{{-1}};
  const RankMap map = make_map(Dims{}, mesh, placements, Split::kEven, "w");
  ASSERT_EQ(map.shards.size(), 2u);
  EXPECT_EQ(map.shards[1].second[0].box.volume(), 1);
}

/// Sizes of all parts, from the words of torch's documentation rather than from a formula.
std::vector<int64_t> part_sizes(int64_t n, int64_t parts, Split split) {
  std::vector<int64_t> sizes(static_cast<size_t>(parts), 0);
  if (split == Split::kBalanced) {  // deal one by one
    for (int64_t i = 0; i < n; ++i) ++sizes[static_cast<size_t>(i % parts)];
  } else {  // fill up
    const int64_t full = n / parts + (n % parts != 0);
    for (int64_t& size : sizes) {
      size = std::min(full, n);
      n -= size;
    }
  }
  return sizes;
}

/// Oracle: does the rank at `position` of the mesh hold the element? Follows the one element
/// through the axes.
bool holds(const Dims& point, const Dims& shape, const Mesh& mesh,
           const std::vector<Placement>& placements, Split split, int32_t position) {
  Dims x = point, extent = shape;
  for (size_t axis = 0; axis < mesh.axis.size(); ++axis) {
    int32_t later = 1;
    for (size_t a = axis + 1; a < mesh.axis.size(); ++a) later *= mesh.size[a];
    const int32_t index = position / later % mesh.size[axis];
    const int32_t dim = placements[axis].dim;
    if (dim < 0) continue;
    const auto sizes = part_sizes(extent[dim], mesh.size[axis], split);
    size_t part = 0;
    while (x[dim] >= sizes[part]) x[dim] -= sizes[part++];
    if (part != static_cast<size_t>(index)) return false;
    extent[dim] = sizes[part];
  }
  return true;
}

TEST(MakeMap, AgreesWithBruteForce) {
  std::mt19937 random(1);
  const auto pick = [&](int32_t lo, int32_t hi) {
    return std::uniform_int_distribution<int32_t>(lo, hi)(random);
  };
  for (int trial = 0; trial < 300; ++trial) {
    const Split split =
        std::array{Split::kEven, Split::kChunk, Split::kBalanced}[static_cast<size_t>(pick(0, 2))];
    Mesh mesh;
    std::vector<Placement> placements;
    int32_t world = 1;
    for (int32_t axis = pick(0, 3); axis > 0; --axis) {
      mesh.axis.push_back("a");
      mesh.size.push_back(pick(1, 3));
      placements.push_back({pick(-1, 1)});
      world *= mesh.size.back();
    }
    mesh.ranks.resize(static_cast<size_t>(world));
    std::iota(mesh.ranks.begin(), mesh.ranks.end(), 5);
    std::shuffle(mesh.ranks.begin(), mesh.ranks.end(), random);
    Dims shape{pick(1, 9), pick(1, 9)};
    if (split == Split::kEven) {
      for (size_t axis = 0; axis < placements.size(); ++axis) {
        if (placements[axis].dim >= 0) shape[placements[axis].dim] *= mesh.size[axis];
      }
    }
    const RankMap map = make_map(shape, mesh, placements, split, "w");
    for (int32_t position = 0; position < world; ++position) {
      const auto* shards = map.find(mesh.ranks[static_cast<size_t>(position)]);
      for (int64_t i = 0; i < shape[0]; ++i) {
        for (int64_t j = 0; j < shape[1]; ++j) {
          const Dims point{i, j};
          const Box element{point, Dims{i + 1, j + 1}};
          const bool in_map = shards != nullptr && contains(shards->front().box, element);
          ASSERT_EQ(in_map, holds(point, shape, mesh, placements, split, position))
              << "trial " << trial;
        }
      }
    }
  }
}

}  // namespace
}  // namespace refit
