#include "sim/layout/precision.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "sim/layout/quantise.h"
#include "tests/refused.h"
#include "tests/sim/layout/refused.h"

namespace refit {
namespace {

/// Matrices of the model that are not quantised, without "model.layers.N.".
std::set<std::string> kept(const std::string& config) {
  const Model model = parse_model(config, "kept/config.json",
                                  {.dtype = "", .mtp = true, .unknown_replicate = false});
  const Quantisation all{.format = Format::kFp8, .skip = {}, .whole_scales = false};
  std::set<std::string> names;
  for (const Tensor& tensor : model.tensors) {
    if (tensor.shape.count < 2 || is_selected(tensor, all)) continue;
    const size_t at = tensor.name.find_first_of("0123456789");
    names.insert(at == std::string::npos || tensor.name.starts_with("mtp.")
                     ? tensor.name
                     : tensor.name.substr(tensor.name.find('.', at) + 1));
  }
  return names;
}

// ModelOpt's _default_disabled_quantizer_cfg, and the modules_to_not_convert of published fp8
// checkpoints (GLM-5-FP8: eh_proj, indexer weights).
TEST(Precision, RoutersAndSmallMatricesOfEveryFamilyAreKept) {
  EXPECT_EQ(kept(R"({"model_type": "mixtral", "num_hidden_layers": 1, "hidden_size": 8,
"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 8, "vocab_size": 64,
"num_local_experts": 2})"),
            (std::set<std::string>{"model.embed_tokens.weight", "lm_head.weight",
                                   "block_sparse_moe.gate.weight"}));
  EXPECT_EQ(
      kept(R"({"model_type": "gpt_oss", "num_hidden_layers": 1, "hidden_size": 8,
"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 8, "vocab_size": 64,
"num_local_experts": 2, "attention_bias": true})"),
      (std::set<std::string>{"model.embed_tokens.weight", "lm_head.weight", "mlp.router.weight",
                             "mlp.experts.gate_up_proj_bias", "mlp.experts.down_proj_bias"}));
  EXPECT_EQ(kept(R"({"model_type": "qwen3_5_moe_text", "num_hidden_layers": 2, "hidden_size": 8,
"layer_types": ["linear_attention", "full_attention"], "mtp_num_hidden_layers": 1,
"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 64,
"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 2,
"linear_value_head_dim": 2, "linear_conv_kernel_dim": 4, "num_experts": 2,
"moe_intermediate_size": 4, "shared_expert_intermediate_size": 4})"),
            (std::set<std::string>{
                "model.embed_tokens.weight", "lm_head.weight", "linear_attn.conv1d.weight",
                "mlp.gate.weight", "mlp.shared_expert_gate.weight", "mtp.fc.weight",
                "mtp.layers.0.mlp.gate.weight", "mtp.layers.0.mlp.shared_expert_gate.weight"}));
  EXPECT_EQ(kept(R"({"model_type": "deepseek_v32", "num_hidden_layers": 1, "hidden_size": 8,
"num_nextn_predict_layers": 1, "num_attention_heads": 2, "q_lora_rank": 4, "kv_lora_rank": 2,
"qk_nope_head_dim": 2, "qk_rope_head_dim": 2, "v_head_dim": 2, "index_n_heads": 2,
"index_head_dim": 2, "intermediate_size": 8, "first_k_dense_replace": 0, "n_routed_experts": 2,
"n_shared_experts": 1, "moe_intermediate_size": 4, "vocab_size": 64})"),
            (std::set<std::string>{"model.embed_tokens.weight", "lm_head.weight", "mlp.gate.weight",
                                   "self_attn.indexer.weights_proj.weight", "embed_tokens.weight",
                                   "eh_proj.weight", "shared_head.head.weight"}));
}

// ---- Buffers of quantised weights

constexpr const char* kFused = R"({"model_type": "qwen3_moe", "num_hidden_layers": 2,
"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
"intermediate_size": 32, "vocab_size": 64, "num_experts": 4, "moe_intermediate_size": 32,
"mlp_only_layers": [0]})";

std::map<std::string, std::string> buffers(const Model& model, const Layout& layout) {
  std::map<std::string, std::string> by_tensor;
  for (size_t t = 0; t < model.tensors.size(); ++t) {
    by_tensor[model.tensors[t].name] = layout.tensor_buffer.at(t);
  }
  return by_tensor;
}

TEST(Precision, QuantisedWeightsStayInTheirBuffers) {
  const Model model = parse_model(kFused, "c/config.json");
  for (const char* quant : {"fp8_block", "mxfp8", "fp8", "nvfp4"}) {
    Model moved = model;
    Layout train = load_layout("megatron:fused=on", model, Side::kTrain, 0);
    Layout gen = load_layout(std::string("vllm:fused=on,quant=") + quant, model, Side::kGen, 1);
    const auto train_before = buffers(model, train), gen_before = buffers(model, gen);
    const std::vector<Cast> casts = apply_casts(moved, train, gen);
    const auto train_after = buffers(moved, train), gen_after = buffers(moved, gen);
    ASSERT_GT(moved.tensors.size(), model.tensors.size());
    for (size_t t = 0; t < moved.tensors.size(); ++t) {
      const std::string& name = moved.tensors[t].name;
      const bool companion = casts[t].source >= 0;
      EXPECT_EQ(train_after.at(name), companion ? name : train_before.at(name));
      EXPECT_EQ(gen_after.at(name), companion ? name : gen_before.at(name));
    }
  }
}

TEST(Precision, ABufferQuantisedInPartIsRefused) {
  const auto cast = [](const std::string& gen_spec) {
    Model model = parse_model(kFused, "c/config.json");
    Layout train = load_layout("megatron:tp=1", model, Side::kTrain, 0);
    Layout gen = load_layout(gen_spec, model, Side::kGen, 1);
    apply_casts(model, train, gen);
  };
  EXPECT_EQ(error_of([&] { cast("vllm:quant=fp8,fused=on,skip=*q_proj*"); }),
            "layout 'vllm:quant=fp8,fused=on,skip=*q_proj*', tensor "
            "model.layers.0.self_attn.k_proj.weight: found fp8_e4m3 in the buffer of "
            "model.layers.0.self_attn.q_proj.weight, which is bf16, expected one dtype, as they "
            "are fused, or fused=off");
  cast("vllm:quant=fp8,skip=*q_proj*");
  cast("vllm:quant=fp8,fused=on,skip=*self_attn*");
}

TEST(Precision, SkipPatternsHaveToNameATensor) {
  const Model model = parse_model(kFused, "c/config.json");
  const std::string file =
      R"({"default": {"mesh": {"axes": ["tp"], "sizes": [1]}, "placements": ["replicate"]},
"quant": {"format": "fp8", "skip": ["*no_such*"]}})";
  for (const std::string& spec : {std::string("vllm:quant=fp8,skip=*no_such*"), file}) {
    expect_layout_refused(spec, model, Side::kGen,
                          {"key skip", "*no_such*", "some tensor matches"});
  }
}

TEST(Precision, KeysOfDtypesMayStandAlone) {
  const Model model = parse_model(kFused, "c/config.json");
  for (const char* keys : {"quant=fp8", "dtype=fp32", "scales=whole"}) {
    const Layout layout = load_layout(std::string("vllm:") + keys, model, Side::kGen, 3);
    EXPECT_EQ(layout.ranks, std::vector<int32_t>{3}) << keys;
  }
}

}  // namespace
}  // namespace refit
