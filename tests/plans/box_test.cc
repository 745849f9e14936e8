#include "plans/box.h"

#include <gtest/gtest.h>

#include <optional>

#include "random_plan.h"

namespace refit {
namespace {

TEST(Box, VolumeAndExtents) {
  const Box box{{1, 2}, {4, 8}};
  EXPECT_EQ(box.volume(), 18);
  EXPECT_EQ(box.extents(), (Dims{3, 6}));
  EXPECT_EQ(print_box(box), "[1:4, 2:8]");
  EXPECT_EQ((Box{{1, 2}, {1, 8}}).volume(), 0);
  EXPECT_EQ((Box{{1, 2}, {0, 1}}).volume(), 0);  // not -1 times -1
}

TEST(Box, ScalarHasOneElement) {
  const Box box = whole({});
  EXPECT_EQ(box.volume(), 1);
  EXPECT_FALSE(box.empty());
  EXPECT_EQ(print_box(box), "[]");
  EXPECT_EQ(intersect(box, box), box);
  EXPECT_TRUE(contains(box, box));
}

TEST(Box, Intersect) {
  EXPECT_EQ(intersect({{0, 0}, {4, 4}}, {{2, 1}, {6, 3}}), (Box{{2, 1}, {4, 3}}));
  EXPECT_TRUE(intersect({{0, 0}, {4, 4}}, {{4, 0}, {8, 4}}).empty());  // they only touch
  EXPECT_TRUE(intersect({{0, 0}, {4, 4}}, {{0, 9}, {4, 12}}).empty());
}

TEST(Box, OverlapWhereTheCommonPartIsNotEmpty) {
  Random random(3);
  const auto draw = [&] {
    Box box{{0, 0}, {0, 0}};
    for (int dim = 0; dim < 2; ++dim) {
      box.lo[dim] = pick(random, 0, 4);
      box.hi[dim] = box.lo[dim] + pick(random, 0, 3);
    }
    return box;
  };
  for (int n = 0; n < 1000; ++n) {
    const Box a = draw(), b = draw();
    EXPECT_EQ(overlap(a, b), !intersect(a, b).empty()) << print_box(a) << print_box(b);
  }
  EXPECT_TRUE(overlap(whole({}), whole({})));
}

TEST(Box, Contains) {
  const Box outer{{1, 1}, {4, 4}};
  EXPECT_TRUE(contains(outer, outer));
  EXPECT_TRUE(contains(outer, {{2, 1}, {3, 4}}));
  EXPECT_FALSE(contains(outer, {{0, 1}, {3, 4}}));
  EXPECT_FALSE(contains(outer, {{2, 1}, {3, 5}}));
  EXPECT_FALSE(contains(outer, Box{Dims{2}, Dims{3}}));  // of another tensor
}

TEST(Box, DenseStrides) {
  EXPECT_EQ(dense_strides({2, 3, 4}), (Dims{12, 4, 1}));
  EXPECT_EQ(dense_strides({}), Dims{});
}

TEST(CoversOnce, HandCases) {
  const Box area{{0, 0}, {4, 6}};
  const Box left{{0, 0}, {4, 3}}, right{{0, 3}, {4, 6}};
  Uncovered wrong;
  EXPECT_TRUE(covers_once(area, std::vector{left, right}));
  EXPECT_TRUE(covers_once(area, std::vector{area}));
  EXPECT_TRUE(covers_once(area, std::vector{area, Box{{2, 2}, {2, 5}}}));  // an empty one

  EXPECT_FALSE(covers_once(area, {}, &wrong));
  EXPECT_EQ(wrong.point, (Dims{0, 0}));
  EXPECT_EQ(wrong.times, 0);
  EXPECT_FALSE(covers_once(area, std::vector{right}, &wrong));
  EXPECT_EQ(wrong.point, (Dims{0, 0}));
  EXPECT_EQ(wrong.times, 0);
  EXPECT_FALSE(covers_once(area, std::vector{left}, &wrong));
  EXPECT_EQ(wrong.point, (Dims{0, 3}));
  EXPECT_EQ(wrong.times, 0);
  EXPECT_FALSE(covers_once(area, std::vector{left, right, Box{{2, 2}, {3, 5}}}, &wrong));
  EXPECT_EQ(wrong.point, (Dims{2, 2}));
  EXPECT_EQ(wrong.times, 2);
  EXPECT_FALSE(covers_once(area, std::vector{area, area, area}, &wrong));
  EXPECT_EQ(wrong.point, (Dims{0, 0}));
  EXPECT_EQ(wrong.times, 3);
}

TEST(CoversOnce, ScalarAndEmptyArea) {
  Uncovered wrong;
  EXPECT_TRUE(covers_once(whole({}), std::vector{whole({})}));
  EXPECT_FALSE(covers_once(whole({}), {}, &wrong));
  EXPECT_EQ(wrong.times, 0);
  EXPECT_FALSE(covers_once(whole({}), std::vector{whole({}), whole({})}, &wrong));
  EXPECT_EQ(wrong.times, 2);
  EXPECT_TRUE(covers_once(whole({0, 4}), {}));
}

// Equal volume is not enough: one overlap makes up for one gap.
TEST(CoversOnce, OverlapDoesNotPayForGap) {
  const Box area{{0, 0}, {2, 2}};
  Uncovered wrong;
  EXPECT_FALSE(covers_once(
      area, std::vector{Box{{0, 0}, {1, 2}}, Box{{0, 1}, {1, 2}}, Box{{1, 0}, {2, 1}}}, &wrong));
  EXPECT_EQ(wrong.point, (Dims{0, 1}));
  EXPECT_EQ(wrong.times, 2);
}

// The first point, in lexicographic order, that is not covered once: by counting.
std::optional<Uncovered> count_points(const Box& area, const std::vector<Box>& boxes) {
  Dims at = area.lo;
  while (true) {
    Box point{at, at};
    for (int dim = 0; dim < at.count; ++dim) ++point.hi[dim];
    int64_t times = 0;
    for (const Box& box : boxes) times += !box.empty() && contains(box, point) ? 1 : 0;
    if (times != 1) return Uncovered{at, times};
    int dim = at.count - 1;
    while (dim >= 0 && ++at[dim] == area.hi[dim]) {
      at[dim] = area.lo[dim];
      --dim;
    }
    if (dim < 0) return std::nullopt;
  }
}

TEST(CoversOnce, AgreesWithCounting) {
  Random random(7);
  int right = 0;
  constexpr int kCases = 20'000;
  for (int i = 0; i < kCases; ++i) {
    Box area;
    area.lo.count = area.hi.count = static_cast<int32_t>(pick(random, 1, 4));
    for (int dim = 0; dim < area.dims(); ++dim) {
      area.lo[dim] = pick(random, 0, 3);
      area.hi[dim] = area.lo[dim] + pick(random, 1, 5);
    }
    std::vector<Box> boxes = cut_box(random, area, pick(random, 0, 8), false);
    for (int64_t damage = pick(random, -1, 2); damage > 0; --damage) {
      Box& box = boxes[static_cast<size_t>(pick(random, 0, std::ssize(boxes) - 1))];
      const auto dim = static_cast<int>(pick(random, 0, area.dims() - 1));
      switch (pick(random, 0, 3)) {
        case 0:
          box.lo[dim] = pick(random, area.lo[dim], box.hi[dim]);
          break;
        case 1:
          box.hi[dim] = pick(random, box.lo[dim], area.hi[dim]);
          break;
        case 2:
          boxes.push_back(box);
          break;
        case 3:
          boxes.erase(boxes.begin());
          break;
      }
      if (boxes.empty()) break;
    }
    const std::optional<Uncovered> expected = count_points(area, boxes);
    Uncovered wrong;
    ASSERT_EQ(covers_once(area, boxes, &wrong), !expected.has_value()) << "case " << i;
    if (!expected) {
      ++right;
    } else {
      ASSERT_EQ(wrong.point, expected->point) << "case " << i;
      ASSERT_EQ(wrong.times, expected->times) << "case " << i;
    }
  }
  EXPECT_GT(right, kCases / 10);
  EXPECT_LT(right, kCases * 9 / 10);
}

// 10,000 boxes: rows and columns of a grid of 100 by 100.
TEST(CoversOnce, ManyBoxes) {
  std::vector<Box> boxes;
  for (int64_t i = 0; i < 100; ++i) {
    for (int64_t j = 0; j < 100; ++j) boxes.push_back({{i * 7, j * 3}, {i * 7 + 7, j * 3 + 3}});
  }
  EXPECT_TRUE(covers_once(whole({700, 300}), boxes));
  boxes[5055].hi[1] -= 1;  // row 50, column 55: columns 165 and 166 are left
  Uncovered wrong;
  EXPECT_FALSE(covers_once(whole({700, 300}), boxes, &wrong));
  EXPECT_EQ(wrong.point, (Dims{350, 167}));
  EXPECT_EQ(wrong.times, 0);
}

}  // namespace
}  // namespace refit
