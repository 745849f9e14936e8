// Casts against the simplest readings of their definitions: every value of a small format is listed
// with its meaning, and what is nearest is found by looking at all of them.

#include "exec/cast.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <vector>

namespace refit {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Value of a finite element, from sign, exponent and mantissa by arithmetic in double.
double meaning(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const uint32_t sign = bits >> (exponent_bits + mantissa_bits);
  const int exponent = static_cast<int>(bits >> mantissa_bits & ((1U << exponent_bits) - 1));
  const double mantissa = bits & ((1U << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double one = std::pow(2.0, mantissa_bits);
  const double value = exponent == 0 ? mantissa / one * std::pow(2.0, 1 - bias)
                                     : (1 + mantissa / one) * std::pow(2.0, exponent - bias);
  return sign != 0 ? -value : value;
}

struct Small {
  Dtype dtype;
  int exponent, mantissa;
  uint32_t largest;  // magnitude bits of the largest finite value
};
constexpr Small kE4m3{Dtype::kFp8E4m3, 4, 3, 0x7e};
constexpr Small kE2m1{Dtype::kFp4E2m1, 2, 1, 0x7};
constexpr Small kFp16{Dtype::kFp16, 5, 10, 0x7bff};

/// The nearest finite element, of two equally near ones the even one, by looking at all.
uint32_t nearest(float value, const Small& format) {
  const uint32_t sign = std::signbit(value) ? 1U << (format.exponent + format.mantissa) : 0;
  uint32_t best = 0;
  const double magnitude =
      std::min(std::fabs(static_cast<double>(value)), 1e6);  // distances stay exact
  double best_distance = std::numeric_limits<double>::infinity();
  for (uint32_t bits = 0; bits <= format.largest; ++bits) {
    const double distance = std::fabs(magnitude - meaning(bits, format.exponent, format.mantissa));
    if (distance < best_distance || (distance == best_distance && bits % 2 == 0)) {
      best = bits;
      best_distance = distance;
    }
  }
  return sign | best;
}

float bf16(uint32_t bits) { return std::bit_cast<float>(bits << 16); }

TEST(Cast, DecodesEveryValue) {
  for (const Small& format : {kE4m3, kE2m1, kFp16}) {
    for (uint32_t bits = 0; bits <= format.largest; ++bits) {
      const uint32_t negative = bits | 1U << (format.exponent + format.mantissa);
      EXPECT_EQ(decode(format.dtype, bits), meaning(bits, format.exponent, format.mantissa));
      EXPECT_EQ(decode(format.dtype, negative), -meaning(bits, format.exponent, format.mantissa));
    }
  }
  EXPECT_TRUE(std::isnan(decode(Dtype::kFp8E4m3, 0x7f)));
  EXPECT_TRUE(std::isnan(decode(Dtype::kFp8E4m3, 0xff)));
  EXPECT_EQ(decode(Dtype::kFp16, 0x7c00), kInfinity);
  EXPECT_EQ(decode(Dtype::kFp16, 0xfc00), -kInfinity);
  EXPECT_TRUE(std::isnan(decode(Dtype::kFp16, 0x7c01)));
  EXPECT_EQ(decode(Dtype::kE8m0, 127), 1);
  EXPECT_EQ(decode(Dtype::kE8m0, 0), std::ldexp(1.0F, -127));
  EXPECT_TRUE(std::isnan(decode(Dtype::kE8m0, 0xff)));
}

TEST(Cast, EveryBf16GoesToTheNearest) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = bf16(bits);
    EXPECT_EQ(encode(Dtype::kBf16, value) & ~0x40U, bits & ~0x40U) << bits;  // NaN becomes quiet
    if (std::isnan(value)) {
      EXPECT_EQ(encode(Dtype::kFp8E4m3, value) & 0x7fU, 0x7fU);
      EXPECT_EQ(encode(Dtype::kFp4E2m1, value), 7U);
      continue;
    }
    ASSERT_EQ(encode(Dtype::kFp8E4m3, value), nearest(value, kE4m3)) << value;
    ASSERT_EQ(encode(Dtype::kFp4E2m1, value), nearest(value, kE2m1)) << value;
  }
}

TEST(Cast, EverySmallValueComesBack) {
  for (const Small& format : {kE4m3, kE2m1, kFp16}) {
    for (uint32_t bits = 0; bits <= format.largest; ++bits) {
      EXPECT_EQ(encode(format.dtype, decode(format.dtype, bits)), bits);
    }
  }
}

TEST(Cast, BordersBetweenNeighbours) {
  for (const Small& format : {kE4m3, kE2m1, kFp16}) {
    for (uint32_t bits = 0; bits < format.largest; ++bits) {
      const auto low = static_cast<float>(meaning(bits, format.exponent, format.mantissa));
      const auto high = static_cast<float>(meaning(bits + 1, format.exponent, format.mantissa));
      const float middle = low + (high - low) / 2;
      EXPECT_EQ(encode(format.dtype, middle), bits + bits % 2) << middle;
      EXPECT_EQ(encode(format.dtype, std::nextafter(middle, 0.0F)), bits) << middle;
      EXPECT_EQ(encode(format.dtype, std::nextafter(middle, kInfinity)), bits + 1) << middle;
    }
  }
  EXPECT_EQ(encode(Dtype::kFp16, 65519.996F), 0x7bffU);
  EXPECT_EQ(encode(Dtype::kFp16, 65520.0F), 0x7c00U);
  EXPECT_EQ(encode(Dtype::kFp16, -kInfinity), 0xfc00U);
  EXPECT_EQ(encode(Dtype::kFp8E4m3, 1e9F), 0x7eU);
  EXPECT_EQ(encode(Dtype::kFp8E4m3, -kInfinity), 0xfeU);
  EXPECT_EQ(encode(Dtype::kBf16, std::nextafter(bf16(0x7f7f), kInfinity)), 0x7f7fU);
  EXPECT_EQ(encode(Dtype::kBf16, std::numeric_limits<float>::max()), 0x7f80U);
}

TEST(Cast, E8m0IsTheLeastPowerThatIsNoLess) {
  std::mt19937 random(7);
  for (int i = 0; i < 20000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random() % 0x7f800000U));
    const uint32_t code = encode(Dtype::kE8m0, value);
    const double power = std::pow(2.0, static_cast<int>(code) - 127);
    if (code < 0xfe) {
      EXPECT_GE(power, value);
    }
    if (code > 0) {
      EXPECT_LT(power / 2, value);
    }
  }
  EXPECT_EQ(encode(Dtype::kE8m0, 1), 127U);
  EXPECT_EQ(encode(Dtype::kE8m0, std::nextafter(1.0F, 2.0F)), 128U);
  EXPECT_EQ(encode(Dtype::kE8m0, 0), 0U);
  EXPECT_EQ(encode(Dtype::kE8m0, kInfinity), 0xfeU);
}

