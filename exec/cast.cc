#include "exec/cast.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "exec/cast_math.h"
#include "exec/matrices.h"

namespace refit {

namespace {

float decode_e2m1(uint32_t bits) {
  constexpr float kValues[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  const float magnitude = kValues[bits & 7U];
  return bits & 8U ? -magnitude : magnitude;
}

struct Codec {
  float (*decode)(uint32_t bits);
  uint32_t (*encode)(float value);
};

Codec codec_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp32:
      return {float_of, bits_of};
    case Dtype::kBf16:
      return {decode_bf16, encode_bf16};
    case Dtype::kFp16:
      return {decode_fp16, encode_fp16};
    case Dtype::kFp8E4m3:
      return {decode_e4m3, encode_e4m3};
    case Dtype::kFp4E2m1:
      return {decode_e2m1, encode_e2m1};
    case Dtype::kE8m0:
      return {decode_e8m0, encode_e8m0};
    case Dtype::kFp64:
    case Dtype::kFp8E5m2:
    case Dtype::kInt64:
    case Dtype::kInt32:
    case Dtype::kInt8:
    case Dtype::kUint8:
      break;
  }
  REFIT_CHECK(false);
  return {};
}

template <typename Bits, typename Decode>
void decode_all(const std::byte* from, int64_t count, float* values, Decode decode_one) {
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, from + i * static_cast<int64_t>(sizeof bits), sizeof bits);
    values[i] = decode_one(bits);
  }
}

template <typename Bits, typename Encode>
void encode_all(const float* values, int64_t count, std::byte* to, Encode encode_one) {
  for (int64_t i = 0; i < count; ++i) {
    const Bits bits = static_cast<Bits>(encode_one(values[i]));
    std::memcpy(to + i * static_cast<int64_t>(sizeof bits), &bits, sizeof bits);
  }
}

float largest(const float* values, int64_t count, float start) {
  for (int64_t i = 0; i < count; ++i) start = larger(start, values[i]);
  return start;
}

/// Quantises one matrix of a weight.
class Matrix {
 public:
  /// `at` is the matrix' first element; rows and columns are those of the weight.
  Matrix(Format format, const Dims& shape, const Dims& at, const ReadRow& read, GlobalScales* known)
      : format_(format),
        block_(scale_block(format)),
        rows_(shape[shape.count - 2]),
        columns_(shape[shape.count - 1]),
        at_(at),
        read_(read) {
    if (!has_output(format, Output::kGlobalScale)) return;
    if (known != nullptr && known->contains(at)) {
      global_ = known->at(at);
      return;
    }
    row_.resize(static_cast<size_t>(columns_));
    float most = 0;
    for (int64_t row = 0; row < rows_; ++row) {
      read_row(row, 0, columns_);
      most = largest(row_.data(), columns_, most);
    }
    global_ = global_scale(format, most);
    if (known != nullptr) known->emplace(at, global_);
  }

  float global() const { return global_; }

  /// Scales of blocks [first, last) of a row of blocks, as elements of the scale's dtype, and what
  /// data is divided by.
  void find_scales(int64_t block_row, int64_t first, int64_t last) {
    const auto count = static_cast<size_t>(last - first);
    scales_.assign(count, 0);
    const int64_t left = first * block_.columns, right = std::min(last * block_.columns, columns_);
    const int64_t bottom = std::min((block_row + 1) * block_.rows, rows_);
    for (int64_t row = block_row * block_.rows; row < bottom; ++row) {
      read_row(row, left, right);
      for (size_t b = 0; b < count; ++b) {
        const int64_t begin = static_cast<int64_t>(b) * block_.columns;
        const int64_t end = std::min(begin + block_.columns, right - left);
        scales_[b] = largest(row_.data() + begin, end - begin, scales_[b]);
      }
    }
    divisors_.resize(count);
    for (size_t b = 0; b < count; ++b) {
      const BlockScale scale = block_scale(format_, scales_[b], global_);
      scales_[b] = scale.stored;
      divisors_[b] = scale.divisor;
    }
  }
  const std::vector<float>& scales() const { return scales_; }

  /// Data of a row, columns [first, last); the scales of its blocks, from `first_block` on, are
  /// known.
  const std::vector<float>& scale_row(int64_t row, int64_t first, int64_t last,
                                      int64_t first_block) {
    read_row(row, first, last);
    const bool blocks = has_output(format_, Output::kScale);
    for (int64_t column = first; column < last; ++column) {
      const float divisor =
          blocks ? divisors_[static_cast<size_t>(column / block_.columns - first_block)] : global_;
      row_[static_cast<size_t>(column - first)] /= divisor;
    }
    return row_;
  }

