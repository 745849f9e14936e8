#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/sim/layout/refused.h"
#include "tests/sim/layout/small_model.h"

namespace refit {
namespace {

/// Hidden 4, four query heads and two KV heads of 2 rows: q [8, 4], k and v [4, 4].
Model qwen(const std::string& more = "") {
  return parse_model(R"({"model_type": "qwen3_moe", "num_hidden_layers": 2, "hidden_size": 4,
"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2, "intermediate_size": 12,
"vocab_size": 64, "num_experts": 4, "moe_intermediate_size": 6, "mlp_only_layers": [0])" +
                         more + "}",
                     "qwen/config.json");
}

/// "[0:4, 0:4]@16" per shard, offsets in elements; strides where they are not the box's own.
std::string lies(const Model& model, const Layout& layout, const std::string& tensor,
                 int32_t rank) {
  for (size_t t = 0; t < model.tensors.size(); ++t) {
    if (model.tensors[t].name != tensor) continue;
    const RankMap& map = layout.maps[static_cast<size_t>(layout.tensor_map[t])];
    std::string text;
    const auto* shards = map.find(rank);
    for (const Shard& shard : shards != nullptr ? *shards : std::vector<Shard>{}) {
      text += fmt::format("{}{}@{}", text.empty() ? "" : " ", print_box(shard.box), shard.offset);
      if (shard.stride == dense_strides(shard.box.extents())) continue;
      for (int dim = 0; dim < shard.stride.count; ++dim) {
        text += fmt::format("{}{}", dim == 0 ? " by " : ",", shard.stride[dim]);
      }
    }
    return text;
  }
  return "no such tensor";
}

std::string buffer(const Model& model, const Layout& layout, const std::string& tensor) {
  for (size_t t = 0; t < model.tensors.size(); ++t) {
    if (model.tensors[t].name == tensor) return layout.tensor_buffer.at(t);
  }
  return "no such tensor";
}

Layout load(const std::string& spec, const Model& model) {
  return load_layout(spec, model, Side::kGen, 0);
}

const std::string kAttention = "model.layers.0.self_attn.", kMlp = "model.layers.0.mlp.",
                  kExperts = "model.layers.1.mlp.experts.";

TEST(Fused, EnginesPutTheirPartsOneAfterTheOther) {
  const Model model = qwen();
  const Layout layout = load("vllm:tp=2,fused=on", model);
  // Rank 1: q rows 4-7, then k rows 2-3 behind 4 * 4 elements, then v behind 2 * 4 more.
  EXPECT_EQ(lies(model, layout, kAttention + "q_proj.weight", 1), "[4:8, 0:4]@0");
  EXPECT_EQ(lies(model, layout, kAttention + "k_proj.weight", 1), "[2:4, 0:4]@16");
  EXPECT_EQ(lies(model, layout, kAttention + "v_proj.weight", 1), "[2:4, 0:4]@24");
  EXPECT_EQ(lies(model, layout, kMlp + "gate_proj.weight", 1), "[6:12, 0:4]@0");
  EXPECT_EQ(lies(model, layout, kMlp + "up_proj.weight", 1), "[6:12, 0:4]@24");
  for (const char* part : {"q_proj", "k_proj", "v_proj"}) {
    EXPECT_EQ(buffer(model, layout, kAttention + part + ".weight"), kAttention + "qkv_proj.weight");
  }
  EXPECT_EQ(buffer(model, layout, kMlp + "up_proj.weight"), kMlp + "gate_up_proj.weight");
  EXPECT_EQ(buffer(model, layout, kMlp + "down_proj.weight"), kMlp + "down_proj.weight");
  // w13 [4, 2 * 3, 4]: of every expert 3 rows of gate, then 3 of up.
  EXPECT_EQ(lies(model, layout, kExperts + "gate_proj.weight", 1), "[0:4, 3:6, 0:4]@0 by 24,4,1");
  EXPECT_EQ(lies(model, layout, kExperts + "up_proj.weight", 1), "[0:4, 3:6, 0:4]@12 by 24,4,1");
  EXPECT_EQ(lies(model, layout, kExperts + "down_proj.weight", 1), "[0:4, 0:4, 3:6]@0");
  EXPECT_EQ(buffer(model, layout, kExperts + "gate_proj.weight"), kExperts + "w13_weight");
  EXPECT_EQ(buffer(model, layout, kExperts + "down_proj.weight"), kExperts + "w2_weight");
}

TEST(Fused, WholeExpertsAndSharedKvHeads) {
  const Model model = qwen();
  const Layout layout = load("vllm:tp=4,ep=on,fused=on", model);
  // Four ranks, two KV heads: rank 1 shares the first. w13 [1, 12, 4].
  EXPECT_EQ(lies(model, layout, kAttention + "q_proj.weight", 1), "[2:4, 0:4]@0");
  EXPECT_EQ(lies(model, layout, kAttention + "k_proj.weight", 1), "[0:2, 0:4]@8");
  EXPECT_EQ(lies(model, layout, kAttention + "v_proj.weight", 1), "[0:2, 0:4]@16");
  EXPECT_EQ(lies(model, layout, kExperts + "gate_proj.weight", 3), "[3:4, 0:6, 0:4]@0 by 48,4,1");
  EXPECT_EQ(lies(model, layout, kExperts + "up_proj.weight", 3), "[3:4, 0:6, 0:4]@24 by 48,4,1");
}

TEST(Fused, RedundantExpertsHaveSlotsOfTheBuffer) {
  // Slots 0, 1, 2 | 3, 0, 1: rank 1 has experts 3, 0, 1 in w13 [3, 12, 4].
  const Model model = qwen();
  const Layout layout = load("vllm:tp=2,ep=on,eplb=0|1|2|3|0|1,fused=on", model);
  EXPECT_EQ(lies(model, layout, kExperts + "up_proj.weight", 1),
            "[3:4, 0:6, 0:4]@24 by 48,4,1 [0:1, 0:6, 0:4]@72 by 48,4,1 [1:2, 0:6, 0:4]@120 by "
            "48,4,1");
}

TEST(Fused, MegatronKeepsQueriesKeysAndValuesByGroup) {
  // 16 rows: q 0-3, k 0-1, v 0-1, q 4-7, k 2-3, v 2-3.
  const Model model = qwen();
  const Layout one = load("megatron:fused=on", model);
  EXPECT_EQ(lies(model, one, kAttention + "q_proj.weight", 0), "[0:4, 0:4]@0 [4:8, 0:4]@32");
  EXPECT_EQ(lies(model, one, kAttention + "k_proj.weight", 0), "[0:2, 0:4]@16 [2:4, 0:4]@48");
  EXPECT_EQ(lies(model, one, kAttention + "v_proj.weight", 0), "[0:2, 0:4]@24 [2:4, 0:4]@56");
  EXPECT_EQ(buffer(model, one, kAttention + "k_proj.weight"),
            "decoder.layers.0.self_attention.linear_qkv.weight");
  EXPECT_EQ(buffer(model, one, kAttention + "o_proj.weight"),
            "decoder.layers.0.self_attention.linear_proj.weight");
  EXPECT_EQ(buffer(model, one, kMlp + "gate_proj.weight"),
            "decoder.layers.0.mlp.linear_fc1.weight");
  EXPECT_EQ(buffer(model, one, kExperts + "up_proj.weight"),
            "decoder.layers.1.mlp.experts.linear_fc1.weight");
  const Layout two = load("megatron:tp=2,fused=on", model);
  EXPECT_EQ(lies(model, two, kAttention + "q_proj.weight", 1), "[4:8, 0:4]@0");
  EXPECT_EQ(lies(model, two, kAttention + "k_proj.weight", 1), "[2:4, 0:4]@16");
  EXPECT_EQ(lies(model, two, kAttention + "v_proj.weight", 1), "[2:4, 0:4]@24");
  EXPECT_EQ(lies(model, two, kMlp + "up_proj.weight", 1), "[6:12, 0:4]@24");
}

TEST(Fused, MoreMegatronRanksThanKvHeadsCutThroughGroups) {
  // Four rows each: rank 1 has k and v of the first group and no query; with and without buffers.
  const Model model = qwen();
  for (const char* spec : {"megatron:tp=4,etp=1,fused=on", "megatron:tp=4,etp=1"}) {
    const Layout layout = load(spec, model);
    const bool fused = !layout.tensor_buffer.empty();
    const std::string q = kAttention + "q_proj.weight", k = kAttention + "k_proj.weight";
    EXPECT_EQ(lies(model, layout, q, 0), "[0:4, 0:4]@0");
    EXPECT_EQ(lies(model, layout, q, 1), "");
    EXPECT_EQ(lies(model, layout, q, 2), "[4:8, 0:4]@0");
    EXPECT_EQ(lies(model, layout, k, 0), "");
    EXPECT_EQ(lies(model, layout, k, 1), "[0:2, 0:4]@0");
    EXPECT_EQ(lies(model, layout, kAttention + "v_proj.weight", 3),
              fused ? "[2:4, 0:4]@8" : "[2:4, 0:4]@0");
  }
}

TEST(Fused, GatesStandBehindTheQueriesOfTheirGroup) {
  // Qwen3.5: q_proj has of every head 2 rows of query, then 2 of gate: [16, 4]. linear_qkv of group
  // 0: queries 0-1 and 4-5, gates 2-3 and 6-7, k 0-1, v 0-1. 24 rows over 4: 6 each.
  const Model model = parse_model(R"({"model_type": "qwen3_5_text", "num_hidden_layers": 1,
"layer_types": ["full_attention"], "hidden_size": 4, "num_attention_heads": 4,
"num_key_value_heads": 2, "head_dim": 2, "intermediate_size": 8, "vocab_size": 64})",
                                  "c/config.json");
  const Layout one = load("megatron:fused=on", model);
  EXPECT_EQ(lies(model, one, kAttention + "q_proj.weight", 0),
            "[0:2, 0:4]@0 [4:6, 0:4]@8 [2:4, 0:4]@16 [6:8, 0:4]@24 "
            "[8:10, 0:4]@48 [12:14, 0:4]@56 [10:12, 0:4]@64 [14:16, 0:4]@72");
  EXPECT_EQ(lies(model, one, kAttention + "v_proj.weight", 0), "[0:2, 0:4]@40 [2:4, 0:4]@88");
  const Layout four = load("megatron:tp=4", model);
  EXPECT_EQ(lies(model, four, kAttention + "q_proj.weight", 0),
            "[0:2, 0:4]@0 [4:6, 0:4]@8 [2:4, 0:4]@16");
  EXPECT_EQ(lies(model, four, kAttention + "q_proj.weight", 1), "[6:8, 0:4]@0");
  EXPECT_EQ(lies(model, four, kAttention + "k_proj.weight", 1), "[0:2, 0:4]@0");
}

