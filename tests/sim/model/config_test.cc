#include <fmt/core.h>
#include <gtest/gtest.h>

#include "tests/sim/model/testing.h"

namespace refit {
namespace {

/// A config.json with small prime-like sizes, so that a swapped dimension shows.
std::string config(const std::string& type, const std::string& more) {
  return R"({"model_type": ")" + type + R"(", "hidden_size": 20, "num_hidden_layers": 2,
"num_attention_heads": 4, "vocab_size": 50, "irrelevant": {"x": [1]}, )" +
         more + "}";
}
std::string edit(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}
const char* const kDense = R"("num_key_value_heads": 2, "head_dim": 6, "intermediate_size": 28)";
const char* const kMla = R"("q_lora_rank": 14, "kv_lora_rank": 10, "qk_nope_head_dim": 8,
"qk_rope_head_dim": 3, "v_head_dim": 7, "intermediate_size": 28, "first_k_dense_replace": 1,
"n_routed_experts": 6, "n_shared_experts": 2, "moe_intermediate_size": 9)";

Model parse(const std::string& text, const ModelOptions& options = {}) {
  return parse_model(text, "m/config.json", options);
}

TEST(Config, DenseModelHasEveryTensorInItsPlace) {
  const Model model = parse(config("qwen3", kDense));
  EXPECT_EQ(model.name, "m");
  EXPECT_EQ(model.family, "qwen3");
  EXPECT_EQ(model.layers, 2);
  EXPECT_EQ(model.kv_heads, 2);
  EXPECT_EQ(model.experts, 0);
  EXPECT_FALSE(model.tied_embeddings);
  ASSERT_EQ(model.tensors.size(), 3u + 2 * 11);
  EXPECT_EQ(model.tensors.front(), (Tensor{"model.embed_tokens.weight",
                                           {50, 20},
                                           Dtype::kBf16,
                                           Role::kVocab,
                                           Block::kEmbedding,
                                           -1,
                                           false}));
  EXPECT_EQ(
      model.tensors.back(),
      (Tensor{"lm_head.weight", {50, 20}, Dtype::kBf16, Role::kVocab, Block::kHead, -1, false}));

  const auto tensors = by_name(model);
  const auto layer1 = [](const char* name, Dims shape, Role role, bool ffn,
                         std::vector<CutBlock> heads = {}) {
    return Tensor{std::string("model.layers.1.") + name,
                  shape,
                  Dtype::kBf16,
                  role,
                  Block::kLayer,
                  1,
                  ffn,
                  std::move(heads)};
  };
  for (const Tensor& expected : {
           layer1("input_layernorm.weight", {20}, Role::kReplicated, false),
           layer1("self_attn.q_proj.weight", {24, 20}, Role::kColumn, false, {{24, 4}}),
           layer1("self_attn.k_proj.weight", {12, 20}, Role::kKvColumn, false, {{12, 2}}),
           layer1("self_attn.v_proj.weight", {12, 20}, Role::kKvColumn, false, {{12, 2}}),
           layer1("self_attn.o_proj.weight", {20, 24}, Role::kRow, false, {{24, 4}}),
           layer1("self_attn.q_norm.weight", {6}, Role::kReplicated, false),
           layer1("self_attn.k_norm.weight", {6}, Role::kReplicated, false),
           layer1("post_attention_layernorm.weight", {20}, Role::kReplicated, false),
           layer1("mlp.gate_proj.weight", {28, 20}, Role::kColumn, true),
           layer1("mlp.up_proj.weight", {28, 20}, Role::kColumn, true),
           layer1("mlp.down_proj.weight", {20, 28}, Role::kRow, true),
       }) {
    ASSERT_TRUE(tensors.contains(expected.name)) << expected.name;
    EXPECT_EQ(tensors.at(expected.name), expected) << expected.name;
  }
}

TEST(Config, HeadSizeAndKvHeadsHaveDefaults) {
  for (const char* more :
       {R"("intermediate_size": 28)",
        R"("intermediate_size": 28, "head_dim": null, "num_key_value_heads": null)"}) {
    const Model model = parse(config("llama", more));
    EXPECT_EQ(model.kv_heads, 4);
    EXPECT_EQ(by_name(model).at("model.layers.0.self_attn.k_proj.weight").shape,
              (Dims{20, 20}));  // 4 * 20/4
  }
}

