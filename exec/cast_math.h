#pragma once

#include <cstdint>
#include <cstring>

#include "exec/host_device.h"
#include "plans/dtype.h"
#include "plans/quant.h"

namespace refit {

// The arithmetic of casts (exec/cast.h says what they compute and why), one element or one scale at
// a time. The same source for the host and for kernels; compiled without contraction of products
// and sums, with IEEE division and with subnormal numbers on both, so that both give the same bits.

inline constexpr float kE4m3Largest = 448, kE2m1Largest = 6;
inline constexpr float kE4m3Smallest = 0x1p-9F;  // above 0

REFIT_HOST_DEVICE inline uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

REFIT_HOST_DEVICE inline float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

REFIT_HOST_DEVICE inline float magnitude_of(float value) {
  return float_of(bits_of(value) & 0x7fffffffU);
}

REFIT_HOST_DEVICE inline bool is_nan(float value) {
  return (bits_of(value) & 0x7fffffffU) > 0x7f800000U;
}

REFIT_HOST_DEVICE inline uint32_t least_of(uint32_t a, uint32_t b) { return a < b ? a : b; }

/// 2^exponent, a normal number.
REFIT_HOST_DEVICE constexpr float power_of_two(int exponent) {
  const bool negative = exponent < 0;
  float power = 1;
  for (int i = 0; i < (negative ? -exponent : exponent); ++i) power *= negative ? 0.5F : 2.0F;
  return power;
}

/// Drops the low bits: to nearest, ties to even.
REFIT_HOST_DEVICE inline uint32_t round_off(uint32_t bits, int dropped) {
  const uint32_t half = (uint32_t{1} << (dropped - 1)) - 1;
  return (bits + half + ((bits >> dropped) & 1U)) >> dropped;
}

/// A binary format of 16 bits or fewer with fp32's rules: sign, `kExponent` bits, `kMantissa` bits.
template <int kExponent, int kMantissa>
struct SmallFloat {
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr int kLeast = 1 - kBias;  // exponent of the smallest normal number
  static constexpr float kLeastNormal = power_of_two(kLeast);
  static constexpr float kUnit = power_of_two(kLeast - kMantissa);  // of subnormal numbers
  static constexpr float kUnitsOfOne = power_of_two(kMantissa - kLeast);

  /// |value| rounded to the format's grid, as its bits without sign. May run over the format's
  /// largest, into the bits above.
  REFIT_HOST_DEVICE static uint32_t round_magnitude(float magnitude) {
    if (magnitude < kLeastNormal) {
      // A multiple of the unit: scaling by a power of two is exact, and the sum rounds.
      constexpr float kInteger = 0x1p23F;  // from here on floats are whole
      return bits_of(magnitude * kUnitsOfOne + kInteger) - bits_of(kInteger);
    }
    constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << kMantissa;
    return round_off(bits_of(magnitude), 23 - kMantissa) - kRebias;
  }