TEST(Fused, SharedExpertsOfEveryName) {
  // Qwen's stand under "shared_expert", DeepSeek's under "shared_experts"; 8 rows over two ranks.
  const std::string sizes = R"(, "num_hidden_layers": 1, "hidden_size": 3, "num_attention_heads": 2,
"vocab_size": 64, "moe_intermediate_size": 8, )";
  const Model qwen_next = parse_model(R"({"model_type": "qwen3_next")" + sizes + R"(
"layer_types": ["full_attention"], "num_key_value_heads": 2, "head_dim": 2, "num_experts": 2,
"shared_expert_intermediate_size": 8})",
                                      "c/config.json");
  const Model deepseek = parse_model(R"({"model_type": "deepseek_v3")" + sizes + R"(
"kv_lora_rank": 2, "qk_nope_head_dim": 2, "qk_rope_head_dim": 1, "v_head_dim": 2,
"n_routed_experts": 2, "n_shared_experts": 1})",
                                     "c/config.json");
  for (const auto& [model, name] : {std::pair(&qwen_next, kMlp + "shared_expert."),
                                    std::pair(&deepseek, kMlp + "shared_experts.")}) {
    const Layout megatron = load("megatron:tp=2,fused=on", *model);
    EXPECT_EQ(lies(*model, megatron, name + "gate_proj.weight", 1), "[4:8, 0:3]@0");
    EXPECT_EQ(lies(*model, megatron, name + "up_proj.weight", 1), "[4:8, 0:3]@12");
    for (const char* part : {"gate_proj.weight", "up_proj.weight"}) {
      EXPECT_EQ(buffer(*model, megatron, name + part),
                "decoder.layers.0.mlp.shared_experts.linear_fc1.weight");
    }
    EXPECT_EQ(buffer(*model, megatron, name + "down_proj.weight"),
              "decoder.layers.0.mlp.shared_experts.linear_fc2.weight");
    EXPECT_EQ(buffer(*model, load("vllm:tp=2,fused=on", *model), name + "up_proj.weight"),
              name + "gate_up_proj.weight");
  }
}