TEST(Config, BiasesFollowFamilyAndFlag) {
  const auto qwen2 = by_name(parse(config("qwen2", kDense)));
  EXPECT_EQ(qwen2.at("model.layers.0.self_attn.k_proj.bias").role, Role::kKvColumn);
  EXPECT_EQ(qwen2.at("model.layers.0.self_attn.q_proj.bias").shape, (Dims{24}));
  EXPECT_FALSE(qwen2.contains("model.layers.0.self_attn.o_proj.bias"));
  const auto llama = by_name(parse(
      config("llama", std::string(kDense) + R"(, "attention_bias": true, "mlp_bias": true)")));
  EXPECT_EQ(llama.at("model.layers.0.self_attn.o_proj.bias").role, Role::kReplicated);
  EXPECT_EQ(llama.at("model.layers.0.mlp.gate_proj.bias").role, Role::kColumn);
  EXPECT_FALSE(
      by_name(parse(config("llama", kDense))).contains("model.layers.0.self_attn.q_proj.bias"));
}

TEST(Config, TiedEmbeddingsHaveNoHead) {
  const Model model =
      parse(config("qwen3", std::string(kDense) + R"(, "tie_word_embeddings": true)"));
  EXPECT_TRUE(model.tied_embeddings);
  EXPECT_FALSE(by_name(model).contains("lm_head.weight"));
}

TEST(Config, QwenLayersWithExpertsFollowStepAndExceptions) {
  // Every second layer, counted from one: 1, 3, 5; of these 3 is dense.
  const std::string text =
      config("qwen3_moe", std::string(kDense) + R"(, "num_experts": 6, "moe_intermediate_size": 9,
      "decoder_sparse_step": 2, "mlp_only_layers": [3])");
  const Model model = parse(edit(text, "layers\": 2", "layers\": 6"));
  const auto tensors = by_name(model);
  EXPECT_EQ(model.experts, 6);
  for (int layer = 0; layer < 6; ++layer) {
    const bool moe = layer == 1 || layer == 5;
    EXPECT_EQ(tensors.contains(fmt::format("model.layers.{}.mlp.experts.gate_proj.weight", layer)),
              moe);
    EXPECT_EQ(tensors.contains(fmt::format("model.layers.{}.mlp.gate.weight", layer)), moe);
    EXPECT_EQ(tensors.contains(fmt::format("model.layers.{}.mlp.gate_proj.weight", layer)), !moe);
  }
  EXPECT_EQ(tensors.at("model.layers.1.mlp.experts.gate_proj.weight"),
            (Tensor{"model.layers.1.mlp.experts.gate_proj.weight",
                    {6, 9, 20},
                    Dtype::kBf16,
                    Role::kExpertColumn,
                    Block::kLayer,
                    1,
                    true}));
  EXPECT_EQ(tensors.at("model.layers.1.mlp.experts.down_proj.weight").shape, (Dims{6, 20, 9}));
  EXPECT_EQ(tensors.at("model.layers.1.mlp.experts.down_proj.weight").role, Role::kExpertRow);
  EXPECT_EQ(tensors.at("model.layers.1.mlp.gate.weight").role, Role::kReplicated);
}

TEST(Config, MixtralExperts) {
  const Model model = parse(config("mixtral", std::string(kDense) + R"(, "num_local_experts": 3)"));
  const auto tensors = by_name(model);
  EXPECT_EQ(model.experts, 3);
  EXPECT_EQ(tensors.at("model.layers.0.block_sparse_moe.experts.w1.weight").shape,
            (Dims{3, 28, 20}));
  EXPECT_EQ(tensors.at("model.layers.0.block_sparse_moe.experts.w3.weight").role,
            Role::kExpertColumn);
  EXPECT_EQ(tensors.at("model.layers.0.block_sparse_moe.experts.w2.weight").shape,
            (Dims{3, 20, 28}));
  EXPECT_EQ(tensors.at("model.layers.0.block_sparse_moe.experts.w2.weight").role, Role::kExpertRow);
}

