#include "exec/verify.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/exec/test_plans.h"

namespace refit {
namespace {

using testing::dense_shard;
using testing::PlanMaker;
using testing::replicate;
using testing::split;

/// A plan of one tensor and the memory of one rank for it.
struct OneTensor {
  OneTensor(const Dims& shape, Dtype dtype, RankMap train, RankMap gen) {
    PlanMaker maker(8, 1);
    maker.add_tensor("layers.0.w", shape, dtype, std::move(train), std::move(gen));
    plan = maker.finish();
    buffers.train = {train_memory.data()};
    buffers.gen = {gen_memory.data()};
  }
  Plan plan;
  std::vector<std::byte> train_memory = std::vector<std::byte>(4096);
  std::vector<std::byte> gen_memory = std::vector<std::byte>(4096);
  Executor::Buffers buffers;
};

constexpr Dtype kWidths[] = {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16, Dtype::kFp8E4m3,
                             Dtype::kFp4E2m1};

/// The tensor's row-major bytes, taken from a rank that holds all of it.
std::vector<std::byte> whole_tensor(const Dims& shape, Dtype dtype, int64_t round) {
  OneTensor memory(shape, dtype, replicate(shape, 0, 1), replicate(shape, 1, 1));
  fill_train(memory.plan, 0, memory.buffers, round);
  memory.train_memory.resize(static_cast<size_t>(dtype_bytes(dtype, shape.product())));
  return memory.train_memory;
}

TEST(Fill, EveryShardHoldsTheTensorsBytes) {
  const Dims shape{6, 10, 4};
  for (const Dtype dtype : kWidths) {
    const std::vector<std::byte> all = whole_tensor(shape, dtype, 3);
    const int64_t bits = dtype_bits(dtype);
    for (const int dim : {0, 1, 2}) {
      OneTensor memory(shape, dtype, split(shape, dim, 0, 2), split(shape, dim, 2, 2));
      for (const int32_t rank : {0, 1}) {
        fill_train(memory.plan, rank, memory.buffers, 3);
        const Box& box = memory.plan.maps[0].find(rank)->front().box;
        const Dims strides = dense_strides(shape);
        // Oracle: two elements (4-bit ones come in pairs) at a time, at their row-major places.
        for (int64_t e = 0; e < box.volume(); e += 2) {
          int64_t global = 0, rest = e;
          for (int d = 2; d >= 0; --d) {
            global += (box.lo[d] + rest % box.extent(d)) * strides[d];
            rest /= box.extent(d);
          }
          ASSERT_EQ(std::memcmp(memory.train_memory.data() + e * bits / 8,
                                all.data() + global * bits / 8, static_cast<size_t>(bits / 4)),
                    0)
              << dtype_name(dtype) << " dim " << dim << " rank " << rank << " element " << e;
        }
      }
    }
  }
}

TEST(Fill, ValuesTellTensorsAndRoundsApart) {
  const Dims shape{64};
  const std::vector<std::byte> first = whole_tensor(shape, Dtype::kFp64, 0);
  EXPECT_EQ(first, whole_tensor(shape, Dtype::kFp64, 0));
  EXPECT_NE(first, whole_tensor(shape, Dtype::kFp64, 1));
  OneTensor other(shape, Dtype::kFp64, replicate(shape, 0, 1), replicate(shape, 1, 1));
  other.plan.tensors[0].name = "layers.1.w";
  fill_train(other.plan, 0, other.buffers, 0);
  EXPECT_NE(std::memcmp(first.data(), other.train_memory.data(), first.size()), 0);
  // Inside a tensor no two words are equal.
  for (size_t i = 0; i < 64; ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_NE(std::memcmp(first.data() + 8 * i, first.data() + 8 * j, 8), 0);
    }
  }
}

TEST(Poison, NoByteIsRightBeforeItArrives) {
  const Dims shape{3, 34};
  OneTensor memory(shape, Dtype::kFp8E5m2, split(shape, 1, 0, 2), split(shape, 1, 2, 2));
  fill_train(memory.plan, 1, memory.buffers, 4);
  poison_gen(memory.plan, 3, memory.buffers, 4);
  for (size_t i = 0; i < 3 * 17; ++i) EXPECT_NE(memory.train_memory[i], memory.gen_memory[i]);
  EXPECT_EQ(memory.gen_memory[3 * 17], std::byte{0});  // nothing behind the shard is touched
  EXPECT_THROW(verify_gen(memory.plan, 3, memory.buffers, 4), Error);
}

TEST(Verify, CountsWhatIsRight) {
  const Dims shape{6, 10, 4};
  for (const Dtype dtype : kWidths) {
    OneTensor memory(shape, dtype, split(shape, 1, 0, 2), split(shape, 1, 2, 2));
    fill_train(memory.plan, 1, memory.buffers, 0);
    memory.gen_memory = memory.train_memory;
    memory.buffers.gen = {memory.gen_memory.data()};
    EXPECT_EQ(verify_gen(memory.plan, 3, memory.buffers, 0), 120 * dtype_bits(dtype) / 8);
    EXPECT_THROW(verify_gen(memory.plan, 2, memory.buffers, 0), Error);  // that is the other half
    EXPECT_THROW(verify_gen(memory.plan, 3, memory.buffers, 1), Error);  // and that another round
    EXPECT_EQ(verify_gen(memory.plan, 0, memory.buffers, 0), 0);         // holds no gen shard
  }
}

/// The message for one flipped bit at `byte` of rank 3's shard: columns 5-9 of a [6, 10, 4] tensor.
std::string flipped(Dtype dtype, size_t byte, int bit) {
  const Dims shape{6, 10, 4};
  OneTensor memory(shape, dtype, split(shape, 1, 0, 2), split(shape, 1, 2, 2));
  fill_train(memory.plan, 1, memory.buffers, 2);
  memory.gen_memory = memory.train_memory;
  memory.buffers.gen = {memory.gen_memory.data()};
  memory.gen_memory[byte] ^= std::byte(1 << bit);
  try {
    verify_gen(memory.plan, 3, memory.buffers, 2);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kWork);
    return error.what();
  }
  return "";
}

