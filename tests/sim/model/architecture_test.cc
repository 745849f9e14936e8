#include "sim/model/architecture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace refit {
namespace {

TEST(Architecture, ATensorNameMeansTheSameInEveryFamily) {
  // So that a list of names that two families know gets the same roles from either. gpt_oss has the
  // experts of qwen3_5_moe transposed: there the other names decide.
  std::map<std::string_view, TensorRow> seen;
  for (const Family& family : families()) {
    for (const TensorRows* rows :
         {&family.embedding, &family.layer, &family.head, &family.mtp, &family.mtp_apart}) {
      for (const TensorRow& row : *rows) {
        if (row.name.starts_with("mlp.experts.") && !row.name.ends_with(".weight")) continue;
        const TensorRow& first = seen.emplace(row.name, row).first->second;
        EXPECT_EQ(row.role, first.role) << family.name << " " << row.name;
        EXPECT_EQ(std::ranges::count(row.shape, ','), std::ranges::count(first.shape, ','))
            << family.name << " " << row.name;
      }
    }
  }
}

TEST(Architecture, DimensionsFitTheRole) {
  for (const Family& family : families()) {
    for (const TensorRows* rows :
         {&family.embedding, &family.layer, &family.head, &family.mtp, &family.mtp_apart}) {
      std::set<std::string_view> names;
      for (const TensorRow& row : *rows) {
        EXPECT_TRUE(names.insert(row.name).second) << family.name << " " << row.name << " twice";
        const auto dims = std::ranges::count(row.shape, ',') + 1;
        switch (row.role) {
          case Role::kReplicated:
          case Role::kColumn:
          case Role::kKvColumn:
            EXPECT_LE(dims, row.name.ends_with("conv1d.weight") ? 3 : 2) << row.name;
            break;
          case Role::kVocab:
          case Role::kRow:
          case Role::kMtpColumn:
          case Role::kMtpFcColumn:
            EXPECT_EQ(dims, 2) << row.name;
            break;
          case Role::kExpertColumn:
          case Role::kExpertRow:
            EXPECT_EQ(dims, row.name.ends_with("_bias") ? 2 : 3) << row.name;
            break;
        }
      }
    }
  }
}

TEST(Architecture, FamiliesAreFoundByEitherName) {
  EXPECT_EQ(find_family("kimi_k2"), find_family("deepseek_v3"));
  EXPECT_EQ(find_family("qwen3")->name, "qwen3");
  EXPECT_EQ(find_family(""), nullptr);
  EXPECT_EQ(find_family("nemotron_h"), nullptr);
}

}  // namespace
}  // namespace refit