TEST(Config, LatentAttentionAndSharedExperts) {
  const Model model = parse(config("deepseek_v3", kMla));
  const auto tensors = by_name(model);
  EXPECT_EQ(model.experts, 6);
  EXPECT_EQ(model.kv_heads, 0);
  const auto expect = [&](const char* name, Dims shape, Role role) {
    const std::string full = std::string("model.layers.1.") + name;
    ASSERT_TRUE(tensors.contains(full)) << full;
    EXPECT_EQ(tensors.at(full).shape, shape) << full;
    EXPECT_EQ(tensors.at(full).role, role) << full;
  };
  expect("self_attn.q_a_proj.weight", {14, 20}, Role::kReplicated);
  expect("self_attn.q_a_layernorm.weight", {14}, Role::kReplicated);
  expect("self_attn.q_b_proj.weight", {44, 14}, Role::kColumn);                // 4 * (8 + 3)
  expect("self_attn.kv_a_proj_with_mqa.weight", {13, 20}, Role::kReplicated);  // 10 + 3
  expect("self_attn.kv_a_layernorm.weight", {10}, Role::kReplicated);
  expect("self_attn.kv_b_proj.weight", {60, 10}, Role::kColumn);  // 4 * (8 + 7)
  expect("self_attn.o_proj.weight", {20, 28}, Role::kRow);        // 4 * 7
  expect("mlp.gate.weight", {6, 20}, Role::kReplicated);
  expect("mlp.gate.e_score_correction_bias", {6}, Role::kReplicated);
  expect("mlp.shared_experts.gate_proj.weight", {18, 20}, Role::kColumn);  // 2 * 9
  expect("mlp.shared_experts.down_proj.weight", {20, 18}, Role::kRow);
  EXPECT_FALSE(tensors.at("model.layers.1.mlp.shared_experts.up_proj.weight").ffn);
  EXPECT_TRUE(tensors.at("model.layers.1.mlp.experts.up_proj.weight").ffn);
  EXPECT_EQ(tensors.at("model.layers.1.mlp.gate.e_score_correction_bias").dtype, Dtype::kFp32);
  EXPECT_FALSE(tensors.contains("model.layers.1.mlp.gate_proj.weight"));
  EXPECT_TRUE(tensors.contains("model.layers.0.mlp.gate_proj.weight"));  // first_k_dense_replace

  const auto q = by_name(
      parse(edit(config("deepseek_v3", kMla), "\"q_lora_rank\": 14", "\"q_lora_rank\": null")));
  EXPECT_EQ(q.at("model.layers.0.self_attn.q_proj.weight").shape, (Dims{44, 20}));
  EXPECT_FALSE(q.contains("model.layers.0.self_attn.q_b_proj.weight"));
}

TEST(Config, PredictionLayersOnRequest) {
  const std::string text =
      config("deepseek_v3", std::string(kMla) + R"(, "num_nextn_predict_layers": 1)");
  const Model without = parse(text);
  const Model with = parse(text, {.dtype = "", .mtp = true, .unknown_replicate = false});
  EXPECT_EQ(with.layers, 2);
  // 6 of its own, and a layer with experts: 2 norms, 7 of attention, 8 of the experts.
  EXPECT_EQ(with.tensors.size(), without.tensors.size() + 6 + 17);
  const auto tensors = by_name(with);
  EXPECT_EQ(tensors.at("model.layers.2.eh_proj.weight").shape, (Dims{20, 40}));
  EXPECT_EQ(tensors.at("model.layers.2.shared_head.head.weight").role, Role::kVocab);
  const Tensor& expert = tensors.at("model.layers.2.mlp.experts.gate_proj.weight");
  EXPECT_EQ(expert.block, Block::kHead);
  EXPECT_FALSE(expert.ffn);
}

