// Sweeps with casts as a kernel's threads do them, against the host's casts (exec/conversion.h, which
// has its own oracle in cast_test.cc): every bit equal, for all formats, odd shapes, strides and
// addresses, and for weights that are NaN, infinite, subnormal or zero.

#include "exec/sweep.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "exec/conversion.h"
#include "exec/device_step.h"
#include "exec/strided.h"

namespace refit {
namespace {

constexpr Dtype kWeights[] = {Dtype::kBf16, Dtype::kFp32, Dtype::kFp16};

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int64_t in(int64_t lo, int64_t hi) {
    return lo + static_cast<int64_t>(engine_() % static_cast<uint64_t>(hi - lo + 1));
  }
  template <typename T, size_t N>
  T of(const T (&list)[N]) {
    return list[in(0, static_cast<int64_t>(N) - 1)];
  }

  /// Weights of magnitudes far apart; some blocks of zeros, some values that are none.
  float weight() {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    constexpr float kSpecial[] = {0,          -0.0F, kInfinity, -kInfinity, kNan, -kNan, 0x1p-130F,
                                  -0x1p-149F, 3e38F, 0x1p-26F,  65520,      448,  464};
    if (in(0, 199) == 0) zeros_ = in(0, 600);
    if (--zeros_ > 0) return 0;
    if (specials && in(0, 99) == 0) return of(kSpecial);
    return std::ldexp(static_cast<float>(in(-1000, 1000)), static_cast<int>(in(-20, 4)));
  }
  bool specials = true;

 private:
  std::mt19937_64 engine_;
  int64_t zeros_ = 0;
};

/// Memory whose addresses are at multiples of 256.
class Memory {
 public:
  explicit Memory(int64_t bytes) : bytes_(static_cast<size_t>(bytes + 256), std::byte{0x5a}) {
    const auto at = reinterpret_cast<uintptr_t>(bytes_.data());
    data_ = bytes_.data() + (256 - at % 256) % 256;
  }
  Memory(const Memory&) = delete;
  std::byte* data() const { return data_; }
  std::byte* end() { return bytes_.data() + bytes_.size(); }

