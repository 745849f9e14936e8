#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"

namespace refit {

/// Element types. The values are stored in plan files: the list only grows at its end.
enum class Dtype : uint8_t {
  kFp64,
  kFp32,
  kBf16,
  kFp16,
  kFp8E4m3,
  kFp8E5m2,
  kFp4E2m1,
  kE8m0,
  kInt64,
  kInt32,
  kInt8,
  kUint8,
};
inline constexpr int kDtypeCount = 12;

/// Bits of one element, by Dtype.
inline constexpr std::array<int8_t, kDtypeCount> kDtypeBits = {64, 32, 16, 16, 8, 8,
                                                               4,  8,  64, 32, 8, 8};

/// Bits of one element: 64 .. 4.
inline int dtype_bits(Dtype dtype) {
  const auto index = static_cast<size_t>(dtype);
  REFIT_CHECK(index < kDtypeBits.size());
  return kDtypeBits[index];
}

/// Bytes of `elements` elements; 4-bit types need an even number.
inline int64_t dtype_bytes(Dtype dtype, int64_t elements) {
  const int bits = dtype_bits(dtype);
  REFIT_CHECK(bits >= 8 || elements % 2 == 0);
  return bits >= 8 ? elements * (bits / 8) : elements / 2;
}

/// "bf16", "fp8_e4m3", ... as in DESIGN.md section 4.
std::string_view dtype_name(Dtype dtype);

/// Reads our names and the usual spellings ("bfloat16", "BF16", "torch.bfloat16", "F8_E4M3",
/// "float8_e4m3fn", ...).
Dtype parse_dtype(std::string_view text, std::string_view place);

}  // namespace refit
