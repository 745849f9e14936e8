#include "exec/strided.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "base/error.h"
#include "tests/exec/addresses.h"
#include "tests/exec/test_plans.h"

namespace refit {
namespace {

using testing::addresses;
using testing::dense_shard;

/// Oracle: addresses of a box's bytes, element by element.
std::vector<std::byte*> addresses(const Shard& area, const Box& box, int64_t width,
                                  std::byte* base) {
  std::vector<std::byte*> out;
  for (int64_t e = 0; e < box.volume(); ++e) {
    int64_t element = area.offset;
    int64_t rest = e;
    for (int d = box.dims() - 1; d >= 0; --d) {
      element += (box.lo[d] + rest % box.extent(d) - area.box.lo[d]) * area.stride[d];
      rest /= box.extent(d);
    }
    for (int64_t i = 0; i < width; ++i) out.push_back(base + element * width + i);
  }
  return out;
}

TEST(Resolve, WholeShardIsOneRun) {
  std::vector<std::byte> memory(1000);
  const Box box = whole({4, 5, 6});
  const Strided out = resolve(dense_shard(box, 7), box, Dtype::kBf16, memory.data());
  EXPECT_EQ(out.base, memory.data() + 14);
  EXPECT_EQ(out.run, 240);
  EXPECT_EQ(out.dims, 0);
}

TEST(Resolve, ColumnsBecomeRows) {
  std::vector<std::byte> memory(1000);
  // Columns 2 and 3 of all rows of two 3 x 6 matrices: 6 runs of 2 fp32, 24 bytes apart, in one
  // dimension.
  const Strided out =
      resolve(dense_shard(whole({2, 3, 6})), {{0, 0, 2}, {2, 3, 4}}, Dtype::kFp32, memory.data());
  EXPECT_EQ(out.base, memory.data() + 8);
  EXPECT_EQ(out.run, 8);
  ASSERT_EQ(out.dims, 1);
  EXPECT_EQ(out.count[0], 6);
  EXPECT_EQ(out.stride[0], 24);
}

TEST(Resolve, ScalarIsOneElement) {
  std::vector<std::byte> memory(16);
  const Shard area{{}, 1, {}};
  EXPECT_EQ(resolve(area, {}, Dtype::kFp64, memory.data()).base, memory.data() + 8);
  EXPECT_EQ(resolve(area, {}, Dtype::kFp64, memory.data()).bytes(), 8);
}

TEST(Resolve, RandomBoxesEqualBruteForce) {
  std::mt19937 random(1);
  const auto draw = [&](int64_t lo, int64_t hi) {
    return std::uniform_int_distribution<int64_t>(lo, hi)(random);
  };
  for (int round = 0; round < 2000; ++round) {
    Shard area;
    Box box;
    const int dims = static_cast<int>(draw(0, kMaxDims));
    std::vector<int> order(static_cast<size_t>(dims));
    std::iota(order.begin(), order.end(), 0);
    // Half of the areas are row-major with gaps here and there, the others any permutation
    // (transposed storage).
    if (draw(0, 1) == 1) std::shuffle(order.begin(), order.end(), random);
    area.offset = draw(0, 5);
    area.box.lo.count = area.box.hi.count = area.stride.count = dims;
    box.lo.count = box.hi.count = dims;
    for (int d = 0; d < dims; ++d) {
      area.box.lo[d] = draw(0, 3);
      area.box.hi[d] = area.box.lo[d] + draw(1, 4);
      box.lo[d] = draw(area.box.lo[d], area.box.hi[d] - 1);
      box.hi[d] = draw(0, 1) == 1 ? area.box.hi[d] : draw(box.lo[d] + 1, area.box.hi[d]);
    }
    int64_t stride = 1;
    for (auto d = order.rbegin(); d != order.rend(); ++d) {
      area.stride[*d] = stride;
      stride *= area.box.extent(*d) + (draw(0, 4) == 0 ? 1 : 0);
    }
    const Dtype dtype = draw(0, 1) == 1 ? Dtype::kBf16 : Dtype::kFp8E4m3;
    const int64_t width = dtype_bits(dtype) / 8;
    std::vector<std::byte> memory(static_cast<size_t>((stride + 8) * width));
    const Strided out = resolve(area, box, dtype, memory.data());
    ASSERT_EQ(addresses(out), addresses(area, box, width, memory.data())) << round;
    for (int32_t d = 0; d + 1 < out.dims; ++d) {  // nothing is left to merge
      EXPECT_NE(out.stride[d], out.count[d + 1] * out.stride[d + 1]);
    }
    if (out.dims > 0 && out.run > width) {
      EXPECT_NE(out.stride[out.dims - 1], out.run);
    }
  }
}

TEST(Resolve, HalfBytesInPairs) {
  std::vector<std::byte> memory(64);
  const Shard area = dense_shard({{0, 8}, {4, 16}}, 2);
  const Strided out = resolve(area, {{1, 10}, {3, 14}}, Dtype::kFp4E2m1, memory.data());
  // Row 1, element 2 of a row of 8 behind 2 elements: element 12, byte 6. Rows are 4 bytes apart, 4
  // elements are 2 bytes.
  EXPECT_EQ(out.base, memory.data() + 6);
  EXPECT_EQ(out.run, 2);
  ASSERT_EQ(out.dims, 1);
  EXPECT_EQ(out.count[0], 2);
  EXPECT_EQ(out.stride[0], 4);
}

TEST(Resolve, RefusesWhatIsNoWholeByte) {
  std::vector<std::byte> memory(64);
  const Shard area = dense_shard({{0, 0}, {4, 8}});
  EXPECT_THROW(resolve(area, {{0, 1}, {1, 3}}, Dtype::kFp4E2m1, memory.data()), Error);
  EXPECT_THROW(resolve(area, {{0, 0}, {1, 3}}, Dtype::kFp4E2m1, memory.data()), Error);
  const Shard transposed{{{0, 0}, {4, 8}}, 0, {1, 4}};
  EXPECT_THROW(resolve(transposed, {{0, 0}, {2, 2}}, Dtype::kFp4E2m1, memory.data()), Error);
  const Shard odd_rows{{{0, 0}, {4, 8}}, 0, {9, 1}};
  EXPECT_THROW(resolve(odd_rows, {{0, 0}, {2, 2}}, Dtype::kFp4E2m1, memory.data()), Error);
  const Shard odd_start = dense_shard({{0, 0}, {4, 8}}, 1);
  EXPECT_THROW(resolve(odd_start, {{0, 0}, {2, 2}}, Dtype::kFp4E2m1, memory.data()), Error);
}

TEST(Resolve, RefusesBoxesOutsideOfTheArea) {
  std::vector<std::byte> memory(64);
  const Shard area = dense_shard({{2, 2}, {4, 8}});
  EXPECT_THROW(resolve(area, {{1, 2}, {3, 8}}, Dtype::kInt8, memory.data()), Error);
  EXPECT_THROW(resolve(area, {{2, 2}, {4, 9}}, Dtype::kInt8, memory.data()), Error);
  EXPECT_THROW(resolve(area, {{2, 2}, {2, 8}}, Dtype::kInt8, memory.data()), Error);
  EXPECT_THROW(resolve(area, {{2}, {4}}, Dtype::kInt8, memory.data()), Error);
}

/// Boxes that hold `bytes` bytes in all, cut at random, each in a stretch of `memory` of its own.
std::vector<Strided> random_boxes(int64_t bytes, std::mt19937& random,
                                  std::vector<std::byte>& memory) {
  const auto draw = [&](int64_t lo, int64_t hi) {
    return std::uniform_int_distribution<int64_t>(lo, hi)(random);
  };
  std::vector<Strided> boxes;
  std::vector<int64_t> places;
  int64_t next = 0;
  while (bytes > 0) {
    Strided box;
    box.dims = static_cast<int32_t>(draw(0, 3));
    box.run = std::min(bytes, draw(0, 2) == 0 ? int64_t{1} << draw(0, 7) : draw(1, 70));
    int64_t volume = box.run;
    for (int32_t d = 0; d < box.dims; ++d) {
      box.count[d] = std::min(draw(1, 6), bytes / volume);
      volume *= box.count[d];
    }
    int64_t reach = box.run + draw(0, 2);
    for (int32_t d = box.dims - 1; d >= 0; --d) {
      box.stride[d] = reach;
      reach = reach * box.count[d] + draw(0, 2);
    }
    places.push_back(next);
    next += reach;
    bytes -= box.bytes();
    boxes.push_back(box);
  }
  memory.assign(static_cast<size_t>(next), std::byte{0xee});
  for (size_t i = 0; i < boxes.size(); ++i) boxes[i].base = memory.data() + places[i];
  return boxes;
}

/// A copy of as many bytes as there are on either side, and the target as it has to be afterwards:
/// byte by byte, what lies between the runs included.
struct RandomCopy {
  explicit RandomCopy(std::mt19937& random)
      : bytes(std::uniform_int_distribution<int64_t>(0, 3000)(random)),
        from(random_boxes(bytes, random, source)),
        to(random_boxes(bytes, random, target)) {
    for (std::byte& byte : source) byte = std::byte(random());
    expected = target;
    std::vector<std::byte*> in, out;
    for (const Strided& box : from) std::ranges::copy(addresses(box), std::back_inserter(in));
    for (const Strided& box : to) std::ranges::copy(addresses(box), std::back_inserter(out));
    EXPECT_EQ(in.size(), out.size());
    for (size_t i = 0; i < in.size(); ++i) {
      expected[static_cast<size_t>(out[i] - target.data())] = *in[i];
    }
  }

