#include "sim/search/chunk.h"

#include <gtest/gtest.h>

#include <random>

namespace refit {
namespace {

Box box_of(std::initializer_list<int64_t> lo, std::initializer_list<int64_t> hi) {
  return {Dims(lo), Dims(hi)};
}

TEST(CutBox, TakesWholeRows) {
  // Rows of 10 elements: 35 elements are 3 rows.
  const Cutting cut = cut_box(box_of({4, 0}, {12, 10}), 35, false);
  ASSERT_EQ(cut.taken.size(), 1u);
  EXPECT_EQ(cut.taken[0], box_of({4, 0}, {7, 10}));
  ASSERT_EQ(cut.left.size(), 1u);
  EXPECT_EQ(cut.left[0], box_of({7, 0}, {12, 10}));
}

TEST(CutBox, GoesDeeperWhereOneRowIsTooLarge) {
  // One row is 8 x 10 = 80 elements; 30 elements are 3 rows of the next dimension of row 0.
  const Cutting cut = cut_box(box_of({0, 0, 0}, {2, 8, 10}), 30, false);
  ASSERT_EQ(cut.taken.size(), 1u);
  EXPECT_EQ(cut.taken[0], box_of({0, 0, 0}, {1, 3, 10}));
  ASSERT_EQ(cut.left.size(), 2u);
  EXPECT_EQ(cut.left[0], box_of({0, 3, 0}, {1, 8, 10}));
  EXPECT_EQ(cut.left[1], box_of({1, 0, 0}, {2, 8, 10}));
}

TEST(CutBox, KeepsPairsOfFourBitElements) {
  const Cutting cut = cut_box(box_of({0}, {10}), 5, true);
  EXPECT_EQ(cut.taken[0], box_of({0}, {4}));
  EXPECT_EQ(cut_box(box_of({0}, {10}), 1, true).taken[0], box_of({0}, {2}));
}

TEST(CutBox, NeverTakesMoreThanTheBox) {
  const Cutting cut = cut_box(box_of({0, 0}, {2, 3}), 100, false);
  EXPECT_EQ(cut.taken[0], box_of({0, 0}, {2, 3}));
  EXPECT_TRUE(cut.left.empty());
}

TEST(CutBox, TilesRandomBoxes) {
  std::mt19937 random(11);
  for (int round = 0; round < 2000; ++round) {
    Box box;
    box.lo.count = box.hi.count = 1 + static_cast<int32_t>(random() % 3);
    for (int d = 0; d < box.dims(); ++d) {
      box.lo[d] = static_cast<int64_t>(random() % 5);
      box.hi[d] = box.lo[d] + 1 + static_cast<int64_t>(random() % 6);
    }
    const Cutting cut = cut_box(box, static_cast<int64_t>(random() % 40), false);
    ASSERT_FALSE(cut.taken.empty());
    std::vector<Box> all = cut.taken;
    all.insert(all.end(), cut.left.begin(), cut.left.end());
    EXPECT_TRUE(covers_once(box, all)) << print_box(box);
  }
}

TEST(SliceBox, EvenAsRowsAllow) {
  const auto slices = slice_box(box_of({10, 0}, {17, 2}), 3, false);  // 7 rows: 2, 2, 3
  ASSERT_EQ(slices.size(), 3u);
  EXPECT_EQ(slices[0], box_of({10, 0}, {12, 2}));
  EXPECT_EQ(slices[1], box_of({12, 0}, {14, 2}));
  EXPECT_EQ(slices[2], box_of({14, 0}, {17, 2}));
  EXPECT_EQ(slice_box(box_of({0, 0}, {1, 2}), 8, false).size(), 2u);  // dimension 0 has one row
  EXPECT_EQ(slice_box(box_of({0}, {1}), 8, false).size(), 1u);
  EXPECT_EQ(slice_box(box_of({0}, {6}), 8, true).size(), 3u);  // pairs
}

}  // namespace
}  // namespace refit
