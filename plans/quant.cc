#include "plans/quant.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/error.h"

namespace refit {
namespace {

struct FormatInfo {
  std::string_view name;
  Block2 block;
  Dtype data = Dtype::kFp8E4m3;
  Dtype scale = Dtype::kFp32;    // of a block
  std::string_view suffix = "";  // of the scale of a block; none: no such scale
  std::string_view global = "";  // of the scale of a matrix, fp32; none: no such scale
};

// Indexed by Format. Names and layouts of companions: DeepSeek-V3's checkpoint (weight_scale_inv),
// ModelOpt's exports and vLLM's loaders for them (weight_scale, weight_scale_2).
constexpr std::array<FormatInfo, kFormatCount> kFormats = {{
    {"none", {1, 1}},
    {"fp8_block", {128, 128}, Dtype::kFp8E4m3, Dtype::kFp32, "_scale_inv", ""},
    {"mxfp8", {1, 32}, Dtype::kFp8E4m3, Dtype::kE8m0, "_scale", ""},
    {"fp8", {1, 1}, Dtype::kFp8E4m3, Dtype::kFp32, "", "_scale"},
    {"nvfp4", {1, 16}, Dtype::kFp4E2m1, Dtype::kFp8E4m3, "_scale", "_scale_2"},
}};

// Quantised formats that inference engines know and that cannot be made of weights alone, or that
// Refit does not make.
constexpr std::array<std::string_view, 15> kForeign = {
    "gptq", "gptq_marlin", "awq",   "awq_marlin", "bitsandbytes",
    "gguf", "hqq",         "aqlm",  "quip",       "exl2",
    "eetq", "torchao",     "mxfp4", "fbgemm_fp8", "compressed-tensors"};

const FormatInfo& info(Format format) {
  const auto index = static_cast<size_t>(format);
  REFIT_CHECK(index < kFormats.size());
  return kFormats[index];
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Extents of a block along a dimension of the weight.
int64_t block_extent(const FormatInfo& format, int dim, int dims) {
  if (dim == dims - 1) return format.block.columns;
  return dim == dims - 2 ? format.block.rows : 1;
}

}  // namespace

std::string_view format_name(Format format) { return info(format).name; }

std::string_view output_name(Output output) {
  switch (output) {
    case Output::kData:
      return "data";
    case Output::kScale:
      return "scale";
    case Output::kGlobalScale:
      return "global_scale";
  }
  return "";
}

Format parse_format(std::string_view text, std::string_view place) {
  for (size_t index = 1; index < kFormats.size(); ++index) {
    if (text == kFormats[index].name) return static_cast<Format>(index);
  }
  const bool foreign = std::find(kForeign.begin(), kForeign.end(), text) != kForeign.end();
  fail(place, fmt::format("{}quantisation '{}'", foreign ? "unsupported " : "", text),
       "one of fp8_block, mxfp8, fp8, nvfp4");
}

bool has_output(Format format, Output output) {
  if (output == Output::kScale) return !info(format).suffix.empty();
  return output == Output::kData || !info(format).global.empty();
}

Dtype output_dtype(Format format, Output output) {
  if (output == Output::kData) return info(format).data;
  return output == Output::kScale ? info(format).scale : Dtype::kFp32;
}

bool is_quantisable(Dtype dtype) {
  return dtype == Dtype::kFp32 || dtype == Dtype::kBf16 || dtype == Dtype::kFp16;
}

bool is_convertible(Dtype from, Dtype to) {
  return from != to && is_quantisable(from) && is_quantisable(to);
}

bool is_widening(Dtype from, Dtype to) { return is_convertible(from, to) && to == Dtype::kFp32; }

std::string_view companion_suffix(Format format, Output output) {
  if (output == Output::kData) return "";
  return output == Output::kScale ? info(format).suffix : info(format).global;
}

Block2 scale_block(Format format) { return info(format).block; }

Dims output_shape(Format format, Output output, const Dims& source) {
  return output_box(format, output, whole(source)).hi;
}

Box output_box(Format format, Output output, const Box& source) {
  REFIT_CHECK(source.dims() >= 2);
  Box box = source;
  switch (output) {
    case Output::kData:
      break;
    case Output::kScale:
      for (int dim = 0; dim < box.dims(); ++dim) {
        const int64_t extent = block_extent(info(format), dim, box.dims());
        box.lo[dim] /= extent;
        box.hi[dim] = ceil_div(box.hi[dim], extent);
      }
      break;
    case Output::kGlobalScale:
      for (int dim = box.dims() - 2; dim < source.dims(); ++dim) box.lo[dim] = box.hi[dim] = 0;
      box.lo.count = box.hi.count = source.dims() - 2;
      break;
  }
  return box;
}

Box whole_blocks(Format format, const Dims& source, const Box& box) {
  Box grown = box;
  for (int dim = 0; dim < box.dims(); ++dim) {
    const int64_t extent = block_extent(info(format), dim, box.dims());
    grown.lo[dim] = box.lo[dim] / extent * extent;
    grown.hi[dim] = std::min(ceil_div(box.hi[dim], extent) * extent, source[dim]);
  }
  return grown;
}

Box source_box(Format format, Output output, const Dims& source, const Box& box) {
  Box from;
  from.lo.count = from.hi.count = source.count;
  for (int dim = 0; dim < source.count; ++dim) {
    if (dim >= source.count - 2 && !info(format).global.empty()) {
      from.lo[dim] = 0;
      from.hi[dim] = source[dim];
      continue;
    }
    const int64_t extent =
        output == Output::kData ? 1 : block_extent(info(format), dim, source.count);
    from.lo[dim] = box.lo[dim] * extent;
    from.hi[dim] = std::min(box.hi[dim] * extent, source[dim]);
  }
  return whole_blocks(format, source, from);
}

}  // namespace refit
