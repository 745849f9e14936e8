#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>

#include "plans/box.h"
#include "plans/dtype.h"
#include "plans/quant.h"

namespace refit {

// What casts compute, here and on devices (exec/cast_table.h). All arithmetic is IEEE single
// precision, every rounding is to nearest, ties to even, unless said otherwise; so the result is a
// function of the weights alone, on every machine.
//
// Between fp32, bf16 and fp16: what is too large becomes infinite, NaN stays NaN (quiet).
// To fp8_e4m3 (OCP 8-bit Floating Point Specification 1.0, "E4M3": no infinity, largest 448): what is
// larger saturates at 448, as all quantisers want it (torch clamps first; cvt.rn.satfinite). NaN
// stays NaN.
// To fp4_e2m1 (OCP Microscaling Formats 1.0: 0 0.5 1 1.5 2 3 4 6 and their negatives): saturates at
// 6; NaN becomes 6, as cvt.rn.satfinite.e2m1x2 (PTX ISA). Two to a byte, the even element in the low
// half.
// To e8m0 (OCP Microscaling Formats 1.0): the least power of two that is no less, so that nothing
// saturates that it scales; 2^-127 at least and 2^127 at most. This is what cvt.rp.ue8m0x2 and
// Transformer Engine do, where the OCP text rounds down.
//
// Quantised weights, with `largest` the largest absolute value of a block, or of a matrix:
//
//   fp8_block   scale = largest / 448, data = x / scale. DeepSeek-V3, inference/kernel.py; the
//               companion is called weight_scale_inv because it undoes the scaling: x ~ data * scale
//   mxfp8       scale = e8m0(largest / 448), data = x / scale. OCP Microscaling Formats 1.0, NVIDIA
//               Transformer Engine
//   fp8         the same as fp8_block for a whole matrix. NVIDIA ModelOpt
//   nvfp4       global = largest / (6 * 448), scale = e4m3(largest / (6 * global)),
//               data = x / (scale * global). NVIDIA ModelOpt, NVFP4QTensor
//
// Where all of a block is 0 its scale is 1 (mxfp8: 2^-127); so is the global scale of a matrix of
// zeros. An nvfp4 scale is 2^-9 at least, the smallest that e4m3 has, so that nothing is divided by
// 0. NaN counts for nothing in `largest`.

/// Value of an element, and the element nearest to a value, in the low bits. Any of fp32, bf16, fp16,
/// fp8_e4m3, fp4_e2m1, e8m0.
float decode(Dtype dtype, uint32_t bits);
uint32_t encode(Dtype dtype, float value);

/// `count` elements, densely one after the other; an even number of 4-bit ones.
void decode_row(Dtype dtype, const std::byte* from, int64_t count, float* values);
void encode_row(Dtype dtype, const float* values, int64_t count, std::byte* to);

/// Reads `count` elements of a weight along its last dimension, from the element at `at` on.
using ReadRow = std::function<void(const Dims& at, int64_t count, float* values)>;

/// Global scales of the matrices of one weight, by their first element: what several boxes of it
/// share.
using GlobalScales = std::map<Dims, float>;

/// Computes a box of an output of a weight of this shape, dense and row-major. Reads elements of
/// source_box only. With `known`, global scales are looked up there and added.
void quantise(Format format, Output output, const Dims& shape, const Box& box, const ReadRow& read,
              std::byte* to, GlobalScales* known = nullptr);

}  // namespace refit