TEST(Verify, NamesThePlantedByte) {
  // Element 45 of the shard [6, 5, 4]: row 2, column 1 (6 of the tensor), 1.
  EXPECT_NE(flipped(Dtype::kBf16, 91, 0)
                .find("rank 3, tensor layers.0.w, element [2, 6, 1], iteration 2: found 0x"),
            std::string::npos);
  EXPECT_NE(flipped(Dtype::kFp32, 45 * 4, 7).find("element [2, 6, 1]"), std::string::npos);
  EXPECT_NE(flipped(Dtype::kFp64, 45 * 8 + 7, 3).find("element [2, 6, 1]"), std::string::npos);
  EXPECT_NE(flipped(Dtype::kFp8E4m3, 45, 3).find("element [2, 6, 1]"), std::string::npos);
  // Byte 22 of 4-bit elements: 44 in its low half, 45 in its high one.
  EXPECT_NE(flipped(Dtype::kFp4E2m1, 22, 0).find("element [2, 6, 0]"), std::string::npos);
  EXPECT_NE(flipped(Dtype::kFp4E2m1, 22, 7).find("element [2, 6, 1]"), std::string::npos);
  // First and last bytes.
  EXPECT_NE(flipped(Dtype::kBf16, 0, 0).find("element [0, 5, 0]"), std::string::npos);
  EXPECT_NE(flipped(Dtype::kBf16, 239, 0).find("element [5, 9, 3]"), std::string::npos);
}

TEST(Verify, SaysWhatWasFoundAndExpected) {
  const std::string text = flipped(Dtype::kFp8E4m3, 45, 4);
  const size_t found = text.find("found 0x"), expected = text.find("expected 0x");
  ASSERT_NE(found, std::string::npos);
  ASSERT_NE(expected, std::string::npos);
  const int a = std::stoi(text.substr(found + 8, 2), nullptr, 16);
  const int b = std::stoi(text.substr(expected + 11, 2), nullptr, 16);
  EXPECT_EQ(a ^ b, 1 << 4) << text;
}

TEST(Verify, RefusesWhatItCannotJudge) {
  const Dims shape{4, 4};
  OneTensor converted(shape, Dtype::kBf16, replicate(shape, 0, 1), replicate(shape, 1, 1));
  converted.plan.tensors[0].gen_dtype = Dtype::kInt8;
  EXPECT_THROW(fill_train(converted.plan, 0, converted.buffers, 0), Error);
  EXPECT_THROW(verify_gen(converted.plan, 1, converted.buffers, 0), Error);
  OneTensor half(shape, Dtype::kFp4E2m1, {{{0, {dense_shard({{0, 0}, {4, 3}})}}}},
                 replicate(shape, 1, 1));
  EXPECT_THROW(fill_train(half.plan, 0, half.buffers, 0), Error);
}

}  // namespace
}  // namespace refit