  /// Of bits without sign that are finite.
  REFIT_HOST_DEVICE static float magnitude(uint32_t bits) {
    if (bits >> kMantissa == 0) return static_cast<float>(bits) * kUnit;
    return float_of((bits << (23 - kMantissa)) + (static_cast<uint32_t>(127 - kBias) << 23));
  }
};
using Fp16Float = SmallFloat<5, 10>;
using E4m3Float = SmallFloat<4, 3>;

REFIT_HOST_DEVICE inline uint32_t encode_bf16(float value) {
  const uint32_t bits = bits_of(value);
  return is_nan(value) ? (bits >> 16) | 0x40U : round_off(bits, 16);
}

REFIT_HOST_DEVICE inline uint32_t encode_fp16(float value) {
  const uint32_t sign = bits_of(value) >> 31 << 15;
  if (is_nan(value)) return sign | 0x7e00U;
  return sign | least_of(Fp16Float::round_magnitude(magnitude_of(value)), 0x7c00U);
}

REFIT_HOST_DEVICE inline uint32_t encode_e4m3(float value) {
  const uint32_t sign = bits_of(value) >> 31 << 7;
  if (is_nan(value)) return sign | 0x7fU;
  float magnitude = magnitude_of(value);
  if (magnitude > kE4m3Largest) magnitude = kE4m3Largest;
  return sign | least_of(E4m3Float::round_magnitude(magnitude), 0x7eU);
}

REFIT_HOST_DEVICE inline uint32_t encode_e2m1(float value) {
  if (is_nan(value)) return 7;
  const float magnitude = magnitude_of(value);
  // Above what lies halfway between neighbours; a tie goes to the even one of them.
  const int code = (magnitude > 0.25F) + (magnitude >= 0.75F) + (magnitude > 1.25F) +
                   (magnitude >= 1.75F) + (magnitude > 2.5F) + (magnitude >= 3.5F) +
                   (magnitude > 5.0F);
  return bits_of(value) >> 31 << 3 | static_cast<uint32_t>(code);
}

REFIT_HOST_DEVICE inline uint32_t encode_e8m0(float value) {
  if (is_nan(value)) return 0xff;
  const uint32_t bits = bits_of(magnitude_of(value));
  const uint32_t exponent = bits >> 23, mantissa = bits & 0x7fffffU;
  // Exponent 0 is 2^-127 here, half of the smallest normal float.
  const bool up = exponent == 0 ? mantissa > 0x400000U : mantissa > 0;
  return least_of(exponent + (up ? 1U : 0U), 0xfeU);
}

REFIT_HOST_DEVICE inline float decode_bf16(uint32_t bits) { return float_of(bits << 16); }

REFIT_HOST_DEVICE inline float decode_fp16(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fffU, sign = (bits & 0x8000U) << 16;
  if (magnitude >= 0x7c00U)
    return float_of(sign | (magnitude == 0x7c00U ? 0x7f800000U : 0x7fc00000U));
  return float_of(sign | bits_of(Fp16Float::magnitude(magnitude)));
}

REFIT_HOST_DEVICE inline float decode_e4m3(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fU, sign = (bits & 0x80U) << 24;
  return float_of(sign |
                  (magnitude == 0x7fU ? 0x7fc00000U : bits_of(E4m3Float::magnitude(magnitude))));
}

REFIT_HOST_DEVICE inline float decode_e8m0(uint32_t bits) {
  if (bits == 0xff) return float_of(0x7fc00000U);
  return float_of(bits == 0 ? 0x400000U : bits << 23);
}

/// The element nearest to a value, in the low bits. Of what casts make: the others give 0.
REFIT_HOST_DEVICE inline uint32_t encode_bits(Dtype dtype, float value) {
  switch (dtype) {
    case Dtype::kFp32:
      return bits_of(value);
    case Dtype::kBf16:
      return encode_bf16(value);
    case Dtype::kFp16:
      return encode_fp16(value);
    case Dtype::kFp8E4m3:
      return encode_e4m3(value);
    case Dtype::kFp4E2m1:
      return encode_e2m1(value);
    case Dtype::kE8m0:
      return encode_e8m0(value);
    case Dtype::kFp64:
    case Dtype::kFp8E5m2:
    case Dtype::kInt64:
    case Dtype::kInt32:
    case Dtype::kInt8:
    case Dtype::kUint8:
      break;
  }
  return 0;
}

/// The greater one of what was found before and a value's magnitude; NaN counts for nothing.
REFIT_HOST_DEVICE inline float larger(float largest, float value) {
  const float magnitude = magnitude_of(value);
  return magnitude > largest ? magnitude : largest;
}

REFIT_HOST_DEVICE inline float or_one(float scale) { return scale > 0 ? scale : 1; }

/// The global scale of a matrix whose largest magnitude this is.
REFIT_HOST_DEVICE inline float global_scale(Format format, float largest) {
  return or_one(format == Format::kNvfp4 ? largest / (kE2m1Largest * kE4m3Largest)
                                         : largest / kE4m3Largest);
}

/// The scale of a block, its value as stored, and what data is divided by.
struct BlockScale {
  float stored = 1, divisor = 1;
};

/// Of a format with scales of blocks.
REFIT_HOST_DEVICE inline BlockScale block_scale(Format format, float largest, float global) {
  if (format == Format::kFp8Block) {
    const float scale = or_one(largest / kE4m3Largest);
    return {scale, scale};
  }
  if (format == Format::kMxfp8) {
    const float scale = decode_e8m0(encode_e8m0(largest / kE4m3Largest));
    return {scale, scale};
  }
  float ideal = 1;
  if (largest > 0) {
    ideal = largest / (kE2m1Largest * global);
    if (ideal < kE4m3Smallest) ideal = kE4m3Smallest;
  }
  const float scale = decode_e4m3(encode_e4m3(ideal));
  return {scale, scale * global};
}

}  // namespace refit
