// Sweeps with casts as a kernel's threads do them, against the host's casts (exec/conversion.h,
// which has its own oracle in cast_test.cc): every bit equal, for all formats, odd shapes, strides
// and addresses, and for weights that are NaN, infinite, subnormal or zero.

#include "exec/sweep.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "exec/conversion.h"
#include "exec/device_step.h"
#include "exec/strided.h"
#include "tests/exec/random_casts.h"

namespace refit {
namespace {

using testing::add_cast_box;
using testing::add_plain;
using testing::Arena;
using testing::bytes_of;
using testing::CastMessage;
using testing::CastRandom;
using testing::CastWeights;
using testing::fill;
using testing::kWeightDtypes;
using testing::random_area;
using testing::random_conversion;
using testing::random_message;
using testing::random_weights;

constexpr int64_t kArena = int64_t{32} << 20;

/// Runs the sweep twice in the memory of a device, with one block and with several side by side:
/// what the first run leaves must not matter, nor in what order blocks get their turns.
void run_twice(const Sweep& sweep) {
  const int64_t bytes = place_sweep(sweep, nullptr, nullptr).bytes;
  Arena block(bytes);
  std::byte* at = block.take(bytes);
  const PlacedSweep placed = place_sweep(sweep, at, at);
  run_sweep(placed.view);
  run_sweep(placed.view, 3);
}

class Formats : public ::testing::TestWithParam<Format> {};

TEST_P(Formats, PackedCastsAreTheHosts) {
  const Format format = GetParam();
  CastRandom random(static_cast<uint32_t>(format) + 1);
  std::set<Output> outputs;
  Arena arena(kArena);
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    random.specials = round % 2 == 0;
    arena.take_back();
    const CastMessage message = random_message(random, arena, format);
    const std::vector<std::byte>& expected = message.expected;
    outputs.insert(message.outputs.begin(), message.outputs.end());
    Group group;
    group.sends.push_back(message.part);
    std::byte* const packing = arena.take(packing_bytes(group, 0));
    const DeviceStep step = make_device_step(group, 0, packing);
    ASSERT_EQ(step.sends.size(), 1U);
    EXPECT_TRUE(step.after.empty());
    run_twice(step.before);
    ASSERT_EQ(step.sends[0].bytes, std::ssize(expected));
    const auto wrong = std::mismatch(expected.begin(), expected.end(), step.sends[0].at);
    ASSERT_TRUE(wrong.first == expected.end())
        << "byte " << wrong.first - expected.begin() << ": expected "
        << std::to_integer<int>(*wrong.first) << ", found " << std::to_integer<int>(*wrong.second);
    for (std::byte* at = step.sends[0].at + std::ssize(expected);
         at < packing + packing_bytes(group, 0); ++at) {
      ASSERT_EQ(*at, Arena::kUntouched);  // nothing behind the message is touched
    }
  }
  for (const Output output : {Output::kData, Output::kScale, Output::kGlobalScale}) {
    EXPECT_EQ(outputs.contains(output), has_output(format, output)) << output_name(output);
  }
}

INSTANTIATE_TEST_SUITE_P(, Formats,
                         ::testing::Values(Format::kNone, Format::kFp8Block, Format::kMxfp8,
                                           Format::kFp8, Format::kNvfp4),
                         [](const auto& kind) { return std::string(format_name(kind.param)); });

TEST(Sweep, UnpackedCastsAreTheHosts) {
  CastRandom random(50);
  Arena arena(kArena);
  for (int round = 0; round < 80; ++round) {
    SCOPED_TRACE(round);
    arena.take_back();
    CastWeights weights = random_weights(random, arena, Format::kNone);
    Conversion conversion = random_conversion(random, weights, Format::kNone);
    const int64_t area_bytes = bytes_of(weights.area, weights.dtype);
    std::byte* twin = arena.take(area_bytes);
    std::memcpy(twin, weights.memory, static_cast<size_t>(area_bytes));
    Part part;
    part.peer = 1;
    if (round % 2 == 0) add_plain(part, arena.take(3), 3);
    add_cast_box(part, conversion);
    Group group;
    group.recvs.push_back(part);
    std::byte* const packing = arena.take(packing_bytes(group, 0));
    const DeviceStep step = make_device_step(group, 0, packing);
    ASSERT_EQ(step.recvs.size(), 1U);
    std::byte* arrived = step.recvs[0].at + (round % 2 == 0 ? 3 : 0);
    std::vector<std::byte> wire(static_cast<size_t>(bytes_of(conversion)));
    fill(random, wire.data(), std::ssize(wire), conversion.wire);
    std::memcpy(arrived, wire.data(), wire.size());
    run_twice(step.after);
    Conversion on_host = conversion;
    on_host.memory = twin;
    on_host.packed = wire.data();
    unpack(on_host);
    ASSERT_EQ(std::memcmp(weights.memory, twin, static_cast<size_t>(area_bytes)), 0);
  }
}

TEST(Sweep, LocalCopiesWithCastsAreTheHosts) {
  constexpr Format kAll[] = {Format::kNone, Format::kFp8Block, Format::kMxfp8, Format::kFp8,
                             Format::kNvfp4};
  CastRandom random(51);
  Arena arena(kArena);
  int direct = 0, packed = 0;
  for (int round = 0; round < 240; ++round) {
    SCOPED_TRACE(round);
    arena.take_back();
    const Format format = random.of(kAll);
    const CastWeights weights = random_weights(random, arena, format);
    Conversion from = random_conversion(random, weights, format);
    const bool plain_source = format == Format::kNone && random.in(0, 2) == 0;
    if (plain_source) {  // only the receiving end converts
      from.casts = false;
      from.wire = from.dtype;
    }
    Conversion to;
    to.shape = from.format == Format::kNone ? from.shape
                                            : output_shape(from.format, from.output, from.shape);
    to.wire = to.dtype = from.wire;
    if (plain_source || (format == Format::kNone && random.in(0, 3) == 0)) {
      do {
        to.dtype = random.of(kWeightDtypes);
      } while (to.dtype == to.wire);
      to.casts = true;
    }
    to.box = from.box;
    to.area = random_area(random, whole(to.shape), dtype_bits(to.dtype) >= 8);
    const int64_t bytes = bytes_of(to.area, to.dtype);
    to.memory = arena.take(bytes);
    Group group;
    for (auto* parts : {&group.sends, &group.recvs}) {
      const Conversion& end = parts == &group.sends ? from : to;
      Part part;
      part.peer = 0;
      if (end.casts) {
        add_cast_box(part, end);
      } else {
        part.boxes.push_back(resolve(end.area, end.box, end.dtype, end.memory));
        part.conversions.push_back(end);
        part.bytes = bytes_of(end);
      }
      parts->push_back(part);
    }
    std::byte* const packing = arena.take(packing_bytes(group, 0));
    const DeviceStep step = make_device_step(group, 0, packing);
    EXPECT_EQ(step.after.empty(), !(from.casts && to.casts));
    ++(step.after.empty() ? direct : packed);
    run_twice(step.before);
    run_twice(step.after);
    Conversion twin = to;
    twin.memory = arena.take(bytes);
    copy_piece(from, twin);
    ASSERT_EQ(std::memcmp(to.memory, twin.memory, static_cast<size_t>(bytes)), 0);
  }
  EXPECT_GT(direct, 10);
  EXPECT_GT(packed, 5);
}

TEST(Sweep, MatrixIsLookedThroughOnceForAllThatIsMadeOfIt) {
  CastRandom random(52);
  Arena arena(kArena);
  CastWeights weights;
  weights.shape = {2, 96, 64};
  weights.area = {whole(weights.shape), 0, dense_strides(weights.shape)};
  weights.memory = arena.take(2 * 96 * 64 * 2);
  fill(random, weights.memory, 2 * 96 * 64 * 2, weights.dtype);
  CastTable table;
  const ElementArea from{weights.memory, weights.dtype, Dims{0, 0, 0}, weights.area.stride};
  for (const Output output : {Output::kData, Output::kScale, Output::kGlobalScale}) {
    const Dims shape = output_shape(Format::kNvfp4, output, weights.shape);
    const ElementArea to{arena.take(2 * 96 * 64), output_dtype(Format::kNvfp4, output),
                         whole(shape).lo, dense_strides(shape)};
    add_cast(table, Format::kNvfp4, output, weights.shape, whole(shape), from, to);
  }
  EXPECT_EQ(table.boxes.size(), 6U);
  EXPECT_EQ(table.maxima.size(), 2U);
  EXPECT_EQ(table.maxima[1].pieces, 96 * 64 / 16);
}

TEST(Sweep, DimensionsThatLieInOneAnotherAreOneRow) {
  const Dims shape{4, 8, 32};
  Arena arena(kArena);
  const ElementArea from{arena.take(4096), Dtype::kFp32, Dims{0, 0, 0}, dense_strides(shape)};
  const ElementArea to{arena.take(2048), Dtype::kBf16, Dims{0, 0, 0}, dense_strides(shape)};
  CastTable table;
  add_cast(table, Format::kNone, Output::kData, shape, whole(shape), from, to);
  ASSERT_EQ(table.boxes.size(), 1U);
  EXPECT_EQ(table.boxes[0].source.rows, 1);
  EXPECT_EQ(table.boxes[0].source.columns, 4 * 8 * 32);
  EXPECT_EQ(table.boxes[0].units, 4 * 8 * 32 / 16);
}

}  // namespace
}  // namespace refit
