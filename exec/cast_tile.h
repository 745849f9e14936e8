#pragma once

#include "exec/cast_math.h"
#include "exec/cast_table.h"

// What a thread does in a tile of casts. The same source for the kernel and for its reference on
// the host.

namespace refit {

REFIT_HOST_DEVICE inline bool is_aligned(const std::byte* at, uint32_t bytes) {
  return (reinterpret_cast<uintptr_t>(at) & (bytes - 1)) == 0;
}

/// An element at any address, in the low bits.
template <uint32_t kBytes>
REFIT_HOST_DEVICE inline uint32_t load_bits(const std::byte* at) {
  uint32_t bits = 0;
  if (is_aligned(at, kBytes)) {
    memcpy(&bits, __builtin_assume_aligned(at, kBytes), kBytes);
  } else {
    for (uint32_t byte = 0; byte < kBytes; ++byte) {
      bits |= static_cast<uint32_t>(at[byte]) << (8 * byte);
    }
  }
  return bits;
}

template <uint32_t kBytes>
REFIT_HOST_DEVICE inline void store_bits(std::byte* at, uint32_t bits) {
  if (is_aligned(at, kBytes)) {
    memcpy(__builtin_assume_aligned(at, kBytes), &bits, kBytes);
  } else {
    for (uint32_t byte = 0; byte < kBytes; ++byte) {
      at[byte] = static_cast<std::byte>(bits >> (8 * byte));
    }
  }
}

/// Elements of kBytes bytes as they are in memory, `stride` elements apart.
template <uint32_t kBytes>
REFIT_HOST_DEVICE inline void load_columns(const std::byte* at, int64_t stride, int32_t count,
                                           uint32_t (&bits)[kCastColumns]) {
  constexpr int32_t kWords = kCastColumns * static_cast<int32_t>(kBytes) / 4;
  if (stride == 1 && count == kCastColumns && is_aligned(at, 16)) {
    uint32_t words[kWords];
    REFIT_UNROLL
    for (int32_t word = 0; word < kWords; word += 4) {
      memcpy(words + word, __builtin_assume_aligned(at + 4 * word, 16), 16);
    }
    REFIT_UNROLL
    for (int32_t i = 0; i < kCastColumns; ++i) {
      bits[i] = kBytes == 4 ? words[i] : words[i / 2] >> (i % 2 * 16) & 0xffffU;
    }
    return;
  }
  REFIT_UNROLL
  for (int32_t i = 0; i < kCastColumns; ++i) {
    bits[i] = i < count ? load_bits<kBytes>(at + i * stride * kBytes) : 0;
  }
}

/// Up to kCastColumns weights of a row, 0 behind its end.
REFIT_HOST_DEVICE inline void read_columns(const CastSource& source, int64_t row, int64_t column,
                                           float (&values)[kCastColumns]) {
  const int64_t rest = source.columns - column;
  const auto count = static_cast<int32_t>(rest < kCastColumns ? rest : kCastColumns);
  const bool wide = source.dtype == Dtype::kFp32;
  const std::byte* at =
      source.from + (row * source.row_stride + column * source.column_stride) * (wide ? 4 : 2);
  uint32_t bits[kCastColumns];
  if (wide) {
    load_columns<4>(at, source.column_stride, count, bits);
  } else {
    load_columns<2>(at, source.column_stride, count, bits);
  }
  REFIT_UNROLL
  for (int32_t i = 0; i < kCastColumns; ++i) {
    values[i] = wide                           ? float_of(bits[i])
                : source.dtype == Dtype::kBf16 ? decode_bf16(bits[i])
                                               : decode_fp16(bits[i]);
  }
}

REFIT_HOST_DEVICE inline float largest_of(const float (&values)[kCastColumns], float largest) {
  REFIT_UNROLL
  for (int32_t i = 0; i < kCastColumns; ++i) largest = larger(largest, values[i]);
  return largest;
}

/// Elements [first, last) of kCastColumns; `at` is where element 0 has its place.
template <uint32_t kBits>
REFIT_HOST_DEVICE inline void store_columns(std::byte* at, int64_t stride, int32_t first,
                                            int32_t last, const uint32_t (&bits)[kCastColumns]) {
  if (stride == 1 && first == 0 && last == kCastColumns && is_aligned(at, 4)) {
    constexpr int32_t kOfWord = 32 / static_cast<int32_t>(kBits);
    constexpr int32_t kWords = kCastColumns / kOfWord;
    uint32_t words[kWords] = {};
    REFIT_UNROLL
    for (int32_t i = 0; i < kCastColumns; ++i) {
      words[i / kOfWord] |= bits[i] << (i % kOfWord * static_cast<int32_t>(kBits));
    }
    constexpr uint32_t kBlock = kWords % 4 == 0 ? 16 : 8;
    if (is_aligned(at, kBlock)) {
      REFIT_UNROLL
      for (int32_t word = 0; word < kWords; word += static_cast<int32_t>(kBlock / 4)) {
        memcpy(__builtin_assume_aligned(at + 4 * word, kBlock), words + word, kBlock);
      }
    } else {
      REFIT_UNROLL
      for (int32_t word = 0; word < kWords; ++word) store_bits<4>(at + 4 * word, words[word]);
    }
    return;
  }
  if constexpr (kBits == 4) {  // rows of 4-bit elements are dense, their extents even
    REFIT_UNROLL
    for (int32_t i = 0; i < kCastColumns; i += 2) {
      if (i >= first && i < last) {
        at[i / 2] = static_cast<std::byte>(bits[i] | bits[i + 1] << 4);
      }
    }
  } else {
    REFIT_UNROLL
    for (int32_t i = 0; i < kCastColumns; ++i) {
      if (i >= first && i < last) store_bits<kBits / 8>(at + i * stride * (kBits / 8), bits[i]);
    }
  }
}

/// Address of a value of the box.
REFIT_HOST_DEVICE inline std::byte* value_at(const CastBox& box, int64_t row, int64_t column,
                                             int32_t bits) {
  return box.to + (row * box.row_stride + column * box.column_stride) * bits / 8;
}

/// Writes those of a source row's kCastColumns values that the box has. kNone does not divide.
REFIT_HOST_DEVICE inline void write_columns(const CastBox& box, int64_t row, int64_t column,
                                            const float (&values)[kCastColumns], float divisor) {
  const int64_t before = box.left - column, behind = box.left + box.width - column;
  const auto first = static_cast<int32_t>(before > 0 ? before : 0);
  const auto last = static_cast<int32_t>(behind < kCastColumns ? behind : kCastColumns);
  uint32_t bits[kCastColumns];
  REFIT_UNROLL
  for (int32_t i = 0; i < kCastColumns; ++i) {
    bits[i] = encode_bits(box.dtype, box.format == Format::kNone ? values[i] : values[i] / divisor);
  }
  const auto place = [&](int32_t width) {
    return value_at(box, row - box.top, column - box.left, width);
  };
  switch (box.dtype) {
    case Dtype::kFp32:
      return store_columns<32>(place(32), box.column_stride, first, last, bits);
    case Dtype::kBf16:
    case Dtype::kFp16:
      return store_columns<16>(place(16), box.column_stride, first, last, bits);
    case Dtype::kFp8E4m3:
      return store_columns<8>(place(8), box.column_stride, first, last, bits);
    case Dtype::kFp4E2m1:
      return store_columns<4>(place(4), box.column_stride, first, last, bits);
    case Dtype::kFp64:
    case Dtype::kFp8E5m2:
    case Dtype::kE8m0:
    case Dtype::kInt64:
    case Dtype::kInt32:
    case Dtype::kInt8:
    case Dtype::kUint8:
      return;  // no data that casts make
  }
}

REFIT_HOST_DEVICE inline void write_scale(const CastBox& box, int64_t row, int64_t column,
                                          float scale) {
  const uint32_t bits = encode_bits(box.dtype, scale);
  if (box.dtype == Dtype::kFp32) {
    store_bits<4>(value_at(box, row, column, 32), bits);
  } else {
    store_bits<1>(value_at(box, row, column, 8), bits);
  }
}

/// Where the thread's piece of a block of several rows lies, or false behind the source's end.
struct BlockPiece {
  int64_t row = 0, column = 0;
};
REFIT_HOST_DEVICE inline bool find_piece(const CastBox& box, int32_t block, int32_t piece,
                                         BlockPiece* at) {
  const int32_t of_row = box.unit_columns / kCastColumns;
  const int32_t block_row = block / box.units_of_row;
  at->row = static_cast<int64_t>(block_row) * box.unit_columns + piece / of_row;  // as many rows
  at->column = static_cast<int64_t>(block - block_row * box.units_of_row) * box.unit_columns +
               piece % of_row * kCastColumns;
  return at->row < box.source.rows && at->column < box.source.columns;
}

/// Is a tile of the box one block of several rows?
REFIT_HOST_DEVICE inline bool is_block_tile(const CastBox& box) {
  return box.format == Format::kFp8Block;
}

/// The thread's part of the largest magnitude of a tile that is a block.
REFIT_HOST_DEVICE inline float block_largest(const CastBox& box, int32_t tile, int32_t thread) {
  float largest = 0, values[kCastColumns];
  const int32_t pieces = box.unit_columns * box.unit_columns / kCastColumns;
  for (int32_t piece = thread; piece < pieces; piece += kTileThreads) {
    BlockPiece at;
    if (!find_piece(box, tile - box.first_tile, piece, &at)) continue;
    read_columns(box.source, at.row, at.column, values);
    largest = largest_of(values, largest);
  }
  return largest;
}

/// The thread's part of such a tile, once its largest magnitude is known.
REFIT_HOST_DEVICE inline void cast_block(const CastBox& box, int32_t tile, int32_t thread,
                                         float largest) {
  const int32_t block = tile - box.first_tile;
  const BlockScale scale = block_scale(box.format, largest, 1);
  if (box.output != Output::kData) {
    if (thread == 0) {
      write_scale(box, block / box.units_of_row, block % box.units_of_row, scale.stored);
    }
    return;
  }
  float values[kCastColumns];
  const int32_t pieces = box.unit_columns * box.unit_columns / kCastColumns;
  for (int32_t piece = thread; piece < pieces; piece += kTileThreads) {
    BlockPiece at;
    if (!find_piece(box, block, piece, &at)) continue;
    if (at.row < box.top || at.row >= box.top + box.height) continue;
    read_columns(box.source, at.row, at.column, values);
    write_columns(box, at.row, at.column, values, scale.divisor);
  }
}

/// One unit: columns of a row, or the scale of a block that is one row. `global`: the scale of the
/// matrix, where it has one.
REFIT_HOST_DEVICE inline void cast_unit(const CastBox& box, int32_t unit, float global) {
  if (box.output == Output::kGlobalScale) return write_scale(box, 0, 0, global);
  const int32_t row_of_box = unit / box.units_of_row;
  const int64_t row = box.top + row_of_box;
  const int32_t unit_of_row = unit - row_of_box * box.units_of_row;
  const bool scales = box.output == Output::kScale;
  const int64_t first = scales ? box.left : box.left / box.unit_columns;
  const int64_t left = (first + unit_of_row) * box.unit_columns;
  const int64_t rest = box.source.columns - left;
  const auto columns = static_cast<int32_t>(rest < box.unit_columns ? rest : box.unit_columns);
  float values[kCastColumns], divisor = global;
  if (box.format == Format::kMxfp8 || box.format == Format::kNvfp4) {
    float largest = 0;
    for (int32_t column = 0; column < columns; column += kCastColumns) {
      read_columns(box.source, row, left + column, values);
      largest = largest_of(values, largest);
    }
    const BlockScale scale = block_scale(box.format, largest, global);
    if (scales) return write_scale(box, row_of_box, unit_of_row, scale.stored);
    divisor = scale.divisor;
  }
  for (int32_t column = 0; column < columns; column += kCastColumns) {
    read_columns(box.source, row, left + column, values);
    write_columns(box, row, left + column, values, divisor);
  }
}

/// The thread's units of a tile that is no block.
REFIT_HOST_DEVICE inline void cast_units(const CastBox& box, int32_t tile, int32_t thread,
                                         float global) {
  const int32_t first = (tile - box.first_tile) * kTileThreads * kCastsPerThread + thread;
  for (int32_t i = 0; i < kCastsPerThread; ++i) {
    const int32_t unit = first + i * kTileThreads;
    if (unit < box.units) cast_unit(box, unit, global);
  }
}

/// The thread's part of the largest magnitude of a tile of a matrix.
REFIT_HOST_DEVICE inline float matrix_largest(const CastMaximum& maximum, int32_t tile,
                                              int32_t thread) {
  const int32_t first = (tile - maximum.first_tile) * kTileThreads * kMaximaPerThread + thread;
  float largest = 0, values[kCastColumns];
  for (int32_t i = 0; i < kMaximaPerThread; ++i) {
    const int32_t piece = first + i * kTileThreads;
    if (piece >= maximum.pieces) break;
    const int32_t row = piece / maximum.pieces_of_row;
    read_columns(maximum.source, row,
                 static_cast<int64_t>(piece - row * maximum.pieces_of_row) * kCastColumns, values);
    largest = largest_of(values, largest);
  }
  return largest;
}

}  // namespace refit