 private:
  std::vector<std::byte> bytes_;
  std::byte* data_ = nullptr;
};

/// A box of a tensor in memory: rows apart, dimensions in another order now and then.
Shard random_area(Random& random, const Box& box, bool may_turn) {
  Shard area;
  area.box = box;
  area.offset = random.in(0, 3) * 2;
  area.stride.count = box.dims();
  std::vector<int> order;  // innermost first
  for (int dim = box.dims() - 1; dim >= 0; --dim) order.push_back(dim);
  if (may_turn && random.in(0, 3) == 0) std::reverse(order.begin(), order.end());
  int64_t stride = 1;
  for (const int dim : order) {
    area.stride[dim] = stride;
    stride *= box.extent(dim) + random.in(0, 1) * random.in(0, 4) * 2;
  }
  return area;
}

int64_t bytes_of(const Shard& area, Dtype dtype) {
  return (shard_end(area) * dtype_bits(dtype) + 7) / 8;
}

void fill(Random& random, std::byte* memory, int64_t bytes, Dtype dtype) {
  std::vector<float> values(static_cast<size_t>(bytes * 8 / dtype_bits(dtype)));
  for (float& value : values) value = random.weight();
  encode_row(dtype, values.data(), std::ssize(values), memory);
}

/// A part of the interval, with borders at multiples of `step`.
std::pair<int64_t, int64_t> random_part(Random& random, int64_t size, int64_t step) {
  if (random.in(0, 1) == 0) return {0, size};
  const int64_t steps = size / step, lo = random.in(0, steps - 1);
  return {lo * step, random.in(lo + 1, steps) * step};
}

Box random_box(Random& random, const Dims& shape, int64_t last_step) {
  Box box = whole(shape);
  for (int dim = 0; dim < shape.count; ++dim) {
    std::tie(box.lo[dim], box.hi[dim]) =
        random_part(random, shape[dim], dim == shape.count - 1 ? last_step : 1);
  }
  return box;
}

struct Weights {
  Dims shape;
  Shard area;
  Dtype dtype = Dtype::kBf16;
  std::byte* memory = nullptr;
};

/// Everything that one test needs to lie still.
struct Arena {
  std::vector<std::unique_ptr<Memory>> blocks;
  std::byte* take(int64_t bytes) {
    return blocks.emplace_back(std::make_unique<Memory>(bytes))->data();
  }
};

Weights random_weights(Random& random, Arena& arena, Format format) {
  const int64_t step = format == Format::kMxfp8 ? 32 : format == Format::kNvfp4 ? 16 : 1;
  Weights weights;
  weights.dtype = random.of(kWeights);
  weights.shape = {random.in(1, 300), random.in(1, 320 / step) * step};
  if (random.in(0, 2) == 0) {
    weights.shape = {random.in(1, 3), random.in(1, 140), random.in(1, 200 / step) * step};
  }
  if (format == Format::kNone && random.in(0, 2) == 0) {
    weights.shape = {random.in(1, 4), random.in(1, 5), random.in(1, 6), random.in(1, 40)};
  }
  if (format == Format::kNone && random.in(0, 4) == 0) weights.shape = {random.in(1, 20000)};
  weights.area = random_area(random, whole(weights.shape), true);
  const int64_t bytes = bytes_of(weights.area, weights.dtype);
  weights.memory = arena.take(bytes);
  fill(random, weights.memory, bytes, weights.dtype);
  return weights;
}

/// Something that is made of the weights.
Conversion random_conversion(Random& random, const Weights& weights, Format format) {
  Conversion c;
  c.casts = true;
  c.area = weights.area;
  c.dtype = weights.dtype;
  c.memory = weights.memory;
  c.format = format;
  c.shape = weights.shape;
  if (format == Format::kNone) {
    do {
      c.wire = random.of(kWeights);
    } while (c.wire == c.dtype);
    c.box = random_box(random, weights.shape, 1);
    return c;
  }
  constexpr Output kOutputs[] = {Output::kData, Output::kScale, Output::kGlobalScale};
  do {
    c.output = random.of(kOutputs);
  } while (!has_output(format, c.output));
  c.wire = output_dtype(format, c.output);
  c.box =
      random_box(random, output_shape(format, c.output, c.shape), dtype_bits(c.wire) == 4 ? 2 : 1);
  return c;
}

int64_t bytes_of(const Conversion& c) { return dtype_bytes(c.wire, c.box.volume()); }

void add(Part& part, const Conversion& conversion) {
  part.boxes.push_back({.run = bytes_of(conversion)});
  part.conversions.push_back(conversion);
  part.bytes += bytes_of(conversion);
}

/// Bytes that are moved as they are, so that what follows begins anywhere.
void add_plain(Part& part, std::byte* at, int64_t bytes) {
  Conversion plain;
  plain.memory = at;
  plain.dtype = plain.wire = Dtype::kInt8;
  plain.shape = Dims{bytes};
  plain.box = whole(plain.shape);
  plain.area = {plain.box, 0, Dims{1}};
  part.boxes.push_back(dense_block(at, bytes));
  part.conversions.push_back(plain);
  part.bytes += bytes;
}

/// Runs the sweep twice in the memory of a device: what the first run leaves must not matter.
void run_twice(const Sweep& sweep) {
  const int64_t bytes = place_sweep(sweep, nullptr, nullptr).bytes;
  const Memory block(bytes);
  const PlacedSweep placed = place_sweep(sweep, block.data(), block.data());
  run_sweep(placed.view);
  run_sweep(placed.view);
}

class Formats : public ::testing::TestWithParam<Format> {};

TEST_P(Formats, PackedCastsAreTheHosts) {
  const Format format = GetParam();
  Random random(static_cast<uint32_t>(format) + 1);
  std::set<Output> outputs;
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    random.specials = round % 2 == 0;
    Arena arena;
    Part part;
    part.peer = 1;
    std::vector<std::byte> expected;
    for (int64_t tensors = random.in(1, 3); tensors > 0; --tensors) {
      const Weights weights = random_weights(random, arena, format);
      for (int64_t pieces = random.in(1, 4); pieces > 0; --pieces) {
        if (random.in(0, 2) == 0) {
          const int64_t bytes = random.in(1, 40);
          add_plain(part, arena.take(bytes), bytes);
          expected.insert(expected.end(), part.boxes.back().base, part.boxes.back().base + bytes);
        }
        Conversion conversion = random_conversion(random, weights, format);
        add(part, conversion);
        outputs.insert(conversion.output);
        std::vector<std::byte> packed(static_cast<size_t>(bytes_of(conversion)));
        conversion.packed = packed.data();
        pack(conversion);
        expected.insert(expected.end(), packed.begin(), packed.end());
      }
    }
    Group group;
    group.sends.push_back(part);
    const Memory packing(packing_bytes(group, 0));
    const DeviceStep step = make_device_step(group, 0, packing.data());
    ASSERT_EQ(step.sends.size(), 1U);
    EXPECT_TRUE(step.after.empty());
    run_twice(step.before);
    ASSERT_EQ(step.sends[0].bytes, std::ssize(expected));
    const auto wrong = std::mismatch(expected.begin(), expected.end(), step.sends[0].at);
    ASSERT_TRUE(wrong.first == expected.end())
        << "byte " << wrong.first - expected.begin() << ": expected "
        << std::to_integer<int>(*wrong.first) << ", found " << std::to_integer<int>(*wrong.second);
    for (std::byte* at = step.sends[0].at + std::ssize(expected);
         at < packing.data() + packing_bytes(group, 0); ++at) {
      ASSERT_EQ(*at, std::byte{0x5a});  // nothing behind the message is touched
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
  Random random(50);
  for (int round = 0; round < 80; ++round) {
    SCOPED_TRACE(round);
    Arena arena;
    Weights weights = random_weights(random, arena, Format::kNone);
    Conversion conversion = random_conversion(random, weights, Format::kNone);
    const int64_t area_bytes = bytes_of(weights.area, weights.dtype);
    std::byte* twin = arena.take(area_bytes);
    std::memcpy(twin, weights.memory, static_cast<size_t>(area_bytes));
    Part part;
    part.peer = 1;
    if (round % 2 == 0) add_plain(part, arena.take(3), 3);
    add(part, conversion);
    Group group;
    group.recvs.push_back(part);
    const Memory packing(packing_bytes(group, 0));
    const DeviceStep step = make_device_step(group, 0, packing.data());
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
  Random random(51);
  int direct = 0, packed = 0;
  for (int round = 0; round < 240; ++round) {
    SCOPED_TRACE(round);
    Arena arena;
    const Format format = random.of(kAll);
    const Weights weights = random_weights(random, arena, format);
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
        to.dtype = random.of(kWeights);
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
        add(part, end);
      } else {
        part.boxes.push_back(resolve(end.area, end.box, end.dtype, end.memory));
        part.conversions.push_back(end);
        part.bytes = bytes_of(end);
      }
      parts->push_back(part);
    }
    const Memory packing(packing_bytes(group, 0));
    const DeviceStep step = make_device_step(group, 0, packing.data());
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
  Random random(52);
  Arena arena;
  Weights weights;
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
  Arena arena;
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