  int64_t bytes;
  std::vector<std::byte> source, target, expected;
  std::vector<Strided> from, to;
};

TEST(CopyStrided, RandomCutsEqualByteLists) {
  std::mt19937 random(2);
  for (int round = 0; round < 3000; ++round) {
    const RandomCopy copy(random);
    copy_strided(copy.to, copy.from);
    ASSERT_EQ(copy.target, copy.expected) << round;
  }
}

TEST(Pack, FragmentByFragmentEqualsTheWhole) {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    const RandomCopy copy(random);
    Cursor reader(copy.from), writer(copy.to);
    for (int64_t done = 0; done < copy.bytes;) {
      const int64_t left = copy.bytes - done;
      const int64_t next =
          std::uniform_int_distribution<int64_t>(1, std::min<int64_t>(left, 500))(random);
      std::vector<std::byte> fragment(static_cast<size_t>(next));
      pack(reader, fragment.data(), next);
      unpack(writer, fragment.data(), next);
      done += next;
    }
    EXPECT_TRUE(reader.done() && writer.done());
    ASSERT_EQ(copy.target, copy.expected) << round;
  }
}

TEST(CopyStridedDeathTest, UnequalLengthsAreABug) {
  std::vector<std::byte> memory(8);
  Strided four{memory.data(), 4};
  Strided two{memory.data() + 4, 2};
  EXPECT_DEATH(copy_strided(std::vector{four}, std::vector{two}), "done");
}

// Enough bytes to go past the cache, by runs that begin and end at odd places.
TEST(CopyStrided, PastTheCache) {
  constexpr int64_t kRun = 1037, kRows = 5000, kFromStride = 1041, kToStride = 2083;
  std::vector<std::byte> from(kRows * kFromStride), to(kRows * kToStride, std::byte{0xee});
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 2654435761u >> 24);
  Strided in{.base = from.data() + 3, .run = kRun, .dims = 1}, out = in;
  in.count[0] = out.count[0] = kRows;
  in.stride[0] = kFromStride;
  out.base = to.data() + 5;
  out.stride[0] = kToStride;
  copy_strided({&out, 1}, {&in, 1});
  int64_t wrong = 0;
  for (int64_t at = 0; at < std::ssize(to); ++at) {
    const int64_t row = (at - 5) / kToStride, column = (at - 5) % kToStride;
    const bool copied = at >= 5 && column < kRun;
    const std::byte expected =
        copied ? from[static_cast<size_t>(3 + row * kFromStride + column)] : std::byte{0xee};
    wrong += to[static_cast<size_t>(at)] != expected;
  }
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace refit
