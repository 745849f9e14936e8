#include "sim/model/architecture.h"

#include <algorithm>
#include <initializer_list>

namespace refit {
namespace {

constexpr auto kReplicated = Role::kReplicated, kVocab = Role::kVocab, kColumn = Role::kColumn,
               kKvColumn = Role::kKvColumn, kRow = Role::kRow, kExpertColumn = Role::kExpertColumn,
               kExpertRow = Role::kExpertRow, kMtpColumn = Role::kMtpColumn,
               kMtpFcColumn = Role::kMtpFcColumn;
constexpr bool kFfn = true;

const TensorRows kEmbedding = {{"model.embed_tokens.weight", "vocab_size, hidden_size", kVocab}};

const TensorRows kHead = {
    {"model.norm.weight", "hidden_size", kReplicated},
    {"lm_head.weight", "vocab_size, hidden_size", kVocab, "!tie_word_embeddings"}};

const TensorRows kNorms = {{"input_layernorm.weight", "hidden_size", kReplicated},
                           {"post_attention_layernorm.weight", "hidden_size", kReplicated}};

// Attention with grouped queries.
const TensorRows kGqa = {
    {"self_attn.q_proj.weight", "num_attention_heads*head_dim, hidden_size", kColumn},
    {"self_attn.k_proj.weight", "num_key_value_heads*head_dim, hidden_size", kKvColumn},
    {"self_attn.v_proj.weight", "num_key_value_heads*head_dim, hidden_size", kKvColumn},
    {"self_attn.o_proj.weight", "hidden_size, num_attention_heads*head_dim", kRow}};

const TensorRows kGqaBias = {
    {"self_attn.q_proj.bias", "num_attention_heads*head_dim", kColumn, "attention_bias"},
    {"self_attn.k_proj.bias", "num_key_value_heads*head_dim", kKvColumn, "attention_bias"},
    {"self_attn.v_proj.bias", "num_key_value_heads*head_dim", kKvColumn, "attention_bias"},
    {"self_attn.o_proj.bias", "hidden_size", kReplicated, "attention_bias"}};

const TensorRows kQwen2Bias = {
    {"self_attn.q_proj.bias", "num_attention_heads*head_dim", kColumn},
    {"self_attn.k_proj.bias", "num_key_value_heads*head_dim", kKvColumn},
    {"self_attn.v_proj.bias", "num_key_value_heads*head_dim", kKvColumn}};

const TensorRows kQkNorm = {{"self_attn.q_norm.weight", "head_dim", kReplicated},
                            {"self_attn.k_norm.weight", "head_dim", kReplicated}};

// Multi-head latent attention: queries and keys are expanded from low-rank vectors that every rank
// computes.
const TensorRows kMla = {
    {"self_attn.q_proj.weight",
     "num_attention_heads*qk_nope_head_dim+num_attention_heads*qk_rope_head_dim, hidden_size",
     kColumn, "!q_lora_rank"},
    {"self_attn.q_a_proj.weight", "q_lora_rank, hidden_size", kReplicated, "q_lora_rank"},
    {"self_attn.q_a_proj.bias", "q_lora_rank", kReplicated, "q_lora_rank attention_bias"},
    {"self_attn.q_a_layernorm.weight", "q_lora_rank", kReplicated, "q_lora_rank"},
    {"self_attn.q_b_proj.weight",
     "num_attention_heads*qk_nope_head_dim+num_attention_heads*qk_rope_head_dim, q_lora_rank",
     kColumn, "q_lora_rank"},
    {"self_attn.kv_a_proj_with_mqa.weight", "kv_lora_rank+qk_rope_head_dim, hidden_size",
     kReplicated},
    {"self_attn.kv_a_proj_with_mqa.bias", "kv_lora_rank+qk_rope_head_dim", kReplicated,
     "attention_bias"},
    {"self_attn.kv_a_layernorm.weight", "kv_lora_rank", kReplicated},
    {"self_attn.kv_b_proj.weight",
     "num_attention_heads*qk_nope_head_dim+num_attention_heads*v_head_dim, kv_lora_rank", kColumn},
    {"self_attn.o_proj.weight", "hidden_size, num_attention_heads*v_head_dim", kRow},
    {"self_attn.o_proj.bias", "hidden_size", kReplicated, "attention_bias"}};

// Sparse attention's index, which no framework cuts.
const TensorRows kIndexer = {
    {"self_attn.indexer.wq_b.weight", "index_n_heads*index_head_dim, q_lora_rank", kReplicated},
    {"self_attn.indexer.wk.weight", "index_head_dim, hidden_size", kReplicated},
    {"self_attn.indexer.k_norm.weight", "index_head_dim", kReplicated},
    {"self_attn.indexer.k_norm.bias", "index_head_dim", kReplicated},
    {"self_attn.indexer.weights_proj.weight", "index_n_heads, hidden_size", kReplicated}};

// Qwen3-Next and Qwen3.5: every query head has a gate, which stands behind it.
const TensorRows kGatedGqa = {
    {"self_attn.q_proj.weight",
     "num_attention_heads*head_dim+num_attention_heads*head_dim, hidden_size", kColumn, "full"},
    {"self_attn.k_proj.weight", "num_key_value_heads*head_dim, hidden_size", kKvColumn, "full"},
    {"self_attn.v_proj.weight", "num_key_value_heads*head_dim, hidden_size", kKvColumn, "full"},
    {"self_attn.o_proj.weight", "hidden_size, num_attention_heads*head_dim", kRow, "full"},
    {"self_attn.q_norm.weight", "head_dim", kReplicated, "full"},
    {"self_attn.k_norm.weight", "head_dim", kReplicated, "full"}};

// Gated delta net, a kind of linear attention: queries, keys and values stand one block after the
// other in the convolution, and in Qwen3.5 in the projection too.
const TensorRows kDeltaNet = {
    {"linear_attn.conv1d.weight",
     "linear_num_key_heads*linear_key_head_dim|linear_num_key_heads*linear_key_head_dim|"
     "linear_num_value_heads*linear_value_head_dim, 1, linear_conv_kernel_dim",
     kColumn, "linear"},
    {"linear_attn.A_log", "linear_num_value_heads", kColumn, "linear"},
    {"linear_attn.dt_bias", "linear_num_value_heads", kColumn, "linear"},
    {"linear_attn.norm.weight", "linear_value_head_dim", kReplicated, "linear"},
    {"linear_attn.out_proj.weight", "hidden_size, linear_num_value_heads*linear_value_head_dim",
     kRow, "linear"}};

// In one projection by key head: its query, its key, its values and their gates.
const TensorRows kQwen3NextInputs = {
    {"linear_attn.in_proj_qkvz.weight",
     "linear_num_key_heads*linear_key_head_dim+linear_num_key_heads*linear_key_head_dim+"
     "linear_num_value_heads*linear_value_head_dim+linear_num_value_heads*linear_value_head_dim, "
     "hidden_size",
     kColumn, "linear"},
    {"linear_attn.in_proj_ba.weight", "linear_num_value_heads*2, hidden_size", kColumn, "linear"}};

const TensorRows kQwen35Inputs = {
    {"linear_attn.in_proj_qkv.weight",
     "linear_num_key_heads*linear_key_head_dim|linear_num_key_heads*linear_key_head_dim|"
     "linear_num_value_heads*linear_value_head_dim, hidden_size",
     kColumn, "linear"},
    {"linear_attn.in_proj_z.weight", "linear_num_value_heads*linear_value_head_dim, hidden_size",
     kColumn, "linear"},
    {"linear_attn.in_proj_b.weight", "linear_num_value_heads, hidden_size", kColumn, "linear"},
    {"linear_attn.in_proj_a.weight", "linear_num_value_heads, hidden_size", kColumn, "linear"}};

const TensorRows kMlp = {
    {"mlp.gate_proj.weight", "intermediate_size, hidden_size", kColumn, "dense", kFfn},
    {"mlp.up_proj.weight", "intermediate_size, hidden_size", kColumn, "dense", kFfn},
    {"mlp.down_proj.weight", "hidden_size, intermediate_size", kRow, "dense", kFfn}};

const TensorRows kMlpBias = {{"mlp.gate_proj.bias", "intermediate_size", kColumn, "mlp_bias"},
                             {"mlp.up_proj.bias", "intermediate_size", kColumn, "mlp_bias"},
                             {"mlp.down_proj.bias", "hidden_size", kReplicated, "mlp_bias"}};

const TensorRows kQwenExperts = {
    {"mlp.gate.weight", "num_experts, hidden_size", kReplicated, "moe"},
    {"mlp.experts.gate_proj.weight", "num_experts, moe_intermediate_size, hidden_size",
     kExpertColumn, "moe", kFfn},
    {"mlp.experts.up_proj.weight", "num_experts, moe_intermediate_size, hidden_size", kExpertColumn,
     "moe", kFfn},
    {"mlp.experts.down_proj.weight", "num_experts, hidden_size, moe_intermediate_size", kExpertRow,
     "moe", kFfn}};

// All experts in one tensor, gates and ups one block after the other.
const TensorRows kQwen35Experts = {
    {"mlp.gate.weight", "num_experts, hidden_size", kReplicated, "moe"},
    {"mlp.experts.gate_up_proj",
     "num_experts, moe_intermediate_size|moe_intermediate_size, hidden_size", kExpertColumn, "moe",
     kFfn},
    {"mlp.experts.down_proj", "num_experts, hidden_size, moe_intermediate_size", kExpertRow, "moe",
     kFfn}};

const TensorRows kQwenSharedExpert = {
    {"mlp.shared_expert.gate_proj.weight", "shared_expert_intermediate_size, hidden_size", kColumn,
     "moe"},
    {"mlp.shared_expert.up_proj.weight", "shared_expert_intermediate_size, hidden_size", kColumn,
     "moe"},
    {"mlp.shared_expert.down_proj.weight", "hidden_size, shared_expert_intermediate_size", kRow,
     "moe"},
    {"mlp.shared_expert_gate.weight", "1, hidden_size", kReplicated, "moe"}};

// Input features come first, and output features alternate between gate and up, so that a cut
// leaves pairs whole.
const TensorRows kGptOss = {
    {"self_attn.sinks", "num_attention_heads", kColumn},
    {"mlp.router.weight", "num_local_experts, hidden_size", kReplicated},
    {"mlp.router.bias", "num_local_experts", kReplicated},
    {"mlp.experts.gate_up_proj", "num_local_experts, hidden_size, intermediate_size*2", kExpertRow,
     "", kFfn},
    {"mlp.experts.gate_up_proj_bias", "num_local_experts, intermediate_size*2", kExpertColumn, "",
     kFfn},
    {"mlp.experts.down_proj", "num_local_experts, intermediate_size, hidden_size", kExpertColumn,
     "", kFfn},
    {"mlp.experts.down_proj_bias", "num_local_experts, hidden_size", kExpertRow, "", kFfn}};

const TensorRows kMixtralExperts = {
    {"block_sparse_moe.gate.weight", "num_local_experts, hidden_size", kReplicated, "moe"},
    {"block_sparse_moe.experts.w1.weight", "num_local_experts, intermediate_size, hidden_size",
     kExpertColumn, "moe", kFfn},
    {"block_sparse_moe.experts.w3.weight", "num_local_experts, intermediate_size, hidden_size",
     kExpertColumn, "moe", kFfn},
    {"block_sparse_moe.experts.w2.weight", "num_local_experts, hidden_size, intermediate_size",
     kExpertRow, "moe", kFfn}};

// Shared experts run on every token and are no part of NeMo RL's bulk: not `ffn`.
const TensorRows kDeepseekExperts = {
    {"mlp.gate.weight", "n_routed_experts, hidden_size", kReplicated, "moe"},
    {"mlp.gate.e_score_correction_bias", "n_routed_experts", kReplicated, "moe", !kFfn, true},
    {"mlp.experts.gate_proj.weight", "n_routed_experts, moe_intermediate_size, hidden_size",
     kExpertColumn, "moe", kFfn},
    {"mlp.experts.up_proj.weight", "n_routed_experts, moe_intermediate_size, hidden_size",
     kExpertColumn, "moe", kFfn},
    {"mlp.experts.down_proj.weight", "n_routed_experts, hidden_size, moe_intermediate_size",
     kExpertRow, "moe", kFfn},
    {"mlp.shared_experts.gate_proj.weight", "n_shared_experts*moe_intermediate_size, hidden_size",
     kColumn, "moe n_shared_experts"},
    {"mlp.shared_experts.up_proj.weight", "n_shared_experts*moe_intermediate_size, hidden_size",
     kColumn, "moe n_shared_experts"},
    {"mlp.shared_experts.down_proj.weight", "hidden_size, n_shared_experts*moe_intermediate_size",
     kRow, "moe n_shared_experts"}};

const TensorRows kDeepseekMtp = {{"embed_tokens.weight", "vocab_size, hidden_size", kVocab},
                                 {"enorm.weight", "hidden_size", kReplicated},
                                 {"hnorm.weight", "hidden_size", kReplicated},
                                 {"eh_proj.weight", "hidden_size, 2*hidden_size", kMtpColumn},
                                 {"shared_head.norm.weight", "hidden_size", kReplicated},
                                 {"shared_head.head.weight", "vocab_size, hidden_size", kVocab}};

// GLM's layer predicts with the embedding and the head of the model.
const TensorRows kGlmMtp = {{"enorm.weight", "hidden_size", kReplicated},
                            {"hnorm.weight", "hidden_size", kReplicated},
                            {"eh_proj.weight", "hidden_size, 2*hidden_size", kMtpColumn},
                            {"shared_head.norm.weight", "hidden_size", kReplicated}};

const TensorRows kQwen35Mtp = {{"mtp.fc.weight", "hidden_size, 2*hidden_size", kMtpFcColumn},
                               {"mtp.pre_fc_norm_embedding.weight", "hidden_size", kReplicated},
                               {"mtp.pre_fc_norm_hidden.weight", "hidden_size", kReplicated},
                               {"mtp.norm.weight", "hidden_size", kReplicated}};

TensorRows join(std::initializer_list<TensorRows> parts) {
  TensorRows rows;
  for (const TensorRows& part : parts) rows.insert(rows.end(), part.begin(), part.end());
  return rows;
}

std::vector<Family> make_families() {
  const std::vector<std::pair<std::string_view, std::string_view>> gqa_defaults = {
      {"num_key_value_heads", "num_attention_heads"},
      {"head_dim", "hidden_size/num_attention_heads"}};
  const MoeRule qwen_moe = {.experts = "num_experts",
                            .first = "",
                            .every = "decoder_sparse_step",
                            .phase = 1,
                            .dense = "mlp_only_layers"};
  const MoeRule deepseek_moe = {.experts = "n_routed_experts",
                                .first = "first_k_dense_replace",
                                .every = "moe_layer_freq",
                                .phase = 0,
                                .dense = ""};
  return {
      {.name = "llama",
       .model_types = {"llama", "mistral"},
       .defaults = gqa_defaults,
       .moe = {},
       .embedding = kEmbedding,
       .layer = join({kNorms, kGqa, kGqaBias, kMlp, kMlpBias}),
       .head = kHead},
      {.name = "qwen2",
       .model_types = {"qwen2"},
       .defaults = gqa_defaults,
       .moe = {},
       .embedding = kEmbedding,
       .layer = join({kNorms, kGqa, kQwen2Bias, kMlp}),
       .head = kHead},
      {.name = "qwen3",
       .model_types = {"qwen3"},
       .defaults = gqa_defaults,
       .moe = {},
       .embedding = kEmbedding,
       .layer = join({kNorms, kGqa, kGqaBias, kQkNorm, kMlp}),
       .head = kHead},
      {.name = "qwen3_moe",
       .model_types = {"qwen3_moe"},
       .defaults = gqa_defaults,
       .moe = qwen_moe,
       .embedding = kEmbedding,
       .layer = join({kNorms, kGqa, kGqaBias, kQkNorm, kMlp, kQwenExperts}),
       .head = kHead},
      {.name = "mixtral",
       .model_types = {"mixtral"},
       .defaults = gqa_defaults,
       .moe = {.experts = "num_local_experts", .first = "", .every = "", .phase = 0, .dense = ""},
       .embedding = kEmbedding,
       .layer = join({kNorms, kGqa, kMixtralExperts}),
       .head = kHead},
      {.name = "deepseek_v3",
       .model_types = {"deepseek_v3", "kimi_k2"},
       .defaults = {},
       .moe = deepseek_moe,
       .embedding = kEmbedding,
       .layer = join({kNorms, kMla, kMlp, kDeepseekExperts}),
       .head = kHead,
       .mtp = kDeepseekMtp},
      {.name = "deepseek_v32",
       .model_types = {"deepseek_v32"},
       .defaults = {},
       .moe = deepseek_moe,
       .embedding = kEmbedding,
       .layer = join({kNorms, kMla, kIndexer, kMlp, kDeepseekExperts}),
       .head = kHead,
       .mtp = kDeepseekMtp},
      {.name = "glm_moe_dsa",
       .model_types = {"glm_moe_dsa"},
       .defaults = {},
       .moe = deepseek_moe,
       .embedding = kEmbedding,
       .layer = join({kNorms, kMla, kIndexer, kMlp, kDeepseekExperts}),
       .head = kHead,
       .mtp = kGlmMtp},
      {.name = "qwen3_next",
       .model_types = {"qwen3_next"},
       .defaults = gqa_defaults,
       .moe = qwen_moe,
       .embedding = kEmbedding,
       .layer = join(
           {kNorms, kGatedGqa, kQwen3NextInputs, kDeltaNet, kMlp, kQwenExperts, kQwenSharedExpert}),
       .head = kHead},
      {.name = "qwen3_5",
       .model_types = {"qwen3_5", "qwen3_5_text"},
       .defaults = gqa_defaults,
       .moe = {},
       .embedding = kEmbedding,
       .layer = join({kNorms, kGatedGqa, kQwen35Inputs, kDeltaNet, kMlp}),
       .head = kHead,
       .mtp_apart = kQwen35Mtp},
      {.name = "qwen3_5_moe",
       .model_types = {"qwen3_5_moe", "qwen3_5_moe_text"},
       .defaults = gqa_defaults,
       .moe = qwen_moe,
       .embedding = kEmbedding,
       .layer = join(
           {kNorms, kGatedGqa, kQwen35Inputs, kDeltaNet, kMlp, kQwen35Experts, kQwenSharedExpert}),
       .head = kHead,
       .mtp_apart = kQwen35Mtp},
      {.name = "gpt_oss",
       .model_types = {"gpt_oss"},
       .defaults = gqa_defaults,
       .moe = {},
       .embedding = kEmbedding,
       .layer = join({kNorms, kGqa, kGqaBias, kGptOss}),
       .head = kHead},
  };
}

}  // namespace

std::span<const Family> families() {
  static const std::vector<Family> table = make_families();
  return table;
}

const Family* find_family(std::string_view name) {
  for (const Family& family : families()) {
    if (family.name == name || std::ranges::count(family.model_types, name) > 0) return &family;
  }
  return nullptr;
}

std::string list_families() {
  std::string list;
  for (const Family& family : families()) {
    for (std::string_view type : family.model_types) {
      if (!list.empty()) list += ", ";
      list += type;
    }
  }
  return list;
}

}  // namespace refit