TEST(Config, DtypeIsTheOptionsOrTheConfigsOwn) {
  const auto dtype = [](const std::string& more, const std::string& option) {
    const Model model = parse(config("qwen3", std::string(kDense) + more), {.dtype = option});
    return model.tensors[0].dtype;
  };
  EXPECT_EQ(dtype("", ""), Dtype::kBf16);
  EXPECT_EQ(dtype(R"(, "torch_dtype": "float16")", ""), Dtype::kFp16);
  EXPECT_EQ(dtype(R"(, "dtype": "float32")", ""), Dtype::kFp32);
  EXPECT_EQ(
      dtype(R"(, "torch_dtype": "float16", "quantization_config": {"quant_method": "fp8"})", ""),
      Dtype::kBf16);
  EXPECT_EQ(dtype(R"(, "torch_dtype": "float16", "quantization_config": null)", ""), Dtype::kFp16);
  EXPECT_EQ(dtype(R"(, "torch_dtype": "float16")", "fp8_e4m3"), Dtype::kFp8E4m3);
}

TEST(Config, SizesMayStandInTextConfig) {
  const std::string inner = config("qwen3", kDense);
  const Model model =
      parse(R"({"model_type": "some_vl", "dtype": "float16", "vision_config": {"hidden_size": 7},
"text_config": )" +
            inner + "}");
  EXPECT_EQ(model.family, "qwen3");
  EXPECT_EQ(model.tensors[0].shape, (Dims{50, 20}));
  EXPECT_EQ(model.tensors[0].dtype, Dtype::kFp16);
}