TEST(Cast, RowsAreElements) {
  const float values[] = {0.5F, -6, 1.5F, 0};
  std::byte bytes[16];
  encode_row(Dtype::kFp4E2m1, values, 4, bytes);
  EXPECT_EQ(bytes[0], std::byte{0xf1});  // the even element in the low half
  EXPECT_EQ(bytes[1], std::byte{0x03});
  for (const Dtype dtype :
       {Dtype::kFp32, Dtype::kBf16, Dtype::kFp16, Dtype::kFp8E4m3, Dtype::kFp4E2m1}) {
    float back[4];
    encode_row(dtype, values, 4, bytes);
    decode_row(dtype, bytes, 4, back);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(back[i], values[i]) << dtype_name(dtype);
  }
}

// ---- Quantised weights, element by element

struct Weight {
  Dims shape;
  std::vector<float> values;
  mutable std::map<Dims, float> largest_of = {};  // by first element of a matrix, once looked for
  float at(const Dims& point) const {
    int64_t index = 0;
    for (int d = 0; d < shape.count; ++d) index = index * shape[d] + point[d];
    return values[static_cast<size_t>(index)];
  }
};

Weight random_weight(const Dims& shape, uint32_t seed) {
  std::mt19937 random(seed);
  Weight weight{shape, {}};
  for (int64_t i = 0; i < shape.product(); ++i) {
    const float value =
        std::ldexp(static_cast<float>(random() % 2001) - 1000, static_cast<int>(random() % 12) - 8);
    weight.values.push_back(random() % 50 == 0 ? 0 : value);
  }
  return weight;
}