TEST(Fused, LowRankProjectionsOfLatentAttention) {
  const Model model = parse_model(R"({"model_type": "deepseek_v3", "num_hidden_layers": 1,
"hidden_size": 4, "num_attention_heads": 4, "vocab_size": 64, "q_lora_rank": 3, "kv_lora_rank": 2,
"qk_nope_head_dim": 2, "qk_rope_head_dim": 1, "v_head_dim": 2, "intermediate_size": 8,
"n_routed_experts": 0})",
                                  "c/config.json");
  const Layout layout = load("vllm:tp=2,fused=on", model);
  EXPECT_EQ(lies(model, layout, kAttention + "kv_a_proj_with_mqa.weight", 1), "[0:3, 0:4]@12");
  EXPECT_EQ(buffer(model, layout, kAttention + "q_a_proj.weight"),
            kAttention + "fused_qkv_a_proj.weight");
  EXPECT_EQ(buffer(model, load("sglang:fused=on", model), kAttention + "q_a_proj.weight"),
            kAttention + "fused_qkv_a_proj_with_mqa.weight");
}

TEST(Fused, EveryCellOfEveryBufferHasOneElement) {
  // By brute force: the elements of all shards in a buffer lie apart, without gaps.
  const Model model = qwen(R"(, "attention_bias": true)");
  for (const char* spec :
       {"vllm:tp=2,dp=2,fused=on", "vllm:tp=4,pp=2,ep=on,fused=on", "sglang:tp=4,ep=2,fused=on",
        "megatron:fused=on", "megatron:tp=2,pp=2,ep=2,fused=on",
        "megatron:tp=4,etp=1,ep=4,fused=on", "vllm:tp=2,ep=on,eplb=0|1|2|3|0|1,fused=on"}) {
    const Layout layout = load(spec, model);
    std::map<std::pair<std::string, int32_t>, std::multiset<int64_t>> cells;
    for (size_t t = 0; t < model.tensors.size(); ++t) {
      const RankMap& map = layout.maps[static_cast<size_t>(layout.tensor_map[t])];
      for (const auto& [rank, shards] : map.shards) {
        for (const Shard& shard : shards) {
          std::vector<int64_t> offsets{shard.offset};
          for (int dim = 0; dim < shard.box.dims(); ++dim) {
            std::vector<int64_t> next;
            for (const int64_t offset : offsets) {
              for (int64_t i = 0; i < shard.box.extent(dim); ++i) {
                next.push_back(offset + i * shard.stride[dim]);
              }
            }
            offsets = std::move(next);
          }
          cells[{layout.tensor_buffer[t], rank}].insert(offsets.begin(), offsets.end());
        }
      }
    }
    for (const auto& [where, offsets] : cells) {
      int64_t expected = 0;
      for (const int64_t offset : offsets) {
        ASSERT_EQ(offset, expected++) << spec << " " << where.first << " rank " << where.second;
      }
    }
  }
}