TEST(Config, ErrorsNamePlaceAndKey) {
  EXPECT_EQ(error_of([] { parse(config("nemotron_h", kDense)); }),
            "m/config.json:1: model_type: found the architecture family \"nemotron_h\", expected "
            "one of: llama, mistral, qwen2, qwen3, qwen3_moe, mixtral, deepseek_v3, kimi_k2, "
            "deepseek_v32, glm_moe_dsa, qwen3_next, qwen3_5, qwen3_5_text, qwen3_5_moe, "
            "qwen3_5_moe_text, gpt_oss");
  EXPECT_EQ(error_of([] { parse(config("qwen3", "\"head_dim\": 6")); }),
            "m/config.json:1: found no key \"intermediate_size\", expected one");
  EXPECT_EQ(
      error_of([] { parse(config("qwen3", "\n\"intermediate_size\": \"28\"")); }),
      "m/config.json:3: intermediate_size: found \"28\", expected an integer from 1 to 2147483647");
  const std::string ok = config(
      "qwen3_moe", std::string(kDense) + R"(, "num_experts": 6, "moe_intermediate_size": 9)");
  parse(ok);
  const std::pair<const char*, const char*> edits[] = {
      {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 0"},
      {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1e9"},
      {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 2000000000"},
      {"\"hidden_size\": 20", "\"hidden_size\": -20"},
      {"\"hidden_size\": 20", "\"hidden_size\": 20.5"},
      {"\"hidden_size\": 20", "\"hidden_size\": 99999999999"},
      {"\"hidden_size\": 20", "\"hidden_size\": null"},
      {"\"hidden_size\": 20", "\"hidden_size\": [20]"},
      {"\"head_dim\": 6", "\"head_dim\": true"},
      {"\"num_experts\": 6", "\"num_experts\": 6, \"decoder_sparse_step\": 0"},
      {"\"num_experts\": 6", "\"num_experts\": 6, \"mlp_only_layers\": [2]"},
      {"\"num_experts\": 6", "\"num_experts\": 6, \"mlp_only_layers\": 1"},
      {"\"num_experts\": 6", "\"num_experts\": 6, \"tie_word_embeddings\": \"true\""},
      {"\"num_experts\": 6", "\"num_experts\": 6, \"torch_dtype\": \"auto\""},
      {"\"num_experts\": 6", "\"num_experts\": \"six\""},
      {"\"model_type\": \"qwen3_moe\"", "\"model_type\": 3"},
      {"\"model_type\": \"qwen3_moe\"", "\"model_type\": null"},
  };
  for (const auto& [from, to] : edits) {
    const std::string text = edit(ok, from, to);
    const std::string message = error_of([&] { parse(text); });
    EXPECT_TRUE(message.starts_with("m/config.json:")) << to << "\n" << message;
  }
  EXPECT_THROW(parse(ok, {.dtype = "float99"}), Error);
  EXPECT_EQ(
      error_of([] {
        parse(edit(config("llama", "\"intermediate_size\": 28"), "heads\": 4", "heads\": 3"));
      }),
      "m/config.json:1: found hidden_size/num_attention_heads = 20/3, expected a whole number");
  for (const char* text : {"", "{", "{}", "[]", "[1]", "3", "{\"model_type\": \"qwen3\"}",
                           "{\"weight_map\": {}}", "{\"text_config\": 3}"}) {
    EXPECT_THROW(parse(text), Error) << text;
  }
}

TEST(Config, ByteCountsStayWithinInt64) {
  // The largest sizes that are read: (2^31-1)^2, about 2^62, elements.
  const std::string wide =
      edit(config("llama", kDense), "\"hidden_size\": 20", "\"hidden_size\": 2147483647");
  const std::string text = edit(wide, "\"vocab_size\": 50", "\"vocab_size\": 2147483647");
  EXPECT_NE(error_of([&] { parse(text); }).find("of more than 2^40 elements"), std::string::npos);
}

TEST(Config, OddRowsOfFourBitElementsAreRefused) {
  const std::string odd = config("qwen3", R"("head_dim": 5, "intermediate_size": 28)");
  EXPECT_EQ(error_of([&] { parse(odd, {.dtype = "fp4_e2m1"}); }),
            "m/config.json:1: found model.layers.0.self_attn.q_norm.weight of fp4_e2m1 with rows "
            "of 5, expected an "
            "even number");
}

const char* const kHybrid = R"("num_key_value_heads": 2, "head_dim": 6, "linear_num_key_heads": 2,
"linear_num_value_heads": 4, "linear_key_head_dim": 5, "linear_value_head_dim": 3,
"linear_conv_kernel_dim": 4, "num_experts": 6, "moe_intermediate_size": 9,
"shared_expert_intermediate_size": 7, "mtp_num_hidden_layers": 1, "full_attention_interval": 2)";

TEST(Config, HybridLayersAlternate) {
  // Of two layers the second has full attention. Keys 2 * 5, values 4 * 3.
  const Model model = parse(config("qwen3_5_moe_text", kHybrid));
  const auto tensors = by_name(model);
  const Tensor& qkv = tensors.at("model.layers.0.linear_attn.in_proj_qkv.weight");
  EXPECT_EQ(qkv.shape, (Dims{10 + 10 + 12, 20}));
  EXPECT_EQ(qkv.blocks, (std::vector<CutBlock>{{10, 2}, {10, 2}, {12, 4}}));
  const Tensor& conv = tensors.at("model.layers.0.linear_attn.conv1d.weight");
  EXPECT_EQ(conv.shape, (Dims{32, 1, 4}));
  EXPECT_EQ(conv.blocks, qkv.blocks);
  EXPECT_EQ(tensors.at("model.layers.0.linear_attn.in_proj_z.weight").blocks,
            (std::vector<CutBlock>{{12, 4}}));
  EXPECT_FALSE(tensors.contains("model.layers.0.self_attn.q_proj.weight"));
  EXPECT_FALSE(tensors.contains("model.layers.1.linear_attn.A_log"));
  const Tensor& q = tensors.at("model.layers.1.self_attn.q_proj.weight");  // with gates
  EXPECT_EQ(q.shape, (Dims{48, 20}));
  EXPECT_EQ(q.blocks, (std::vector<CutBlock>{{48, 4}}));
  const Tensor& experts = tensors.at("model.layers.0.mlp.experts.gate_up_proj");
  EXPECT_EQ(experts.shape, (Dims{6, 18, 20}));
  EXPECT_EQ(experts.blocks, (std::vector<CutBlock>{{9, 0}, {9, 0}}));
  EXPECT_FALSE(tensors.contains("mtp.fc.weight"));

  ModelOptions options;
  options.mtp = true;
  const Model with_mtp = parse(config("qwen3_5_moe_text", kHybrid), options);
  const auto all = by_name(with_mtp);
  EXPECT_EQ(all.at("mtp.fc.weight").shape, (Dims{20, 40}));
  EXPECT_EQ(all.at("mtp.layers.0.self_attn.q_proj.weight").block, Block::kHead);
  // The layer 1 of 2 norms, 6 of attention, 3 of experts and 4 of the shared one; 4 apart.
  EXPECT_EQ(with_mtp.tensors.size(), model.tensors.size() + 2 + 6 + 3 + 4 + 4);
}

TEST(Config, LayerTypesGoBeforeTheInterval) {
  const std::string types = R"(, "layer_types": ["full_attention", "linear_attention"])";
  const auto tensors = by_name(parse(config("qwen3_5_moe_text", kHybrid + types)));
  EXPECT_TRUE(tensors.contains("model.layers.0.self_attn.q_proj.weight"));
  EXPECT_TRUE(tensors.contains("model.layers.1.linear_attn.A_log"));
  const std::string message = error_of([] {
    parse(config("qwen3_5_moe_text", kHybrid + std::string(R"(, "layer_types": ["full"])")));
  });
  EXPECT_NE(message.find("expected 2, one per layer"), std::string::npos) << message;
}

TEST(Config, SparseAttentionHasAnIndexer) {
  const std::string text =
      config("glm_moe_dsa", std::string(kMla) + R"(, "index_n_heads": 5, "index_head_dim": 11)");
  const auto tensors = by_name(parse(text));
  EXPECT_EQ(tensors.at("model.layers.1.self_attn.indexer.wq_b.weight").shape, (Dims{55, 14}));
  EXPECT_EQ(tensors.at("model.layers.0.self_attn.indexer.weights_proj.weight").role,
            Role::kReplicated);
}

TEST(Config, GptOssExpertsAreTransposed) {
  const auto tensors = by_name(parse(config(
      "gpt_oss", std::string(kDense) + R"(, "num_local_experts": 3, "attention_bias": true)")));
  const Tensor& gate_up = tensors.at("model.layers.1.mlp.experts.gate_up_proj");
  EXPECT_EQ(gate_up.shape, (Dims{3, 20, 56}));
  EXPECT_EQ(gate_up.role, Role::kExpertRow);
  EXPECT_EQ(tensors.at("model.layers.1.mlp.experts.down_proj").shape, (Dims{3, 28, 20}));
  EXPECT_EQ(tensors.at("model.layers.1.self_attn.sinks").blocks, (std::vector<CutBlock>{{4, 4}}));
}

TEST(Config, QuantisedFormatsThatRearrangeTensorsAreRefusedByName) {
  const std::pair<const char*, const char*> formats[] = {
      {R"({"quant_method": "gptq", "bits": 4})", "gptq"},
      {R"({"quant_method": "awq"})", "awq"},
      {R"({"quant_method": "bitsandbytes", "load_in_8bit": true})", "bitsandbytes"},
      {R"({"group_size": 64, "bits": 4})", "mlx"},
      {R"({})", "quantised as \"\""}};
  for (const auto& [format, name] : formats) {
    const std::string text =
        config("qwen3", std::string(kDense) + R"(, "quantization_config": )" + format);
    const std::string message = error_of([&] { parse(text); });
    EXPECT_NE(message.find(name), std::string::npos) << message;
    ModelOptions options;
    options.dtype = "bf16";
    EXPECT_EQ(parse(text, options), parse(config("qwen3", kDense)));
  }
  for (const char* name : {"fp8", "mxfp4", "modelopt", "compressed-tensors"}) {
    EXPECT_EQ(
        parse(config("qwen3", std::string(kDense) +
                                  R"(, "quantization_config": {"quant_method": ")" + name + "\"}")),
        parse(config("qwen3", kDense)));
  }
}

TEST(Config, AByteOrderMarkIsPassedOver) {
  const std::string text = config("qwen3", kDense);
  EXPECT_EQ(parse("\xEF\xBB\xBF" + text), parse(text));
}

}  // namespace
}  // namespace refit