std::vector<std::byte> run(Format format, Output output, const Weight& weight, const Box& box) {
  std::vector<std::byte> bytes(
      static_cast<size_t>(dtype_bytes(output_dtype(format, output), box.volume())));
  const Box allowed = source_box(format, output, weight.shape, box);
  quantise(
      format, output, weight.shape, box,
      [&](const Dims& at, int64_t count, float* to) {
        for (int64_t i = 0; i < count; ++i) {
          Dims point = at;
          point[point.count - 1] += i;
          Box one{point, point};
          for (int d = 0; d < point.count; ++d) ++one.hi[d];
          EXPECT_TRUE(contains(allowed, one)) << print_box(one);
          to[i] = weight.at(point);
        }
      },
      bytes.data());
  return bytes;
}

/// Largest magnitude of a box of the weight.
float largest(const Weight& weight, const Box& box) {
  float most = 0;
  Dims at = box.lo;
  for (int64_t i = 0; i < box.volume(); ++i) {
    int64_t rest = i;
    for (int d = box.dims() - 1; d >= 0; --d) {
      at[d] = box.lo[d] + rest % box.extent(d);
      rest /= box.extent(d);
    }
    most = std::max(most, std::fabs(weight.at(at)));
  }
  return most;
}

/// What an element of an output has to be, by the formulas of cast.h.
uint32_t expected(Format format, Output output, const Weight& weight, const Dims& point) {
  Box one{point, point};
  for (int d = 0; d < point.count; ++d) ++one.hi[d];
  Box source = one;
  if (output == Output::kGlobalScale) {
    source = whole(weight.shape);
    for (int d = 0; d < point.count; ++d) {
      source.lo[d] = point[d];
      source.hi[d] = point[d] + 1;
    }
  }
  Box matrix = output == Output::kGlobalScale ? source : whole(weight.shape);
  for (int d = 0; d + 2 < weight.shape.count; ++d) {
    matrix.lo[d] = point[d];
    matrix.hi[d] = point[d] + 1;
  }
  const auto or_one = [](float scale) { return scale == 0 ? 1 : scale; };
  const auto [known, fresh] = weight.largest_of.emplace(matrix.lo, 0);
  if (fresh) known->second = largest(weight, matrix);
  const float global = or_one(known->second / (format == Format::kNvfp4 ? 6.0F * 448.0F : 448.0F));
  if (output == Output::kGlobalScale) return encode(Dtype::kFp32, global);
  if (format == Format::kFp8) return nearest(weight.at(point) / global, kE4m3);

  // The block, cut to the tensor.
  const Block2 block = scale_block(format);
  const int rows = weight.shape.count - 2, columns = rows + 1;
  Box part = matrix;
  const bool data = output == Output::kData;
  const int64_t row = data ? point[rows] / block.rows : point[rows];
  const int64_t column = data ? point[columns] / block.columns : point[columns];
  part.lo[rows] = row * block.rows;
  part.hi[rows] = std::min((row + 1) * block.rows, weight.shape[rows]);
  part.lo[columns] = column * block.columns;
  part.hi[columns] = std::min((column + 1) * block.columns, weight.shape[columns]);
  const float most = largest(weight, part);
  switch (format) {
    case Format::kFp8Block: {
      const float scale = or_one(most / 448.0F);
      return data ? nearest(weight.at(point) / scale, kE4m3) : encode(Dtype::kFp32, scale);
    }
    case Format::kMxfp8: {
      const int power =
          most == 0 ? -127
                    : static_cast<int>(std::ceil(std::log2(static_cast<double>(most / 448.0F))));
      const float scale = std::ldexp(1.0F, power);
      return data ? nearest(weight.at(point) / scale, kE4m3) : static_cast<uint32_t>(power + 127);
    }
    case Format::kNvfp4: {
      const float ideal = most == 0 ? 1 : std::max(most / (6.0F * global), 0x1p-9F);
      const uint32_t code = nearest(ideal, kE4m3);
      const auto scale = static_cast<float>(meaning(code, 4, 3));
      return data ? nearest(weight.at(point) / (scale * global), kE2m1) : code;
    }
    case Format::kNone:
    case Format::kFp8:
      break;
  }
  return 0;
}

