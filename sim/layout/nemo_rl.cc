#include "sim/layout/nemo_rl.h"

#include <fmt/format.h>

#include <string_view>

#include "base/error.h"

namespace refit {
namespace {

/// GPUs of both sides; colocated sides have the same.
struct Cluster {
  int32_t train = 0, gen = 0;
  bool colocated = true;
};

/// A number of at least one.
int32_t positive(const Recipe& recipe, std::string_view path, int32_t fallback) {
  const int32_t value = recipe.number(path, fallback);
  if (value < 1) fail(recipe.place(path), fmt::format("{}", value), "at least 1");
  return value;
}

Cluster read_cluster(const Recipe& recipe) {
  constexpr std::string_view kNodes = "cluster.num_nodes",
                             kGenNodes = "policy.generation.colocated.resources.num_nodes",
                             kGenGpus = "policy.generation.colocated.resources.gpus_per_node";
  const int32_t nodes = positive(recipe, kNodes, 1);
  const int32_t gpus = positive(recipe, "cluster.gpus_per_node", 1);
  Cluster cluster{nodes * gpus, nodes * gpus, true};
  if (!recipe.contains("policy.generation") || recipe.flag("policy.generation.colocated.enabled")) {
    return cluster;
  }
  cluster.colocated = false;
  if (nodes == 1) {
    cluster.gen = positive(recipe, kGenGpus, 0);
  } else {
    const int32_t gen_gpus = positive(recipe, kGenGpus, gpus);
    if (gen_gpus != gpus) {
      fail(recipe.place(kGenGpus), fmt::format("{}", gen_gpus),
           fmt::format("{}, those of a node: generation takes whole nodes", gpus));
    }
    cluster.gen = positive(recipe, kGenNodes, 0) * gpus;
  }
  cluster.train -= cluster.gen;
  if (cluster.train < 1) {
    fail(recipe.place(nodes == 1 ? kGenGpus : kGenNodes),
         fmt::format("{} GPUs of {} for generation", cluster.gen, nodes * gpus),
         "some left for training");
  }
  return cluster;
}

void refuse(const Recipe& recipe, std::string_view path, std::string_view expected) {
  fail(recipe.place(path), quote(recipe.text(path, "")), expected);
}

void refuse_if_set(const Recipe& recipe, std::string_view path, std::string_view what) {
  if (!recipe.is_empty(path)) {
    fail(recipe.place(path), std::string(what), "none: say the layout in a line or a file");
  }
}

void refuse_if_on(const Recipe& recipe, std::string_view path, std::string_view what) {
  if (recipe.flag(path)) fail(recipe.place(path), std::string(what), "false");
}

std::string ranks(int32_t first, int32_t count) {
  return fmt::format("{}-{}", first, first + count - 1);
}

/// Sizes from `policy.megatron_cfg`, or from `own` where that has them.
std::string megatron_spec(const Recipe& recipe, const std::string& own) {
  constexpr std::string_view kConfig = "policy.megatron_cfg.";
  const auto path_of = [&](std::string_view key) {
    const std::string special = own + std::string(key);
    return !own.empty() && recipe.contains(special) ? special
                                                    : std::string(kConfig) + std::string(key);
  };
  const auto at = [&](std::string_view key) { return std::string(kConfig) + std::string(key); };
  refuse_if_on(recipe, at("peft.enabled"), "LoRA adapters");
  refuse_if_on(recipe, at("fp8_cfg.fp8_param"), "weights kept in FP8");
  refuse_if_on(recipe, at("distributed_data_parallel_config.use_custom_fsdp"), "Megatron FSDP");
  refuse_if_on(recipe, at("account_for_embedding_in_pipeline_split"), "stages by another rule");
  refuse_if_on(recipe, at("account_for_loss_in_pipeline_split"), "stages by another rule");
  refuse_if_set(recipe, at("pipeline_model_parallel_layout"), "stages said layer by layer");
  refuse_if_set(recipe, at("model_overrides"), "another model than model_name says");
  std::string spec = fmt::format("tp={},pp={},ep={},etp={},cp={}",
                                 positive(recipe, path_of("tensor_model_parallel_size"), 1),
                                 positive(recipe, path_of("pipeline_model_parallel_size"), 1),
                                 positive(recipe, path_of("expert_model_parallel_size"), 1),
                                 positive(recipe, path_of("expert_tensor_parallel_size"), 1),
                                 positive(recipe, path_of("context_parallel_size"), 1));
  const std::pair<const char*, const char*> optional[] = {
      {"num_layers_in_first_pipeline_stage", "first"},
      {"num_layers_in_last_pipeline_stage", "last"},
      {"virtual_pipeline_model_parallel_size", "vpp"}};
  for (const auto& [key, name] : optional) {
    if (recipe.contains(path_of(key))) {
      spec += fmt::format(",{}={}", name, recipe.number(path_of(key), 0));
    }
  }
  return "megatron:" + spec;
}

std::string train_spec(const Recipe& recipe, const Cluster& cluster) {
  const bool megatron = recipe.flag("policy.megatron_cfg.enabled");
  const bool dtensor = recipe.flag("policy.dtensor_cfg.enabled");
  if (megatron == dtensor) {
    fail(recipe.place("policy"),
         megatron ? "megatron_cfg and dtensor_cfg both enabled" : "no backend enabled",
         "one of megatron_cfg.enabled and dtensor_cfg.enabled");
  }
  if (megatron) return fmt::format("{},world={}", megatron_spec(recipe, ""), cluster.train);
  refuse_if_on(recipe, "policy.dtensor_cfg.lora_cfg.enabled", "LoRA adapters");
  refuse_if_set(recipe, "policy.dtensor_cfg.custom_parallel_plan", "a plan in Python");
  // Context parallelism has no weights of its own: FSDP shards over it too.
  return fmt::format("fsdp:tp={},world={}",
                     positive(recipe, "policy.dtensor_cfg.tensor_parallel_size", 1), cluster.train);
}

std::string vllm_spec(const Recipe& recipe, const Cluster& cluster) {
  constexpr std::string_view kTp = "policy.generation.vllm_cfg.tensor_parallel_size",
                             kEp = "policy.generation.vllm_cfg.expert_parallel_size",
                             kPrecision = "policy.generation.vllm_cfg.precision";
  const int32_t tp = positive(recipe, kTp, 1);
  const int32_t pp = positive(recipe, "policy.generation.vllm_cfg.pipeline_parallel_size", 1);
  const int32_t ep = positive(recipe, kEp, 1);
  const std::string precision = recipe.text(kPrecision, "bfloat16");
  if (precision != "bfloat16" && precision != "auto") refuse(recipe, kPrecision, "bfloat16");
  refuse_if_set(recipe, "policy.generation.vllm_kwargs.quantization", "quantised weights");
  int32_t dp = 1;
  if (ep > 1) {
    if (ep % tp != 0) {
      fail(recipe.place(kEp), fmt::format("{}", ep),
           fmt::format("a multiple of tensor_parallel_size {}", tp));
    }
    dp = ep / tp;
  }
  const int32_t engine = tp * pp * dp;
  if (cluster.gen % engine != 0) {
    fail(recipe.place(kTp),
         fmt::format("engines of tp * pp * (ep / tp) = {} * {} * {} GPUs on {}", tp, pp, dp,
                     cluster.gen),
         "whole engines");
  }
  const bool spread = ep > 1 || recipe.flag("policy.generation.vllm_cfg.enable_expert_parallel");
  return fmt::format("vllm:tp={},pp={},dp={},ep={},engines={}", tp, pp, dp, spread ? "on" : "off",
                     cluster.gen / engine);
}

std::string gen_spec(const Recipe& recipe, const Cluster& cluster) {
  constexpr std::string_view kBackend = "policy.generation.backend";
  if (!recipe.contains("policy.generation")) {
    fail(recipe.place("policy.generation"), "no such key", "the generation's configuration");
  }
  const std::string backend = recipe.text(kBackend, "vllm");
  std::string spec;
  if (backend == "vllm") {
    spec = vllm_spec(recipe, cluster);
  } else if (backend == "megatron") {
    spec = fmt::format("{},world={}",
                       megatron_spec(recipe, "policy.generation.mcore_generation_config."),
                       cluster.gen);
  } else {
    refuse(recipe, kBackend, "vllm or megatron");
  }
  return spec + ",ranks=" + ranks(cluster.colocated ? 0 : cluster.train, cluster.gen);
}

}  // namespace

RecipeLayout translate_recipe(const Recipe& recipe, Side side) {
  refuse_if_set(recipe, "policy.hf_config_overrides", "another model than model_name says");
  refuse_if_on(recipe, "policy.draft.enabled", "a draft model beside the policy");
  const Cluster cluster = read_cluster(recipe);
  RecipeLayout layout;
  layout.spec = side == Side::kTrain ? train_spec(recipe, cluster) : gen_spec(recipe, cluster);
  layout.notes.push_back("the recipe comes to " + layout.spec);
  if (side == Side::kTrain) return layout;
  const std::string transport = recipe.text("policy.generation.refit_transport", "");
  if (transport.find("sparse") != std::string::npos) {
    layout.notes.push_back("refit_transport " + transport +
                           " sends differences; planned are whole weights");
  }
  if (!recipe.is_empty("policy.generation.vllm_kwargs.speculative_config")) {
    layout.notes.push_back("the draft layers of speculative_config are refitted with --mtp only");
  }
  return layout;
}

}  // namespace refit
