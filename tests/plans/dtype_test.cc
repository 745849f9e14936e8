#include "plans/dtype.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace refit {
namespace {

TEST(Dtype, BitsAndBytes) {
  EXPECT_EQ(dtype_bits(Dtype::kFp64), 64);
  EXPECT_EQ(dtype_bits(Dtype::kBf16), 16);
  EXPECT_EQ(dtype_bits(Dtype::kE8m0), 8);
  EXPECT_EQ(dtype_bits(Dtype::kFp4E2m1), 4);
  EXPECT_EQ(dtype_bytes(Dtype::kFp32, 3), 12);
  EXPECT_EQ(dtype_bytes(Dtype::kFp8E5m2, 3), 3);
  EXPECT_EQ(dtype_bytes(Dtype::kFp4E2m1, 6), 3);
}

TEST(Dtype, NamesReadBack) {
  for (int i = 0; i < kDtypeCount; ++i) {
    const auto dtype = static_cast<Dtype>(i);
    EXPECT_EQ(parse_dtype(dtype_name(dtype), "test"), dtype);
  }
}

TEST(Dtype, Aliases) {
  EXPECT_EQ(parse_dtype("bfloat16", "test"), Dtype::kBf16);
  EXPECT_EQ(parse_dtype("BF16", "test"), Dtype::kBf16);
  EXPECT_EQ(parse_dtype("torch.bfloat16", "test"), Dtype::kBf16);
  EXPECT_EQ(parse_dtype("float32", "test"), Dtype::kFp32);
  EXPECT_EQ(parse_dtype("F8_E4M3", "test"), Dtype::kFp8E4m3);
  EXPECT_EQ(parse_dtype("torch.float8_e4m3fn", "test"), Dtype::kFp8E4m3);
  EXPECT_EQ(parse_dtype("float8_e8m0fnu", "test"), Dtype::kE8m0);
  EXPECT_EQ(parse_dtype("I64", "test"), Dtype::kInt64);
}

TEST(Dtype, RefusesOthers) {
  for (const char* text : {"", "bf", "bf16 ", "float7", "torch.", "bool", "fp16x", "int16"}) {
    EXPECT_THROW(parse_dtype(text, "test"), Error) << text;
  }
  try {
    parse_dtype("float7", "model.json:3: dtype");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "model.json:3: dtype: found dtype 'float7', expected one of fp64, fp32, bf16, fp16, "
              "fp8_e4m3, fp8_e5m2, fp4_e2m1, e8m0, int64, int32, int8, uint8");
  }
}

}  // namespace
}  // namespace refit
