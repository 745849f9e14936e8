#pragma once

#include <cstdint>
#include <string_view>

#include "plans/box.h"
#include "plans/dtype.h"

namespace refit {

// Quantised weights: formats, their companions (scales), and which source elements each value is
// made of. The last two dimensions of a weight are a matrix, those before count matrices (experts).
// How values are computed says exec/cast.h.
//
//   format      data              scale, one for            global scale, one for
//   fp8_block   fp8_e4m3 [R, C]   128 x 128: fp32           -
//   mxfp8       fp8_e4m3 [R, C]   1 x 32: e8m0              -
//   fp8         fp8_e4m3 [R, C]   -                         a matrix: fp32
//   nvfp4       fp4_e2m1 [R, C]   1 x 16: fp8_e4m3          a matrix: fp32
//
// Blocks are counted from element 0 of the tensor; those of fp8_block may be short at its ends.

/// Stored in plan files: the list only grows at its end.
enum class Format : uint8_t { kNone, kFp8Block, kMxfp8, kFp8, kNvfp4 };
inline constexpr int kFormatCount = 5;

/// What of a quantised weight a tensor is. Stored in plan files.
enum class Output : uint8_t { kData, kScale, kGlobalScale };
inline constexpr int kOutputCount = 3;

/// "fp8_block", ...; kNone is "none".
std::string_view format_name(Format format);
std::string_view output_name(Output output);

/// Reads a format's name. Formats of other families (gptq, awq, bitsandbytes, ...) are refused by
/// name.
Format parse_format(std::string_view text, std::string_view place);

/// Does the format have this output? (kData: always.)
bool has_output(Format format, Output output);

/// Element type of an output; may a tensor of this dtype be quantised (fp32, bf16, fp16)?
Dtype output_dtype(Format format, Output output);
bool is_quantisable(Dtype dtype);

/// May the one be converted to the other, element by element? Between different ones of fp32, bf16,
/// fp16.
bool is_convertible(Dtype from, Dtype to);

/// Does every value of the one have its equal in the other (bf16 or fp16 to fp32)?
bool is_widening(Dtype from, Dtype to);

/// What a weight's name gets appended: "", "_scale_inv", "_scale", "_scale_2".
std::string_view companion_suffix(Format format, Output output);

/// Rows and columns of a block.
struct Block2 {
  int64_t rows = 1, columns = 1;
};
Block2 scale_block(Format format);

/// Shape of an output of a weight of this shape (two dimensions or more).
Dims output_shape(Format format, Output output, const Dims& source);

/// The part of an output that belongs to a part of the weight: every scale of a block that the box
/// touches.
Box output_box(Format format, Output output, const Box& source);

/// The elements of the weight from which the box of an output is made: whole blocks, and whole
/// matrices where there is a global scale.
Box source_box(Format format, Output output, const Dims& source, const Box& box);

/// The same in whole blocks only, without regard to global scales.
Box whole_blocks(Format format, const Dims& source, const Box& box);

}  // namespace refit
