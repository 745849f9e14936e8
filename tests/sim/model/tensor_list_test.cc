#include <gtest/gtest.h>

#include "tests/sim/model/testing.h"

namespace refit {
namespace {

std::string entry(const std::string& name, const std::string& shape,
                  const std::string& dtype = "BF16") {
  return "\"" + name + R"(": {"shape": [)" + shape + R"(], "dtype": ")" + dtype +
         R"(", "shard": "any"},)" + "\n";
}
std::string list(std::string entries) {
  entries.resize(entries.size() - 2);
  return "{" + entries + "}";
}
Model parse(const std::string& entries, const ModelOptions& options = {}) {
  return parse_model(list(entries), "x.model.json", options);
}

const std::string kAttention = entry("model.layers.0.self_attn.q_proj.weight", "24, 20") +
                               entry("model.layers.0.self_attn.k_proj.weight", "12, 20") +
                               entry("model.layers.0.self_attn.k_norm.weight", "6");

TEST(TensorList, RolesComeFromNames) {
  const Model model =
      parse(entry("model.embed_tokens.weight", "50, 20") + "\"_comment\": \"free text\",\n" +
            kAttention + entry("model.layers.0.mlp.down_proj.weight", "20, 28", "F32") +
            entry("model.norm.weight", "20") + entry("lm_head.weight", "50, 20"));
  EXPECT_EQ(model.name, "x");
  EXPECT_EQ(model.family, "qwen3");  // the first with a k_norm
  EXPECT_EQ(model.layers, 1);
  EXPECT_EQ(model.kv_heads, 2);
  EXPECT_EQ(model.experts, 0);
  EXPECT_FALSE(model.tied_embeddings);
  ASSERT_EQ(model.tensors.size(), 7u);
  EXPECT_EQ(model.tensors[0], (Tensor{"model.embed_tokens.weight",
                                      {50, 20},
                                      Dtype::kBf16,
                                      Role::kVocab,
                                      Block::kEmbedding,
                                      -1,
                                      false}));
  EXPECT_EQ(model.tensors[2].role, Role::kKvColumn);
  EXPECT_EQ(model.tensors[4], (Tensor{"model.layers.0.mlp.down_proj.weight",
                                      {20, 28},
                                      Dtype::kFp32,
                                      Role::kRow,
                                      Block::kLayer,
                                      0,
                                      true}));
  EXPECT_EQ(model.tensors[5].block, Block::kHead);
  EXPECT_TRUE(parse(entry("model.embed_tokens.weight", "50, 20") + kAttention).tied_embeddings);
}

TEST(TensorList, NumberedExpertsBecomeOneTensor) {
  std::string text = kAttention + entry("model.layers.0.mlp.gate.weight", "3, 20");
  for (int expert : {2, 0, 1}) {
    const std::string prefix = "model.layers.0.mlp.experts." + std::to_string(expert);
    text +=
        entry(prefix + ".down_proj.weight", "20, 9") + entry(prefix + ".up_proj.weight", "9, 20");
  }
  const Model model = parse(text);
  EXPECT_EQ(model.family, "qwen3_moe");
  EXPECT_EQ(model.experts, 3);
  ASSERT_EQ(model.tensors.size(), 6u);
  EXPECT_EQ(model.tensors[4], (Tensor{"model.layers.0.mlp.experts.down_proj.weight",
                                      {3, 20, 9},
                                      Dtype::kBf16,
                                      Role::kExpertRow,
                                      Block::kLayer,
                                      0,
                                      true}));
  EXPECT_EQ(model.tensors[5].shape, (Dims{3, 9, 20}));

  // The same, grouped in the file.
  const Model grouped = parse(kAttention + entry("model.layers.0.mlp.gate.weight", "3, 20") +
                              entry("model.layers.0.mlp.experts.down_proj.weight", "3, 20, 9") +
                              entry("model.layers.0.mlp.experts.up_proj.weight", "3, 9, 20"));
  EXPECT_EQ(grouped, model);
}

TEST(TensorList, ExpertsThatDoNotMakeOneTensorAreRefused) {
  const auto expert = [](int layer, int e, const char* shape = "9, 20",
                         const char* dtype = "BF16") {
    return entry("model.layers." + std::to_string(layer) + ".mlp.experts." + std::to_string(e) +
                     ".up_proj.weight",
                 shape, dtype);
  };
  EXPECT_EQ(error_of([&] { parse(expert(0, 0) + expert(0, 2)); }),
            "x.model.json:1: model.layers.0.mlp.experts.0.up_proj.weight: found no expert 1 of "
            "model.layers.0.mlp.experts.up_proj.weight, expected experts 0 to 2");
  EXPECT_THROW(parse(expert(0, 0) + expert(0, 1) + expert(1, 0)), Error);  // fewer in layer 1
  EXPECT_THROW(parse(expert(0, 0) + expert(0, 1, "9, 21")), Error);
  EXPECT_THROW(parse(expert(0, 0) + expert(0, 1, "9, 20", "F32")), Error);
  EXPECT_THROW(parse(expert(0, 0, "9, 20, 1") + expert(0, 1, "9, 20, 1")), Error);
  EXPECT_THROW(parse(expert(0, 0, "1,2,3,4,5,6")), Error);
  EXPECT_THROW(parse(expert(0, 0) + entry("model.layers.0.mlp.experts.up_proj.weight", "1, 9, 20")),
               Error);
  EXPECT_THROW(parse(expert(0, 0) + entry("model.layers.1.mlp.experts.up_proj.weight", "2, 9, 20")),
               Error);
  EXPECT_THROW(parse(entry("model.layers.0.mlp.experts.00.up_proj.weight", "9, 20")), Error);
}

TEST(TensorList, QuantisedWeightsBringTheirScales) {
  const Model model =
      parse(entry("model.layers.0.self_attn.kv_b_proj.weight", "256, 128", "F8_E4M3") +
            entry("model.layers.0.self_attn.kv_b_proj.weight_scale_inv", "2, 1", "F32") +
            entry("model.layers.0.mlp.experts.0.down_proj.weight", "128, 128", "F8_E4M3") +
            entry("model.layers.0.mlp.experts.0.down_proj.weight_scale_inv", "1, 1", "F32"));
  EXPECT_EQ(model.family, "deepseek_v3");
  EXPECT_EQ(model.kv_heads, 0);
  ASSERT_EQ(model.tensors.size(), 4u);
  EXPECT_EQ(model.tensors[1].role, Role::kColumn);
  EXPECT_EQ(model.tensors[3].name, "model.layers.0.mlp.experts.down_proj.weight_scale_inv");
  EXPECT_EQ(model.tensors[3].shape, (Dims{1, 1, 1}));
  EXPECT_EQ(model.tensors[3].role, Role::kExpertRow);
  EXPECT_FALSE(model.tensors[3].ffn);
}

TEST(TensorList, PredictionLayersOnRequest) {
  const std::string text = entry("model.layers.0.self_attn.kv_a_layernorm.weight", "8") +
                           entry("model.layers.0.mlp.up_proj.weight", "9, 20") +
                           entry("model.layers.1.mlp.experts.up_proj.weight", "3, 9, 20") +
                           entry("model.layers.1.enorm.weight", "20");
  const Model without = parse(text);
  EXPECT_EQ(without.tensors.size(), 2u);
  EXPECT_EQ(without.layers, 1);
  const Model with = parse(text, {.dtype = "", .mtp = true, .unknown_replicate = false});
  EXPECT_EQ(with.layers, 1);
  ASSERT_EQ(with.tensors.size(), 4u);
  EXPECT_EQ(with.tensors[2], (Tensor{"model.layers.1.mlp.experts.up_proj.weight",
                                     {3, 9, 20},
                                     Dtype::kBf16,
                                     Role::kExpertColumn,
                                     Block::kHead,
                                     -1,
                                     false}));
  EXPECT_EQ(with.tensors[3].block, Block::kHead);
}

TEST(TensorList, UnknownNamesAreRefusedOrReplicated) {
  const std::string text =
      kAttention + entry("model.layers.0.self_attn.sinks", "4") + entry("extra.7.weight", "3, 3");
  EXPECT_EQ(error_of([&] { parse(text); }),
            "x.model.json:4: model.layers.0.self_attn.sinks: found a tensor name that the family "
            "qwen3 does not have, "
            "expected a known one, or --unknown replicate");
  const Model model = parse(text, {.dtype = "", .mtp = false, .unknown_replicate = true});
  ASSERT_EQ(model.tensors.size(), 5u);
  EXPECT_EQ(model.tensors[3].role, Role::kReplicated);
  EXPECT_EQ(model.tensors[3].layer, 0);
  EXPECT_EQ(model.tensors[4].block, Block::kHead);
}

TEST(TensorList, BadListsAreRefused) {
  EXPECT_EQ(error_of([] { parse(entry("model.layers.1.input_layernorm.weight", "20")); }),
            "x.model.json:1: found no tensor of layer 0, expected some, as layer 1 has");
  const std::string norm = "model.layers.0.input_layernorm.weight";
  for (const std::string& text : {
           entry(norm, "20, 20"),
           entry(norm, "0"),
           entry(norm, "-1"),
           entry(norm, "1.5"),
           entry(norm, "\"20\""),
           entry(norm, ""),
           entry(norm, "1,1,1,1,1,1,1"),
           entry(norm, "20", "BF17"),
           entry(norm, "20", ""),
           entry(norm, "20") + entry(norm, "20"),
           entry("model.layers.0.mlp.up_proj.weight", "1048577, 1048576"),
           entry("model.layers.00.input_layernorm.weight", "20"),
           entry("model.layers.x.input_layernorm.weight", "20"),
           entry("model.layers.-1.input_layernorm.weight", "20"),
           entry("model.layers.99999999999.input_layernorm.weight", "20"),
           entry("model.layers.0.", "20"),
           entry("model.layers.0", "20"),
           entry("", "20"),
           entry("lm_head.weight", "50"),
           std::string("\"_comment\": \"only\",\n"),
           std::string("\"num_layers\": 4,\n"),
           "\"" + norm + "\": {\"shape\": [20]},\n",
           "\"" + norm + "\": {\"dtype\": \"BF16\"},\n",
           "\"" + norm + "\": {\"shape\": 20, \"dtype\": \"BF16\"},\n",
           "\"" + norm + "\": {\"shape\": [20], \"dtype\": \"BF16\", \"sharding\": 1},\n",
           "\"" + norm + "\": null,\n",
           entry("model.layers.0.self_attn.k_norm.weight", "7") +
               entry("model.layers.0.self_attn.k_proj.weight", "12, 20"),
       }) {
    const std::string message = error_of([&] { parse(text); });
    EXPECT_TRUE(message.starts_with("x.model.json:")) << text << message;
  }
}

TEST(TensorList, DtypesAreItsOwn) {
  EXPECT_EQ(parse(kAttention, {.dtype = "bf16"}).tensors.size(), 3u);
  EXPECT_EQ(error_of([] { parse(kAttention, {.dtype = "fp32"}); }),
            "x.model.json:1: model.layers.0.self_attn.q_proj.weight.dtype: found BF16 with --dtype "
            "fp32, expected no "
            "--dtype, as each tensor of the list states its own");
}

}  // namespace
}  // namespace refit
