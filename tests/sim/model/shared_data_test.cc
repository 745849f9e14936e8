#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "base/document.h"
#include "base/file.h"
#include "tests/sim/model/testing.h"

namespace refit {
namespace {

namespace fs = std::filesystem;

/// Real configurations, no part of this repository: in $REFIT_SHARED or beside the source tree.
class SharedData : public testing::Test {
 protected:
  void SetUp() override {
    const char* set = std::getenv("REFIT_SHARED");
    models_ = fs::path(set != nullptr ? set : REFIT_SOURCE_DIR "/../shared") / "data" / "models";
    if (!fs::is_directory(models_)) GTEST_SKIP() << "skipped: no ../shared";
    ::setenv("REFIT_DATA", REFIT_SOURCE_DIR, 1);
  }
  void TearDown() override { ::unsetenv("REFIT_DATA"); }
  Model load(const std::string& file, const ModelOptions& options = {}) const {
    return load_model((models_ / file).string(), options);
  }

  fs::path models_;
};

TEST_F(SharedData, ConfigsGiveTheNamedModels) {
  const std::pair<const char*, const char*> pairs[] = {
      {"Qwen--Qwen3-1.7B", "qwen3-1.7b"},
      {"Qwen--Qwen3-8B", "qwen3-8b"},
      {"Qwen--Qwen3-32B", "qwen3-32b"},
      {"Qwen--Qwen3-30B-A3B", "qwen3-30b-a3b"},
      {"Qwen--Qwen3-30B-A3B-FP8", "qwen3-30b-a3b"},
      {"Qwen--Qwen3-235B-A22B", "qwen3-235b-a22b"},
      {"deepseek-ai--DeepSeek-V3", "deepseek-v3"},
      {"moonshotai--Kimi-K2-Instruct", "kimi-k2"},
      {"moonshotai--Kimi-K2.5", "kimi-k2"},
  };
  for (const auto& [config, name] : pairs) {
    for (const bool mtp : {false, true}) {
      const ModelOptions options{.dtype = "", .mtp = mtp, .unknown_replicate = false};
      Model model = load("configs/" + std::string(config) + "_config.json", options);
      model.name = name;
      EXPECT_EQ(model, load_model(name, options)) << config;
    }
  }
}

TEST_F(SharedData, OtherFamiliesAreRefusedByName) {
  const std::pair<const char*, const char*> pairs[] = {
      {"Qwen--Qwen3.5-35B-A3B", "qwen3_5_moe_text"},
      {"openai--gpt-oss-20b", "gpt_oss"},
      {"openai--gpt-oss-120b", "gpt_oss"},
      {"zai-org--GLM-5-FP8", "glm_moe_dsa"},
      {"zai-org--GLM-5.1", "glm_moe_dsa"}};
  for (const auto& [config, type] : pairs) {
    const std::string message =
        error_of([&] { load("configs/" + std::string(config) + "_config.json"); });
    EXPECT_NE(message.find("found the architecture family \"" + std::string(type) + "\""),
              std::string::npos)
        << message;
  }
}

TEST_F(SharedData, NamesAreThoseOfTheCheckpoint) {
  const std::pair<const char*, bool> indices[] = {
      {"mixtral-8x22b", true}, {"qwen3-1.7b-single-file", true}, {"qwen3-14b-mlx-4bit", false}};
  for (const auto& [folder, complete] : indices) {
    const fs::path index = models_ / "index" / folder / "model.safetensors.index.json";
    const Model model = load_model(index.string());
    std::set<std::string> ours, theirs;
    for (const Tensor& tensor : model.tensors) {
      const size_t at = tensor.name.find(".experts.");
      if (at == std::string::npos) ours.insert(tensor.name);
      for (int64_t expert = 0; at != std::string::npos && expert < model.experts; ++expert) {
        std::string name = tensor.name;
        ours.insert(name.insert(at + 9, std::to_string(expert) + "."));
      }
    }
    const Value root = load_document(index.string());
    for (const auto& [name, file] : root.at("weight_map").items()) {
      // Another program's quantisation adds to each weight its scales and biases.
      if (complete || name.ends_with(".weight")) theirs.insert(name);
    }
    EXPECT_EQ(ours, theirs) << folder;
    if (complete) {
      EXPECT_EQ(model_bytes(model), root.at("metadata").at("total_size").as_int(0, INT64_MAX))
          << folder;
    }
  }
}

TEST_F(SharedData, M2nListEqualsTheConfig) {
  const Model list = load("m2n/model_configs/qwen3-32b.model.json");
  const Model named = load_model("qwen3-32b");
  EXPECT_EQ(list.name, "qwen3-32b");
  EXPECT_EQ(list.family, named.family);
  EXPECT_EQ(list.layers, named.layers);
  EXPECT_EQ(list.kv_heads, named.kv_heads);
  EXPECT_EQ(list.tied_embeddings, named.tied_embeddings);
  EXPECT_EQ(by_name(list), by_name(named));
}

TEST_F(SharedData, OtherDocumentsAreNoModels) {
  EXPECT_THROW(load("m2n/moe.json"), Error);
  EXPECT_THROW(load("m2n/sample_layer_config.json"), Error);
  EXPECT_THROW(load("m2n/system_configs/dsv3-256gpus-gb200.json"), Error);
}

}  // namespace
}  // namespace refit
