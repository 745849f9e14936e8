#include "exec/verify_cast.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <string>
#include <vector>

#include "base/error.h"
#include "exec/cast.h"
#include "exec/matrices.h"
#include "exec/mix.h"
#include "exec/strided.h"

namespace refit {

namespace {

/// The values of one weight in one round.
class Origin {
 public:
  Origin(const PlanTensor& tensor, int64_t round)
      : seed_(seed_of(tensor.name, round)),
        dtype_(tensor.train_dtype),
        stride_(dense_strides(tensor.shape)) {}

  /// Any sign and mantissa; a magnitude of 2^k or more is half as likely as 2^(k - 1). At most
  /// 2^12, fp16's largest is 2^16.
  void read(const Dims& at, int64_t count, float* values) const {
    int64_t index = 0;
    for (int dim = 0; dim < at.count; ++dim) index += at[dim] * stride_[dim];
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t hash = mix(seed_ + static_cast<uint64_t>(index + i));
      const uint32_t exponent = 115 + std::min(static_cast<uint32_t>(std::countl_zero(hash)), 24U);
      const uint32_t bits = static_cast<uint32_t>(hash & 0x807fffffU) | exponent << 23;
      values[i] = decode(dtype_, encode(dtype_, std::bit_cast<float>(bits)));
    }
  }

 private:
  uint64_t seed_;
  Dtype dtype_;
  Dims stride_;
};

void encode_weights(const Origin& weights, const Box& box, Dtype dtype, std::byte* to) {
  std::vector<float> values;
  visit_rows(box, [&](const Dims& at, int64_t count) {
    values.resize(static_cast<size_t>(count));
    weights.read(at, count, values.data());
    encode_row(dtype, values.data(), count, to);
    to += dtype_bytes(dtype, count);
  });
}

const PlanTensor& weight_of(const Plan& plan, const PlanTensor& tensor) {
  return tensor.source < 0 ? tensor : plan.tensors[static_cast<size_t>(tensor.source)];
}

/// What the gen side has in a box, dense.
std::vector<std::byte> expected(const Plan& plan, const PlanTensor& tensor, const Box& box,
                                int64_t round, RoundScales& known) {
  std::vector<std::byte> bytes(static_cast<size_t>(dtype_bytes(tensor.gen_dtype, box.volume())));
  const PlanTensor& weight = weight_of(plan, tensor);
  const Origin weights(weight, round);
  if (tensor.format != Format::kNone) {
    quantise(
        tensor.format, tensor.output, weight.shape, box,
        [&](const Dims& at, int64_t count, float* to) { weights.read(at, count, to); },
        bytes.data(), &known[weight.name]);
    return bytes;
  }
  encode_weights(weights, box, tensor.gen_dtype, bytes.data());
  return bytes;
}

Strided dense(std::vector<std::byte>& bytes) {
  return {.base = bytes.data(), .run = std::ssize(bytes)};
}

[[noreturn]] void report(int32_t rank, const PlanTensor& tensor, const Box& box, int64_t round,
                         const std::vector<std::byte>& found,
                         const std::vector<std::byte>& wanted) {
  const int64_t bits = dtype_bits(tensor.gen_dtype);
  const auto element_of = [&](const std::vector<std::byte>& bytes, int64_t element) {
    uint32_t value = 0;
    for (int64_t bit = bits - 8; bits >= 8 && bit >= 0; bit -= 8) {
      value = value << 8 |
              std::to_integer<uint32_t>(bytes[static_cast<size_t>((element * bits + bit) / 8)]);
    }
    if (bits >= 8) return value;
    const auto pair = std::to_integer<uint32_t>(bytes[static_cast<size_t>(element / 2)]);
    return element % 2 == 0 ? pair & 15U : pair >> 4;
  };
  int64_t element = 0;
  while (element_of(found, element) == element_of(wanted, element)) ++element;
  const uint32_t got = element_of(found, element), want = element_of(wanted, element);
  const Dims stride = dense_strides(box.extents());
  std::vector<int64_t> index;
  for (int dim = 0; dim < box.dims(); ++dim) {
    index.push_back(box.lo[dim] + element / stride[dim]);
    element %= stride[dim];
  }
  throw Error(
      fmt::format("rank {}, tensor {}, element [{}], iteration {}: found 0x{:0{}x}, "
                  "expected 0x{:0{}x}, the cast of its weights",
                  rank, tensor.name, fmt::join(index, ", "), round, got, bits / 4, want, bits / 4),
      ErrorKind::kWork);
}

}  // namespace

bool is_cast_tensor(const PlanTensor& tensor) {
  if (tensor.format != Format::kNone) return true;
  if (tensor.train_dtype == tensor.gen_dtype) return false;
  if (is_convertible(tensor.train_dtype, tensor.gen_dtype)) return true;
  fail("tensor " + tensor.name,
       fmt::format("{} to {}", dtype_name(tensor.train_dtype), dtype_name(tensor.gen_dtype)),
       "a cast between fp32, bf16 and fp16, or a format");
}

void fill_cast(const PlanTensor& tensor, const Shard& shard, std::byte* memory, int64_t round) {
  const Origin weights(tensor, round);
  std::vector<std::byte> bytes;
  visit_matrices(shard.box, [&](const Box& box) {
    bytes.resize(static_cast<size_t>(dtype_bytes(tensor.train_dtype, box.volume())));
    encode_weights(weights, box, tensor.train_dtype, bytes.data());
    const Strided from = dense(bytes), to = resolve(shard, box, tensor.train_dtype, memory);
    copy_strided({&to, 1}, {&from, 1});
  });
}

void poison_cast(const Plan& plan, const PlanTensor& tensor, const Shard& shard, std::byte* memory,
                 int64_t round, RoundScales& known) {
  const bool has_nan = tensor.gen_dtype != Dtype::kFp4E2m1;
  std::vector<std::byte> bytes;
  visit_matrices(shard.box, [&](const Box& box) {
    if (has_nan) {
      bytes.assign(static_cast<size_t>(dtype_bytes(tensor.gen_dtype, box.volume())),
                   std::byte{0xff});
    } else {
      bytes = expected(plan, tensor, box, round, known);
      for (std::byte& byte : bytes) byte = ~byte;
    }
    const Strided from = dense(bytes), to = resolve(shard, box, tensor.gen_dtype, memory);
    copy_strided({&to, 1}, {&from, 1});
  });
}

int64_t verify_cast(const Plan& plan, int32_t rank, const PlanTensor& tensor, const Shard& shard,
                    std::byte* memory, int64_t round, RoundScales& known) {
  int64_t total = 0;
  visit_matrices(shard.box, [&](const Box& box) {
    const std::vector<std::byte> wanted = expected(plan, tensor, box, round, known);
    std::vector<std::byte> found(wanted.size());
    const Strided to = dense(found), from = resolve(shard, box, tensor.gen_dtype, memory);
    copy_strided({&to, 1}, {&from, 1});
    if (found != wanted) report(rank, tensor, box, round, found, wanted);
    total += std::ssize(found);
  });
  return total;
}

}  // namespace refit
