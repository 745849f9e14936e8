#include "plans/dtype.h"

#include <fmt/core.h>

#include <array>
#include <string>

#include "base/error.h"

namespace refit {
namespace {

struct DtypeInfo {
  std::string_view name;
  // Other spellings in lower case, without "torch.": torch's, safetensors' and NumPy's.
  std::array<std::string_view, 5> aliases;
};

// Indexed by Dtype.
constexpr std::array<DtypeInfo, kDtypeCount> kDtypes = {{
    {"fp64", {"float64", "f64", "double"}},
    {"fp32", {"float32", "f32", "float"}},
    {"bf16", {"bfloat16"}},
    {"fp16", {"float16", "f16", "half"}},
    {"fp8_e4m3", {"f8_e4m3", "float8_e4m3fn", "fp8", "e4m3", "float8_e4m3"}},
    {"fp8_e5m2", {"f8_e5m2", "float8_e5m2", "e5m2"}},
    {"fp4_e2m1", {"f4", "float4_e2m1fn_x2", "fp4", "e2m1", "nvfp4"}},
    {"e8m0", {"f8_e8m0", "float8_e8m0fnu", "ue8m0", "fp8_e8m0"}},
    {"int64", {"i64", "long"}},
    {"int32", {"i32", "int"}},
    {"int8", {"i8"}},
    {"uint8", {"u8", "byte"}},
}};

const DtypeInfo& info(Dtype dtype) {
  const auto index = static_cast<size_t>(dtype);
  REFIT_CHECK(index < kDtypes.size());
  return kDtypes[index];
}

}  // namespace

std::string_view dtype_name(Dtype dtype) { return info(dtype).name; }

Dtype parse_dtype(std::string_view text, std::string_view place) {
  std::string lower;
  for (const char c : text) lower += (c >= 'A' && c <= 'Z') ? static_cast<char>(c - 'A' + 'a') : c;
  if (lower.starts_with("torch.")) lower.erase(0, 6);
  for (size_t index = 0; index < kDtypes.size(); ++index) {
    if (lower == kDtypes[index].name) return static_cast<Dtype>(index);
    for (const std::string_view alias : kDtypes[index].aliases) {
      if (!alias.empty() && lower == alias) return static_cast<Dtype>(index);
    }
  }
  std::string names;
  for (const DtypeInfo& dtype : kDtypes) {
    if (!names.empty()) names += ", ";
    names += dtype.name;
  }
  fail(place, fmt::format("dtype '{}'", text), "one of " + names);
}

}  // namespace refit