void expect_box(Format format, Output output, const Weight& weight, const Box& box) {
  const std::vector<std::byte> bytes = run(format, output, weight, box);
  const int bits = dtype_bits(output_dtype(format, output));
  for (int64_t i = 0; i < box.volume(); ++i) {
    Dims at = box.lo;
    int64_t rest = i;
    for (int d = box.dims() - 1; d >= 0; --d) {
      at[d] = box.lo[d] + rest % box.extent(d);
      rest /= box.extent(d);
    }
    uint32_t got = 0;
    if (bits == 4) {
      got = std::to_integer<uint32_t>(bytes[static_cast<size_t>(i / 2)]) >> (i % 2 * 4) & 15U;
    } else {
      for (int byte = bits / 8 - 1; byte >= 0; --byte) {
        got = got << 8 | std::to_integer<uint32_t>(bytes[static_cast<size_t>(i * bits / 8 + byte)]);
      }
    }
    ASSERT_EQ(got, expected(format, output, weight, at))
        << format_name(format) << " " << output_name(output) << " " << print_box(box) << " element "
        << i;
  }
}

constexpr Format kFormats[] = {Format::kFp8Block, Format::kMxfp8, Format::kFp8, Format::kNvfp4};
constexpr Output kOutputs[] = {Output::kData, Output::kScale, Output::kGlobalScale};

TEST(Quantise, EqualsTheFormulas) {
  uint32_t seed = 1;
  for (const Dims& shape : {Dims{130, 160}, Dims{2, 3, 64}, Dims{1, 32}, Dims{256, 128}}) {
    const Weight weight = random_weight(shape, seed++);
    for (const Format format : kFormats) {
      for (const Output output : kOutputs) {
        if (!has_output(format, output)) continue;
        expect_box(format, output, weight, whole(output_shape(format, output, shape)));
      }
    }
  }
}

TEST(Quantise, PartsAreThoseOfTheWhole) {
  const Weight weight = random_weight({3, 140, 192}, 9);
  for (const Format format : kFormats) {
    expect_box(format, Output::kData, weight, {{1, 5, 30}, {3, 133, 180}});
    expect_box(format, Output::kData, weight, {{0, 139, 190}, {1, 140, 192}});
    if (!has_output(format, Output::kScale)) continue;
    const Dims shape = output_shape(format, Output::kScale, weight.shape);
    expect_box(format, Output::kScale, weight, {{2, 1, 1}, {3, shape[1], shape[2]}});
  }
}

TEST(Quantise, Zeros) {
  const Weight weight{{2, 64}, std::vector<float>(128, 0)};
  for (const Format format : kFormats) {
    for (const Output output : kOutputs) {
      if (!has_output(format, output)) continue;
      expect_box(format, output, weight, whole(output_shape(format, output, weight.shape)));
    }
  }
}

TEST(Quantise, TinyBlocksBesideALargeOne) {
  Weight weight{{1, 64}, std::vector<float>(64, 0x1p-40F)};
  weight.values[0] = 100;
  for (const Output output : kOutputs) {
    expect_box(Format::kNvfp4, output, weight,
               whole(output_shape(Format::kNvfp4, output, weight.shape)));
  }
}

}  // namespace
}  // namespace refit
