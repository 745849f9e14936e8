#include "exec/verify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "exec/mix.h"
#include "exec/verify_cast.h"

namespace refit {

namespace {

constexpr int64_t kWord = 8;

/// The bytes of one tensor in one round.
class Pattern {
 public:
  Pattern(std::string_view tensor, int64_t round, bool complement)
      : seed_(seed_of(tensor, round)), flip_(complement ? ~uint64_t{0} : 0) {}

  uint64_t word(int64_t index) const { return mix(seed_ + static_cast<uint64_t>(index)) ^ flip_; }
  std::byte byte(int64_t index) const {
    return std::byte(word(index / kWord) >> (8 * (index % kWord)));
  }

  /// Writes bytes [first, first + bytes) of the tensor.
  void write(std::byte* at, int64_t first, int64_t bytes) const {
    int64_t i = 0;
    for (; i < bytes && (first + i) % kWord != 0; ++i) at[i] = byte(first + i);
    for (int64_t index = (first + i) / kWord; i + kWord <= bytes; i += kWord, ++index) {
      const uint64_t value = word(index);
      std::memcpy(at + i, &value, kWord);
    }
    for (; i < bytes; ++i) at[i] = byte(first + i);
  }

  /// Position of the first of `bytes` bytes that is not the tensor's, or -1.
  int64_t mismatch(const std::byte* at, int64_t first, int64_t bytes) const {
    int64_t i = 0;
    for (; i < bytes && (first + i) % kWord != 0; ++i) {
      if (at[i] != byte(first + i)) return i;
    }
    for (int64_t index = (first + i) / kWord; i + kWord <= bytes; i += kWord, ++index) {
      uint64_t value = 0;
      std::memcpy(&value, at + i, kWord);
      if (value != word(index)) break;  // the loop below finds the byte
    }
    for (; i < bytes; ++i) {
      if (at[i] != byte(first + i)) return i;
    }
    return -1;
  }

