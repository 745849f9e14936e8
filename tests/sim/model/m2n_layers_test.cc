#include <gtest/gtest.h>

#include "tests/sim/model/testing.h"

namespace refit {
namespace {

Model parse(const std::string& tensors, const std::string& more = "") {
  return parse_model(R"({"num_layers": 2, "default_tensors": [)" + tensors + "]" + more + "}",
                     "layers.json");
}

TEST(M2nLayers, CutDimensionsAreRoles) {
  const Model model = parse(R"(
      {"name": "up", "dims": [8, 6, 4], "tp_shard_dim": 1, "ep_shard_dim": 0, "_comment": "x"},
      {"name": "down", "dims": [8, 4, 6], "tp_shard_dim": 2, "ep_shard_dim": 0},
      {"name": "q", "dims": [6, 4], "tp_shard_dim": 0},
      {"name": "o", "dims": [4, 6], "tp_shard_dim": 1, "ep_shard_dim": -1},
      {"name": "norm", "dims": [4]})");
  ASSERT_EQ(model.tensors.size(), 10u);
  EXPECT_EQ(model.experts, 8);
  const Role roles[] = {Role::kExpertColumn, Role::kExpertRow, Role::kColumn, Role::kRow,
                        Role::kReplicated};
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(model.tensors[i].role, roles[i % 5]) << i;
    EXPECT_EQ(model.tensors[i].layer, static_cast<int32_t>(i / 5)) << i;
  }
  EXPECT_EQ(model.tensors[7].name, "layers.1.q");
}

TEST(M2nLayers, BadOnesAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"name": "x", "dims": [8, 6], "ep_shard_dim": 0, "tp_shard_dim": 1})",
       "tp_shard_dim 1, ep_shard_dim 0 of 2 dimensions"},
      {R"({"name": "x", "dims": [8, 6, 4], "ep_shard_dim": 1, "tp_shard_dim": 2})",
       "ep_shard_dim 1"},
      {R"({"name": "x", "dims": [8, 6, 4], "tp_shard_dim": 2})", "tp_shard_dim 2"},
      {R"({"name": "x", "dims": [8], "tp_shard_dim": 1})", "from -1 to 0"},
      {R"({"name": "x", "dims": [0]})", "dims[0]"},
      {R"({"name": "x"})", "dims"},
      {R"({"dims": [4]})", "name"},
      {R"({"name": "x", "dims": [4], "pp_shard_dim": 0})", "pp_shard_dim"},
      {"", "no tensors"}};
  for (const auto& [tensors, words] : cases) {
    const std::string message = error_of([&] { parse(tensors); });
    EXPECT_NE(message.find(words), std::string::npos) << message;
  }
  EXPECT_NE(error_of([] { parse("", R"(, "layers": [])"); }).find("layers"), std::string::npos);
}

}  // namespace
}  // namespace refit