TEST(Fused, ErrorsNameTheTensor) {
  Model mixed = qwen();
  for (Tensor& tensor : mixed.tensors) {
    if (tensor.name == kAttention + "v_proj.weight") tensor.dtype = Dtype::kFp32;
  }
  expect_layout_refused("vllm:fused=on", mixed, Side::kGen,
                        {kAttention + "v_proj.weight", "fp32", "one dtype"});
  EXPECT_NO_THROW(load("vllm:fused=off", mixed));
  expect_layout_refused("vllm:tp=2,fused=on+vllm:tp=2", qwen(), Side::kGen,
                        {"other buffers", "fused=off for all"});
  // A cut through a head: 4 query heads.
  for (const char* spec : {"vllm:tp=8", "megatron:tp=8,etp=1", "sglang:tp=8"}) {
    expect_layout_refused(
        spec, qwen(), Side::kGen,
        {kAttention + "q_proj.weight", "4 heads over tp=8", "cuts through a head"});
  }
  expect_layout_refused("fsdp:world=8,tp=8", qwen(), Side::kTrain, {"4 heads over tp=8"});
}

TEST(Hybrid, BlocksAreCutEachOnItsOwn) {
  // Two key heads of 5, four value heads of 3: in_proj_qkv has 10 + 10 + 12 rows of 20.
  const Model model = parse_model(R"({"model_type": "qwen3_5_text", "num_hidden_layers": 1,
"layer_types": ["linear_attention"], "hidden_size": 20, "num_attention_heads": 4,
"num_key_value_heads": 2, "head_dim": 6, "intermediate_size": 8, "vocab_size": 64,
"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 5,
"linear_value_head_dim": 3, "linear_conv_kernel_dim": 4})",
                                  "c/config.json");
  const std::string qkv = "model.layers.0.linear_attn.in_proj_qkv.weight";
  for (const char* spec : {"megatron:tp=2", "vllm:tp=2", "vllm:tp=2,fused=on"}) {
    const Layout layout = load(spec, model);
    EXPECT_EQ(lies(model, layout, qkv, 1), "[5:10, 0:20]@0 [15:20, 0:20]@100 [26:32, 0:20]@200");
    EXPECT_EQ(lies(model, layout, "model.layers.0.linear_attn.conv1d.weight", 0),
              "[0:5, 0:1, 0:4]@0 [10:15, 0:1, 0:4]@20 [20:26, 0:1, 0:4]@40");
    EXPECT_EQ(lies(model, layout, "model.layers.0.linear_attn.A_log", 1), "[2:4]@0");
    EXPECT_EQ(lies(model, layout, "model.layers.0.linear_attn.out_proj.weight", 1),
              "[0:20, 6:12]@0");
  }
  expect_layout_refused("vllm:tp=4", model, Side::kGen, {qkv, "2 heads over tp=4"});
  expect_layout_refused("fsdp:world=2,tp=2", model, Side::kGen, {"3 blocks over tp=2"});
}

}  // namespace
}  // namespace refit