 private:
  uint64_t seed_;
  uint64_t flip_;
};

/// Calls visit(bytes in the buffer, first byte in the row-major tensor, bytes) for every run of a
/// shard that is dense in both.
template <typename Visit>
void for_each_run(const Dims& shape, const Shard& shard, Dtype dtype, std::byte* buffer,
                  const Visit& visit) {
  const int64_t bits = dtype_bits(dtype);
  const Dims global = dense_strides(shape);
  int64_t run = 1;
  int outer = shape.count;  // dimensions [0, outer) are walked, those behind are one run
  for (; outer > 0; --outer) {
    const int d = outer - 1;
    const int64_t extent = shard.box.extent(d);
    if (extent == 0) return;
    if (extent != 1 && (global[d] != run || shard.stride[d] != run)) break;
    run *= extent;
  }
  const auto whole = [&](int64_t elements) {
    if (elements * bits % 8 != 0)
      fail("shard " + print_box(shard.box), "a row of half bytes", "even extents");
    return elements * bits / 8;
  };
  Dims index;
  while (true) {
    int64_t local_first = shard.offset, global_first = 0;
    for (int d = 0; d < shape.count; ++d) {
      local_first += index[d] * shard.stride[d];
      global_first += (shard.box.lo[d] + index[d]) * global[d];
    }
    visit(buffer + whole(local_first), whole(global_first), whole(run));
    int d = outer - 1;
    while (d >= 0 && ++index[d] == shard.box.extent(d)) index[d--] = 0;
    if (d < 0) return;
  }
}

struct SideView {
  const RankMap* map = nullptr;
  Dtype dtype = Dtype::kBf16;
  std::byte* buffer = nullptr;
};

/// Calls visit(tensor, dtype, shard, buffer) for all that the rank holds on a side.
template <typename Visit>
void for_each_shard(const Plan& plan, Side side, int32_t rank, const Executor::Buffers& buffers,
                    const Visit& visit) {
  for (const PlanTensor& tensor : plan.tensors) {
    const bool train = side == Side::kTrain;
    const int32_t map = train ? tensor.train_map : tensor.gen_map;
    if (map < 0) continue;
    const std::vector<Shard>* shards = plan.maps[static_cast<size_t>(map)].find(rank);
    if (shards == nullptr || shards->empty()) continue;
    const int32_t buffer = train ? tensor.train_buffer : tensor.gen_buffer;
    std::byte* base = (train ? buffers.train : buffers.gen)[static_cast<size_t>(buffer)];
    for (const Shard& shard : *shards) visit(tensor, tensor.gen_dtype, shard, base);
  }
}

[[noreturn]] void report_mismatch(int32_t rank, const PlanTensor& tensor, Dtype dtype,
                                  int64_t round, const std::byte* at, int64_t first,
                                  int64_t position, const Pattern& pattern) {
  const int64_t bits = dtype_bits(dtype);
  const int64_t width = std::max<int64_t>(bits / 8, 1);
  int64_t element = (first + position) * 8 / bits;
  uint64_t found = 0, expected = 0;
  const int64_t start = element * bits / 8;  // within the tensor; a run begins with a whole element
  for (int64_t i = width - 1; i >= 0; --i) {
    found = found << 8 | std::to_integer<uint64_t>(at[start - first + i]);
    expected = expected << 8 | std::to_integer<uint64_t>(pattern.byte(start + i));
  }
  if (bits == 4) {  // the even element is the low half
    const bool odd = (found & 15U) == (expected & 15U);
    element += odd ? 1 : 0;
    found = odd ? found >> 4 : found & 15U;
    expected = odd ? expected >> 4 : expected & 15U;
  }
  const Dims strides = dense_strides(tensor.shape);
  std::vector<int64_t> index;
  for (int d = 0; d < tensor.shape.count; ++d) {
    index.push_back(element / strides[d]);
    element %= strides[d];
  }
  throw Error(
      fmt::format(
          "rank {}, tensor {}, element [{}], iteration {}: found 0x{:0{}x}, expected 0x{:0{}x}",
          rank, tensor.name, fmt::join(index, ", "), round, found, bits / 4, expected, bits / 4),
      ErrorKind::kWork);
}

}  // namespace

void fill_train(const Plan& plan, int32_t rank, const Executor::Buffers& buffers, int64_t round) {
  for_each_shard(plan, Side::kTrain, rank, buffers,
                 [&](const PlanTensor& tensor, Dtype dtype, const Shard& shard, std::byte* base) {
                   if (is_cast_tensor(tensor)) return fill_cast(tensor, shard, base, round);
                   const Pattern pattern(tensor.name, round, false);
                   for_each_run(tensor.shape, shard, dtype, base,
                                [&](std::byte* at, int64_t first, int64_t bytes) {
                                  pattern.write(at, first, bytes);
                                });
                 });
}

void poison_gen(const Plan& plan, int32_t rank, const Executor::Buffers& buffers, int64_t round) {
  RoundScales known;
  for_each_shard(plan, Side::kGen, rank, buffers,
                 [&](const PlanTensor& tensor, Dtype dtype, const Shard& shard, std::byte* base) {
                   if (is_cast_tensor(tensor))
                     return poison_cast(plan, tensor, shard, base, round, known);
                   const Pattern pattern(tensor.name, round, true);
                   for_each_run(tensor.shape, shard, dtype, base,
                                [&](std::byte* at, int64_t first, int64_t bytes) {
                                  pattern.write(at, first, bytes);
                                });
                 });
}

int64_t verify_gen(const Plan& plan, int32_t rank, const Executor::Buffers& buffers,
                   int64_t round) {
  int64_t total = 0;
  RoundScales known;
  for_each_shard(plan, Side::kGen, rank, buffers,
                 [&](const PlanTensor& tensor, Dtype dtype, const Shard& shard, std::byte* base) {
                   if (is_cast_tensor(tensor)) {
                     total += verify_cast(plan, rank, tensor, shard, base, round, known);
                     return;
                   }
                   const Pattern pattern(tensor.name, round, false);
                   for_each_run(tensor.shape, shard, dtype, base,
                                [&](const std::byte* at, int64_t first, int64_t bytes) {
                                  const int64_t wrong = pattern.mismatch(at, first, bytes);
                                  if (wrong >= 0) {
                                    report_mismatch(rank, tensor, dtype, round, at, first, wrong,
                                                    pattern);
                                  }
                                  total += bytes;
                                });
                 });
  return total;
}

}  // namespace refit
