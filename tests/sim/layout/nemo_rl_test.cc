#include "sim/layout/nemo_rl.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "sim/layout/layout.h"

namespace refit {
namespace {

namespace fs = std::filesystem;

/// The side's layout in a line, or the error.
std::string translated(const std::string& path, Side side) {
  try {
    const auto recipe = Recipe::load(path);
    return recipe ? translate_recipe(*recipe, side).spec : "no recipe";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    return error.what();
  }
}

class NemoRl : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "refit-nemo-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// A recipe of 4 nodes of 8 GPUs, two of them for generation.
  std::string write(const std::string& policy, const std::string& generation,
                    const std::string& colocated = "enabled: false, resources: {num_nodes: 2}") {
    const std::string path = (folder_ / "r.yaml").string();
    write_file(path, "cluster: {num_nodes: 4, gpus_per_node: 8}\npolicy:\n  " + policy +
                         "\n  generation:\n    colocated: {" + colocated + "}\n    " + generation +
                         "\n");
    return path;
  }

  fs::path folder_;
};

const std::string kMegatron = "megatron_cfg: {enabled: true, tensor_model_parallel_size: 2}",
                  kVllm = "vllm_cfg: {tensor_parallel_size: 4}";

TEST_F(NemoRl, NodesOfTheirOwn) {
  const std::string path = write(kMegatron, kVllm);
  EXPECT_EQ(translated(path, Side::kTrain), "megatron:tp=2,pp=1,ep=1,etp=1,cp=1,world=16");
  EXPECT_EQ(translated(path, Side::kGen), "vllm:tp=4,pp=1,dp=1,ep=off,engines=4,ranks=16-31");
}

TEST_F(NemoRl, TheSameRanksWhenColocated) {
  const std::string path = write(
      "dtensor_cfg: {enabled: true, tensor_parallel_size: 4, context_parallel_size: 2}",
      "vllm_cfg: {tensor_parallel_size: 2, pipeline_parallel_size: 2, expert_parallel_size: 8}",
      "enabled: true");
  EXPECT_EQ(translated(path, Side::kTrain), "fsdp:tp=4,world=32");
  EXPECT_EQ(translated(path, Side::kGen), "vllm:tp=2,pp=2,dp=4,ep=on,engines=2,ranks=0-31");
}

TEST_F(NemoRl, GenerationByMegatron) {
  EXPECT_EQ(translated(write(kMegatron, "backend: megatron"), Side::kGen),
            "megatron:tp=2,pp=1,ep=1,etp=1,cp=1,world=16,ranks=16-31");
  EXPECT_EQ(translated(write(kMegatron,
                             "backend: megatron\n    mcore_generation_config: "
                             "{tensor_model_parallel_size: 8}"),
                       Side::kGen),
            "megatron:tp=8,pp=1,ep=1,etp=1,cp=1,world=16,ranks=16-31");
}

TEST_F(NemoRl, OneNodeIsSplitByGpus) {
  const std::string path = (folder_ / "one.yaml").string();
  write_file(path,
             "cluster: {num_nodes: 1, gpus_per_node: 8}\npolicy:\n  " + kMegatron +
                 "\n  generation:\n    colocated: {enabled: false, resources: {gpus_per_node: 6}}\n"
                 "    vllm_cfg: {tensor_parallel_size: 2}\n");
  EXPECT_EQ(translated(path, Side::kTrain), "megatron:tp=2,pp=1,ep=1,etp=1,cp=1,world=2");
  EXPECT_EQ(translated(path, Side::kGen), "vllm:tp=2,pp=1,dp=1,ep=off,engines=3,ranks=2-7");
}

TEST_F(NemoRl, UnsupportedFieldsAreNamed) {
  struct Case {
    std::string policy, generation;
    Side side;
    std::string words;
  };
  const auto megatron = [](const std::string& more) {
    return "megatron_cfg: {enabled: true, " + more + "}";
  };
  const Case cases[] = {
      {megatron("peft: {enabled: true}"), kVllm, Side::kTrain, "policy.megatron_cfg.peft.enabled"},
      {megatron("fp8_cfg: {fp8_param: true}"), kVllm, Side::kTrain, "fp8_cfg.fp8_param"},
      {megatron("model_overrides: {num_layers: 2}"), kVllm, Side::kTrain, "model_overrides"},
      {megatron("pipeline_model_parallel_layout: E|t*3|L"), kVllm, Side::kTrain,
       "pipeline_model_parallel_layout"},
      {megatron("tensor_model_parallel_size: 0"), kVllm, Side::kTrain,
       "tensor_model_parallel_size"},
      {kMegatron + "\n  draft: {enabled: true}", kVllm, Side::kTrain, "policy.draft.enabled"},
      {"dtensor_cfg: {enabled: true, lora_cfg: {enabled: true}}", kVllm, Side::kTrain, "lora_cfg"},
      {"dtensor_cfg: {enabled: true, custom_parallel_plan: a.py}", kVllm, Side::kTrain,
       "custom_parallel_plan"},
      {kMegatron + "\n  dtensor_cfg: {enabled: true}", kVllm, Side::kTrain, "both enabled"},
      {"name: x", kVllm, Side::kTrain, "no backend enabled"},
      {kMegatron, "backend: sglang", Side::kGen, "policy.generation.backend: found \"sglang\""},
      {kMegatron, "vllm_cfg: {precision: fp8}", Side::kGen, "vllm_cfg.precision: found \"fp8\""},
      {kMegatron, "vllm_kwargs: {quantization: x}", Side::kGen, "vllm_kwargs.quantization"},
      {kMegatron, "vllm_cfg: {tensor_parallel_size: 3}", Side::kGen, "3 * 1 * 1 GPUs on 16"},
      {kMegatron, "vllm_cfg: {tensor_parallel_size: 4, expert_parallel_size: 6}", Side::kGen,
       "expert_parallel_size: found 6"}};
  for (const Case& bad : cases) {
    const std::string message = translated(write(bad.policy, bad.generation), bad.side);
    EXPECT_NE(message.find(bad.words), std::string::npos) << message;
    EXPECT_NE(message.find("r.yaml"), std::string::npos) << message;
  }
  for (const auto& [colocated, words] :
       {std::pair{"enabled: false, resources: {num_nodes: 4}", "some left for training"},
        {"enabled: false", "num_nodes: found 0"},
        {"enabled: false, resources: {num_nodes: 2, gpus_per_node: 4}",
         "gpus_per_node: found 4"}}) {
    const std::string message = translated(write(kMegatron, kVllm, colocated), Side::kTrain);
    EXPECT_NE(message.find(words), std::string::npos) << message;
  }
}

TEST_F(NemoRl, ARecipeIsALayout) {
  ::setenv("REFIT_DATA", REFIT_SOURCE_DIR, 1);
  const Model model = load_model("qwen3-0.6b");
  const std::string path = write(kMegatron, kVllm);
  const std::string spec = "vllm:tp=4,pp=1,dp=1,ep=off,engines=4,ranks=16-31";
  const Layout layout = load_layout(path, model, Side::kGen, 0);
  EXPECT_EQ(layout.maps, load_layout(spec, model, Side::kGen, 0).maps);
  EXPECT_EQ(layout.ranks.front(), 16);
  EXPECT_EQ(layout.notes.front(), "the recipe comes to " + spec);
  EXPECT_EQ(resolve_layout(path, Side::kGen), spec);
  ::unsetenv("REFIT_DATA");
}

TEST(NemoRlShared, EveryRecipeLoadsOrNamesItsField) {
  const char* set = std::getenv("REFIT_SHARED");
  const fs::path shared(set != nullptr ? set : REFIT_SOURCE_DIR "/../shared");
  const fs::path folder = shared / "data" / "layouts";
  if (!fs::is_directory(folder)) GTEST_SKIP() << "skipped: no ../shared";
  ::setenv("REFIT_DATA", REFIT_SOURCE_DIR, 1);
  // Nodes x GPUs of the cluster, less those of generation; sizes as the files have them.
  struct Expected {
    std::string file, train, gen, model;  // model: "" when refused by name
  };
  const std::string recipes = "nemo_rl/examples/configs/recipes/llm/",
                    fast = recipes + "performance/", configs = "nemo_rl/examples/configs/";
  const std::string deepseek = "megatron:tp=1,pp=16,ep=16,etp=1,cp=1,first=3,last=2,world=256";
  const Expected expected[] = {
      {fast + "grpo-deepseek-v3-64n8g-async-1off", deepseek,
       "vllm:tp=32,pp=1,dp=1,ep=off,engines=8,ranks=256-511", ""},
      {fast + "grpo-deepseek-v3-64n8g-fp8-async-1off", deepseek,
       "policy.generation.vllm_cfg.precision: found \"fp8\"", ""},
      {fast + "grpo-deepseek-v3-32n8g", deepseek,
       "vllm:tp=32,pp=1,dp=1,ep=off,engines=8,ranks=0-255", ""},
      {fast + "grpo-qwen3-235b-32n8g-async-1off",
       "megatron:tp=4,pp=8,ep=16,etp=1,cp=1,first=11,last=11,world=128",
       "vllm:tp=8,pp=1,dp=1,ep=off,engines=16,ranks=128-255", "qwen3-235b-a22b"},
      {fast + "grpo-qwen3-235b-16n8g",
       "megatron:tp=2,pp=8,ep=16,etp=1,cp=2,first=11,last=11,world=128",
       "vllm:tp=16,pp=1,dp=1,ep=off,engines=8,ranks=0-127", "qwen3-235b-a22b"},
      {fast + "grpo-qwen3-30ba3b-4n8g-async-1off", "megatron:tp=1,pp=2,ep=8,etp=1,cp=1,world=16",
       "vllm:tp=2,pp=1,dp=1,ep=off,engines=8,ranks=16-31", "qwen3-30b-a3b"},
      {fast + "grpo-qwen3-30ba3b-4n8g", "megatron:tp=1,pp=1,ep=8,etp=1,cp=1,world=32",
       "vllm:tp=2,pp=1,dp=1,ep=off,engines=16,ranks=0-31", "qwen3-30b-a3b"},
      {fast + "grpo-qwen3-30ba3b-24n8g-async-8off", "megatron:tp=1,pp=1,ep=8,etp=1,cp=1,world=128",
       "vllm:tp=2,pp=1,dp=1,ep=off,engines=32,ranks=128-191", "qwen3-30b-a3b"},
      {fast + "grpo-qwen3-32b-8n8g-async-1off", "megatron:tp=4,pp=4,ep=1,etp=1,cp=1,world=32",
       "vllm:tp=4,pp=1,dp=1,ep=off,engines=8,ranks=32-63", "qwen3-32b"},
      {fast + "grpo-qwen3-32b-4n8g", "megatron:tp=4,pp=4,ep=1,etp=1,cp=1,world=32",
       "vllm:tp=4,pp=1,dp=1,ep=off,engines=8,ranks=0-31", "qwen3-32b"},
      {fast + "grpo-llama3.1-8b-instruct-2n8g-async-1off",
       "megatron:tp=1,pp=1,ep=1,etp=1,cp=1,world=8",
       "vllm:tp=1,pp=1,dp=1,ep=off,engines=8,ranks=8-15", "llama-3.1-8b"},
      {fast + "grpo-llama3.1-8b-instruct-2n8g", "megatron:tp=1,pp=2,ep=1,etp=1,cp=1,world=16",
       "vllm:tp=1,pp=1,dp=1,ep=off,engines=16,ranks=0-15", "llama-3.1-8b"},
      {fast + "grpo-nemotron3-super-120BA12B-32n8g-async-1off",
       "megatron:tp=4,pp=1,ep=32,etp=1,cp=1,world=64",
       "vllm:tp=8,pp=1,dp=1,ep=off,engines=24,ranks=64-255", ""},
      {recipes + "grpo-qwen3-30ba3b-4n8g-megatron-zmq-deltaweight-noncolocated",
       "megatron:tp=1,pp=1,ep=8,etp=1,cp=1,world=16",
       "vllm:tp=2,pp=1,dp=1,ep=off,engines=8,ranks=16-31", "qwen3-30b-a3b"},
      {recipes + "grpo-qwen3-30ba3b-10n8g-megatron-cp2-r3-async",
       "megatron:tp=4,pp=2,ep=4,etp=1,cp=2,world=64",
       "vllm:tp=4,pp=1,dp=1,ep=on,engines=4,ranks=64-79", "qwen3-30b-a3b"},
      {recipes + "grpo-qwen3-30ba3b-8n8g-megatron-cp2-r3",
       "megatron:tp=4,pp=2,ep=4,etp=1,cp=2,world=64",
       "vllm:tp=4,pp=1,dp=1,ep=on,engines=16,ranks=0-63", "qwen3-30b-a3b"},
      {recipes + "grpo-llama3.2-1b-instruct-2n8g-megatron_generation-noncolocated",
       "megatron:tp=1,pp=1,ep=1,etp=1,cp=1,world=8",
       "megatron:tp=1,pp=1,ep=1,etp=1,cp=1,world=8,ranks=8-15", "llama-3.2-1b"},
      {recipes + "distillation-qwen3-32b-to-4b-base-2n8g-fsdp2tp8-noncolocated.v1",
       "fsdp:tp=8,world=8", "vllm:tp=1,pp=1,dp=1,ep=off,engines=8,ranks=8-15", "qwen3-4b"},
      {recipes + "grpo-glm5.1-64n8g-megatron",
       "megatron:tp=8,pp=8,ep=64,etp=1,cp=1,first=9,last=9,world=512",
       "vllm:tp=32,pp=1,dp=4,ep=on,engines=4,ranks=0-511", "glm-5.1"},
      {recipes + "grpo-qwen3.5-397ba17b-32n8g-megatron.v2",
       "megatron:tp=8,pp=8,ep=32,etp=1,cp=1,first=6,last=6,world=256",
       "vllm:tp=16,pp=1,dp=4,ep=on,engines=4,ranks=0-255", "qwen3.5-397b-a17b"},
      {configs + "grpo_math_qwen30ba3b_megatron", "megatron:tp=2,pp=1,ep=8,etp=1,cp=1,world=64",
       "vllm:tp=4,pp=1,dp=1,ep=off,engines=16,ranks=0-63", "qwen3-30b-a3b"},
      {configs + "grpo_math_1B_megatron", "megatron:tp=1,pp=1,ep=1,etp=1,cp=1,world=1",
       "vllm:tp=1,pp=1,dp=1,ep=off,engines=1,ranks=0-0", "qwen2.5-1.5b"},
      {configs + "grpo_math_1B", "fsdp:tp=1,world=1",
       "vllm:tp=1,pp=1,dp=1,ep=off,engines=1,ranks=0-0", "qwen2.5-1.5b"},
      {configs + "distillation_math", "fsdp:tp=2,world=8",
       "vllm:tp=1,pp=1,dp=1,ep=off,engines=8,ranks=0-7", "qwen3-1.7b"},
  };
  std::set<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.insert(fs::relative(entry.path(), folder).string());
  }
  for (const Expected& each : expected) {
    const std::string file = each.file + ".yaml", path = (folder / file).string();
    EXPECT_EQ(files.erase(file), 1u) << file;
    EXPECT_EQ(translated(path, Side::kTrain), each.train) << file;
    const std::string gen = translated(path, Side::kGen);
    EXPECT_NE(gen.find(each.gen), std::string::npos) << file << " " << gen;
    if (each.model.empty()) {
      try {
        load_model(path);
        ADD_FAILURE() << file;
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("policy.model_name: found"), std::string::npos)
            << error.what();
      }
      continue;
    }
    const Model model = load_model(path);
    EXPECT_EQ(model.name, each.model) << file;
    EXPECT_FALSE(load_layout(path, model, Side::kTrain, 0).maps.empty()) << file;
    EXPECT_FALSE(load_layout(path, model, Side::kGen, 0).maps.empty()) << file;
  }
  // What is left belongs to others, and is refused by its kind.
  int others = 0;
  for (const std::string& file : files) {
    const std::string kind = file.starts_with("roll/")    ? "a ROLL recipe"
                             : file.starts_with("areal/") ? "an AReaL recipe"
                                                          : "a TOML file";
    const std::string message = translated((folder / file).string(), Side::kTrain);
    EXPECT_NE(message.find(kind), std::string::npos) << message;
    ++others;
  }
  EXPECT_EQ(others, 9);
  ::unsetenv("REFIT_DATA");
}

}  // namespace
}  // namespace refit
