#include "exec/copy_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "exec/device_step.h"
#include "exec/strided.h"
#include "tests/exec/addresses.h"

namespace refit {
namespace {

using testing::addresses;

class Memory {
 public:
  explicit Memory(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {}
  std::byte* data() { return bytes_.data(); }
  void fill(uint32_t seed) {
    std::mt19937 random(seed);
    for (std::byte& byte : bytes_) byte = static_cast<std::byte>(random());
  }
  bool operator==(const Memory&) const = default;

 private:
  std::vector<std::byte> bytes_;
};

/// The part of a dense tensor that `box` is, at `base`.
Strided part_of(const Dims& shape, const Box& box, Dtype dtype, std::byte* base) {
  return resolve({whole(shape), 0, dense_strides(shape)}, box, dtype, base);
}

/// Both walks of a table against the bytes one by one.
void expect_copies(const Strided& from, const Strided& to, Memory& target) {
  CopyTable table;
  ASSERT_TRUE(add_copy(table, from, to));
  EXPECT_EQ(table.bytes(), from.bytes());
  Memory expected = target;
  const std::vector<std::byte*> sources = addresses(from), targets = addresses(to);
  for (size_t i = 0; i < sources.size(); ++i) {
    expected.data()[targets[i] - target.data()] = *sources[i];
  }
  const Memory before = target;
  copy_tiles(view(table));
  EXPECT_TRUE(target == expected);
  target = before;  // assigned in place: the addresses stay
  copy_boxes(table);
  EXPECT_TRUE(target == expected);
}

TEST(CopyTable, RowsOfAMatrixAreOneBoxOfSixteenByteUnits) {
  Memory from(64 * 96 * 2 + 16), to(64 * 96 * 2 + 16);
  CopyTable table;
  const Strided block = part_of({64, 96}, {{0, 32}, {64, 64}}, Dtype::kBf16, from.data());
  ASSERT_TRUE(add_copy(table, block, dense_block(to.data(), block.bytes())));
  ASSERT_EQ(table.boxes.size(), 1U);
  const CopyBox& box = table.boxes[0];
  EXPECT_EQ(box.width, 16);  // memory of new is at multiples of 16
  EXPECT_EQ(box.run_units, 4);
  EXPECT_EQ(box.units, 64 * 4);
  EXPECT_EQ(box.dims, 1);
  EXPECT_EQ(box.from_stride[0], 192);
  EXPECT_EQ(box.to_stride[0], 64);
  EXPECT_EQ(table.box_of_tile, std::vector<int32_t>{0});
}

TEST(CopyTable, UnitsAreAsWideAsAddressesRunsAndStridesAllow) {
  Memory from(4096), to(4096);
  const auto width = [&](int64_t run, int64_t stride, int64_t from_at, int64_t to_at) {
    Strided area;
    area.base = from.data() + from_at;
    area.run = run;
    area.dims = 1;
    area.count[0] = 3;
    area.stride[0] = stride;
    CopyTable table;
    EXPECT_TRUE(add_copy(table, area, dense_block(to.data() + to_at, area.bytes())));
    return table.boxes[0].width;
  };
  EXPECT_EQ(width(32, 64, 0, 0), 16);
  EXPECT_EQ(width(24, 64, 0, 0), 8);
  EXPECT_EQ(width(32, 36, 0, 0), 4);
  EXPECT_EQ(width(32, 64, 2, 0), 2);
  EXPECT_EQ(width(32, 64, 0, 1), 1);
}

TEST(CopyTable, RunsAreLongFromFourKibibytesOfWholeUnitsOn) {
  Memory from(1 << 16), to(1 << 16);
  const auto long_runs = [&](int64_t bytes, int64_t at) {
    CopyTable table;
    EXPECT_TRUE(
        add_copy(table, dense_block(from.data(), 1 << 15), dense_block(to.data(), 1 << 15)));
    EXPECT_TRUE(table.has_long_runs());
    EXPECT_TRUE(
        add_copy(table, dense_block(from.data(), bytes), dense_block(to.data() + at, bytes)));
    return table.has_long_runs();
  };
  EXPECT_TRUE(long_runs(4096, 0));
  EXPECT_FALSE(long_runs(4080, 0));
  EXPECT_FALSE(long_runs(4096 + 8, 0));
  EXPECT_FALSE(long_runs(4096, 8));
}

TEST(CopyTable, BothStridedWithOtherRunsIsOneBox) {
  // The same 4 x 6 x 8 block: rows of 6 * 8 together here, apart there.
  Memory from(4 * 10 * 8 * 4), to(4 * 6 * 20 * 4);
  from.fill(1);
  const Strided left = part_of({4, 10, 8}, {{0, 2, 0}, {4, 8, 8}}, Dtype::kFp32, from.data());
  const Strided right = part_of({4, 6, 20}, {{0, 0, 5}, {4, 6, 13}}, Dtype::kFp32, to.data());
  EXPECT_EQ(left.dims, 1);
  EXPECT_EQ(right.dims, 1);  // rows of equal distance merge
  expect_copies(left, right, to);
}

TEST(CopyTable, CutsThatDoNotFitAreRefusedAndAddNothing) {
  Memory from(4096), to(4096);
  Strided three, four;
  three.base = from.data();
  three.run = 3;
  three.dims = 1;
  three.count[0] = 8;
  three.stride[0] = 7;
  four.base = to.data();
  four.run = 4;
  four.dims = 1;
  four.count[0] = 6;
  four.stride[0] = 9;
  CopyTable table;
  EXPECT_FALSE(add_copy(table, three, four));
  EXPECT_TRUE(table.empty());
  EXPECT_TRUE(table.box_of_tile.empty());
}

TEST(CopyTable, LongRunsSpanTilesAndTilesSpanRows) {
  // Run of 2500 units of 16 bytes: tiles begin and end within runs.
  constexpr int64_t kRun = 2500 * 16;
  Memory from(5 * (kRun + 48)), to(5 * kRun);
  from.fill(2);
  Strided area;
  area.base = from.data();
  area.run = kRun;
  area.dims = 1;
  area.count[0] = 5;
  area.stride[0] = kRun + 48;
  expect_copies(area, dense_block(to.data(), area.bytes()), to);
}

TEST(CopyTable, RandomBoxesOfAllWidthsEqualTheBytesOneByOne) {
  std::mt19937 random(7);
  const auto in = [&](int64_t lo, int64_t hi) {
    return lo + static_cast<int64_t>(random() % static_cast<uint32_t>(hi - lo + 1));
  };
  constexpr Dtype kDtypes[] = {Dtype::kFp64,    Dtype::kFp32,    Dtype::kBf16,
                               Dtype::kFp8E4m3, Dtype::kFp4E2m1, Dtype::kInt8};
  int64_t most_tiles = 0;
  for (int round = 0; round < 150; ++round) {
    const Dtype dtype = kDtypes[in(0, 5)];
    const int64_t even = dtype_bits(dtype) == 4 ? 2 : 1;
    Dims from_shape, to_shape;
    Box from_box, to_box;
    from_shape.count = to_shape.count = static_cast<int32_t>(in(1, 4));
    from_box.lo.count = from_box.hi.count = to_box.lo.count = to_box.hi.count = from_shape.count;
    for (int d = 0; d < from_shape.count; ++d) {
      const int64_t step = d == from_shape.count - 1 ? even : 1;
      const int64_t extent = in(1, d == 0 || round % 8 == 0 ? 40 : 9) * step;
      const auto place = [&](Dims& shape, Box& box) {
        box.lo[d] = in(0, 1) * in(0, 7) * step;
        box.hi[d] = box.lo[d] + extent;
        shape[d] = box.hi[d] + in(0, 1) * in(0, 7) * step;
      };
      place(from_shape, from_box);
      place(to_shape, to_box);
    }
    const int64_t shift = in(0, 1) * in(0, 15);
    Memory from(dtype_bytes(dtype, from_shape.product()) + 16);
    Memory to(dtype_bytes(dtype, to_shape.product()) + 16);
    from.fill(static_cast<uint32_t>(round));
    const Strided left = part_of(from_shape, from_box, dtype, from.data() + shift);
    const Strided right = part_of(to_shape, to_box, dtype, to.data());
    SCOPED_TRACE(round);
    expect_copies(left, right, to);
    Memory packed(left.bytes() + 16);
    expect_copies(left, dense_block(packed.data() + shift, left.bytes()), packed);
    CopyTable table;
    add_copy(table, left, right);
    most_tiles = std::max<int64_t>(most_tiles, std::ssize(table.box_of_tile));
  }
  EXPECT_GT(most_tiles, 2);
}

TEST(DeviceStep, PacksSendsDirectlyWhatIsOneRunAndMergesNeighbours) {
  Memory memory(4096), packing(4096);
  memory.fill(3);
  Strided columns;
  columns.base = memory.data();
  columns.run = 8;
  columns.dims = 1;
  columns.count[0] = 4;
  columns.stride[0] = 32;
  Group group;
  group.sends.push_back({1, 64, {dense_block(memory.data() + 512, 64)}});
  group.sends.push_back({2, 48, {columns, dense_block(memory.data() + 256, 16)}});
  group.sends.push_back(
      {3, 96, {dense_block(memory.data() + 1024, 32), dense_block(memory.data() + 1056, 64)}});
  group.recvs.push_back({1, 32, {columns}});
  EXPECT_EQ(packing_bytes(group, 0), 512);  // to rank 2 and from rank 1, at multiples of 256
  const DeviceStep step = make_device_step(group, 0, packing.data());
  ASSERT_EQ(step.sends.size(), 3U);
  EXPECT_EQ(step.sends[0].at, memory.data() + 512);
  EXPECT_EQ(step.sends[1].at, packing.data());
  EXPECT_EQ(step.sends[2].at, memory.data() + 1024);
  EXPECT_EQ(step.sends[2].bytes, 96);
  ASSERT_EQ(step.recvs.size(), 1U);
  EXPECT_EQ(step.recvs[0].at, packing.data() + 256);
  EXPECT_EQ(step.before.copies.boxes.size(), 2U);
  EXPECT_EQ(step.after.copies.boxes.size(), 1U);
  copy_tiles(view(step.before.copies));
  for (int64_t i = 0; i < 32; ++i) {
    EXPECT_EQ(packing.data()[i], memory.data()[i / 8 * 32 + i % 8]);
  }
  EXPECT_EQ(std::memcmp(packing.data() + 32, memory.data() + 256, 16), 0);
}

TEST(DeviceStep, LocalCopyThatIsCutOtherwiseGoesThroughPacking) {
  Memory memory(4096), packing(4096);
  memory.fill(4);
  const auto columns = [&](int64_t at, int64_t run, int64_t count, int64_t stride) {
    Strided area;
    area.base = memory.data() + at;
    area.run = run;
    area.dims = 1;
    area.count[0] = count;
    area.stride[0] = stride;
    return area;
  };
  for (const bool fits : {true, false}) {
    Group group;
    group.sends.push_back({0, 24, {columns(0, 3, 8, 7)}});
    group.recvs.push_back({0, 24, {fits ? columns(1024, 6, 4, 9) : columns(1024, 4, 6, 9)}});
    EXPECT_EQ(packing_bytes(group, 0), fits ? 0 : 256);
    const DeviceStep step = make_device_step(group, 0, packing.data());
    EXPECT_TRUE(step.sends.empty() && step.recvs.empty());
    EXPECT_EQ(step.after.empty(), fits);
    copy_tiles(view(step.before.copies));
    copy_tiles(view(step.after.copies));
    const std::vector<std::byte*> from = addresses(group.sends[0].boxes[0]);
    const std::vector<std::byte*> to = addresses(group.recvs[0].boxes[0]);
    for (size_t i = 0; i < from.size(); ++i) EXPECT_EQ(*from[i], *to[i]) << i;
  }
}

}  // namespace
}  // namespace refit