 private:
  void read_row(int64_t row, int64_t first, int64_t last) {
    if (std::ssize(row_) < last - first) row_.resize(static_cast<size_t>(last - first));
    at_[at_.count - 2] = row;
    at_[at_.count - 1] = first;
    read_(at_, last - first, row_.data());
  }

  const Format format_;
  const Block2 block_;
  const int64_t rows_, columns_;
  Dims at_;
  const ReadRow& read_;
  float global_ = 1;
  std::vector<float> row_, scales_, divisors_;
};

}  // namespace

float decode(Dtype dtype, uint32_t bits) { return codec_of(dtype).decode(bits); }
uint32_t encode(Dtype dtype, float value) { return codec_of(dtype).encode(value); }

void decode_row(Dtype dtype, const std::byte* from, int64_t count, float* values) {
  if (dtype == Dtype::kFp32) {
    std::memcpy(values, from, static_cast<size_t>(count) * sizeof(float));
  } else if (dtype == Dtype::kBf16) {
    decode_all<uint16_t>(from, count, values, decode_bf16);
  } else if (dtype == Dtype::kFp16) {
    decode_all<uint16_t>(from, count, values, decode_fp16);
  } else if (dtype == Dtype::kFp4E2m1) {
    for (int64_t i = 0; i < count; ++i) {
      const auto pair = std::to_integer<uint32_t>(from[i / 2]);
      values[i] = decode_e2m1(i % 2 == 0 ? pair & 15U : pair >> 4);
    }
  } else {
    decode_all<uint8_t>(from, count, values, codec_of(dtype).decode);
  }
}

void encode_row(Dtype dtype, const float* values, int64_t count, std::byte* to) {
  if (dtype == Dtype::kFp32) {
    std::memcpy(to, values, static_cast<size_t>(count) * sizeof(float));
  } else if (dtype == Dtype::kBf16) {
    encode_all<uint16_t>(values, count, to, encode_bf16);
  } else if (dtype == Dtype::kFp16) {
    encode_all<uint16_t>(values, count, to, encode_fp16);
  } else if (dtype == Dtype::kFp4E2m1) {
    REFIT_CHECK(count % 2 == 0);
    for (int64_t i = 0; i < count; i += 2) {
      to[i / 2] = static_cast<std::byte>(encode_e2m1(values[i]) | encode_e2m1(values[i + 1]) << 4);
    }
  } else if (dtype == Dtype::kFp8E4m3) {
    encode_all<uint8_t>(values, count, to, encode_e4m3);
  } else {
    encode_all<uint8_t>(values, count, to, codec_of(dtype).encode);
  }
}

void quantise(Format format, Output output, const Dims& shape, const Box& box, const ReadRow& read,
              std::byte* to, GlobalScales* known) {
  const Dtype dtype = output_dtype(format, output);
  const Block2 block = scale_block(format);
  const int outer = shape.count - 2;
  REFIT_CHECK(outer >= 0 && !box.empty());
  const auto write = [&](const float* values, int64_t count) {
    encode_row(dtype, values, count, to);
    to += dtype_bytes(dtype, count);
  };
  visit_points(outer_box(box, outer), [&](Dims at) {
    at.count = shape.count;  // the matrix' first element
    Matrix matrix(format, shape, at, read, known);
    if (output == Output::kGlobalScale) {
      const float global = matrix.global();
      return write(&global, 1);
    }
    const bool data = output == Output::kData;
    const int64_t top = box.lo[outer], bottom = box.hi[outer];
    const int64_t left = box.lo[outer + 1], right = box.hi[outer + 1];
    const bool blocks = has_output(format, Output::kScale);
    const int64_t height = data && blocks ? block.rows : 1, width = data ? block.columns : 1;
    const int64_t first = left / width, last = (right + width - 1) / width;  // blocks
    for (int64_t band = top / height; band * height < bottom; ++band) {
      if (blocks) matrix.find_scales(band, first, last);
      if (!data) write(matrix.scales().data(), last - first);
      const int64_t end = std::min((band + 1) * height, bottom);
      for (int64_t row = std::max(band * height, top); data && row < end; ++row) {
        write(matrix.scale_row(row, left, right, first).data(), right - left);
      }
    }
  });
}

}  // namespace refit
