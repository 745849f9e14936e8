#pragma once

// Random casts with all that they need in memory, for the tests of sweeps here and on GPUs.

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "exec/backend.h"
#include "exec/conversion.h"
#include "exec/device_step.h"
#include "tests/random.h"

namespace refit::testing {

inline constexpr Dtype kWeightDtypes[] = {Dtype::kBf16, Dtype::kFp32, Dtype::kFp16};

class CastRandom : public Random {
 public:
  using Random::Random;

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
  int64_t zeros_ = 0;
};

/// Memory, dealt out at multiples of 256.
class Arena {
 public:
  explicit Arena(int64_t bytes)
      : bytes_(align(bytes)),
        block_(new std::byte[static_cast<size_t>(bytes_ + kAlignment)]),
        data_(block_.get() +
              (kAlignment - reinterpret_cast<uintptr_t>(block_.get()) % kAlignment)) {}

  static constexpr std::byte kUntouched{0x5a};
  std::byte* data() const { return data_; }
  int64_t used() const { return used_; }
  std::byte* take(int64_t bytes) {
    std::byte* at = data_ + used_;
    used_ += align(bytes);
    REFIT_CHECK(used_ <= bytes_);
    std::memset(at, std::to_integer<int>(kUntouched), static_cast<size_t>(align(bytes)));
    return at;
  }
  void take_back() { used_ = 0; }

 private:
  int64_t bytes_ = 0, used_ = 0;
  std::unique_ptr<std::byte[]> block_;
  std::byte* data_ = nullptr;
};

/// A box of a tensor in memory: rows apart, dimensions in another order now and then.
inline Shard random_area(CastRandom& random, const Box& box, bool may_turn) {
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

inline int64_t bytes_of(const Shard& area, Dtype dtype) {
  return (shard_end(area) * dtype_bits(dtype) + 7) / 8;
}

inline void fill(CastRandom& random, std::byte* memory, int64_t bytes, Dtype dtype) {
  std::vector<float> values(static_cast<size_t>(bytes * 8 / dtype_bits(dtype)));
  for (float& value : values) value = random.weight();
  encode_row(dtype, values.data(), std::ssize(values), memory);
}

/// A part of the interval, with borders at multiples of `step`.
inline std::pair<int64_t, int64_t> random_part(CastRandom& random, int64_t size, int64_t step) {
  if (random.in(0, 1) == 0) return {0, size};
  const int64_t steps = size / step, lo = random.in(0, steps - 1);
  return {lo * step, random.in(lo + 1, steps) * step};
}

inline Box random_box(CastRandom& random, const Dims& shape, int64_t last_step) {
  Box box = whole(shape);
  for (int dim = 0; dim < shape.count; ++dim) {
    std::tie(box.lo[dim], box.hi[dim]) =
        random_part(random, shape[dim], dim == shape.count - 1 ? last_step : 1);
  }
  return box;
}

struct CastWeights {
  Dims shape;
  Shard area;
  Dtype dtype = Dtype::kBf16;
  std::byte* memory = nullptr;
};

inline CastWeights random_weights(CastRandom& random, Arena& arena, Format format) {
  const int64_t step = format == Format::kMxfp8 ? 32 : format == Format::kNvfp4 ? 16 : 1;
  CastWeights weights;
  weights.dtype = random.of(kWeightDtypes);
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
inline Conversion random_conversion(CastRandom& random, const CastWeights& weights, Format format) {
  Conversion c;
  c.casts = true;
  c.area = weights.area;
  c.dtype = weights.dtype;
  c.memory = weights.memory;
  c.format = format;
  c.shape = weights.shape;
  if (format == Format::kNone) {
    do {
      c.wire = random.of(kWeightDtypes);
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

inline int64_t bytes_of(const Conversion& c) { return dtype_bytes(c.wire, c.box.volume()); }

inline void add_cast_box(Part& part, const Conversion& conversion) {
  part.boxes.push_back({.run = bytes_of(conversion)});
  part.conversions.push_back(conversion);
  part.bytes += bytes_of(conversion);
}

/// Bytes that are moved as they are, so that what follows begins anywhere.
inline void add_plain(Part& part, std::byte* at, int64_t bytes) {
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

/// A message of casts of some weights, with plain bytes between them, and what has to be sent.
struct CastMessage {
  Part part;
  std::vector<std::byte> expected;
  std::set<Output> outputs;
};

inline CastMessage random_message(CastRandom& random, Arena& arena, Format format) {
  CastMessage message;
  message.part.peer = 1;
  for (int64_t tensors = random.in(1, 3); tensors > 0; --tensors) {
    const CastWeights weights = random_weights(random, arena, format);
    for (int64_t pieces = random.in(1, 4); pieces > 0; --pieces) {
      if (random.in(0, 2) == 0) {
        const int64_t bytes = random.in(1, 40);
        std::byte* plain = arena.take(bytes);
        add_plain(message.part, plain, bytes);
        message.expected.insert(message.expected.end(), plain, plain + bytes);
      }
      Conversion conversion = random_conversion(random, weights, format);
      add_cast_box(message.part, conversion);
      message.outputs.insert(conversion.output);
      std::vector<std::byte> packed(static_cast<size_t>(bytes_of(conversion)));
      conversion.packed = packed.data();
      pack(conversion);
      message.expected.insert(message.expected.end(), packed.begin(), packed.end());
    }
  }
  return message;
}

}  // namespace refit::testing
