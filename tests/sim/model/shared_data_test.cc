#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "base/document.h"
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

TEST_F(SharedData, EveryConfigGivesItsTensors) {
  // Published: elements of gpt-oss (20,914,757,184 and 116,829,156,672) and of GLM-5.1 with its
  // prediction layer (753,864,139,008). The others from the dimensions, by hand: see
  // named_test.cc; elements of Qwen3.5, keys K = 16 * 128, values W = 32 * 128, hidden h = 2048:
  //   linear attention h (2 K + W + W + 2 * 32) + 4 (2 K + W) + 2 * 32 + 128 + W h   (30 layers)
  //   full attention   h * 256 (2 * 16 + 2 * 2 + 16) + 2 * 256                       (10 layers)
  //   experts          256 h + 256 * 3 * 512 h + 3 * 512 h + h, norms 2 h            (40 layers)
  //   and 2 * 248320 h + h.
  struct Expected {
    const char *file, *family;
    size_t tensors;
    int64_t bytes;
    size_t mtp_tensors = 0;
    int64_t mtp_bytes = 0;
  };
  const Expected configs[] = {
      {"Qwen--Qwen3-1.7B", "qwen3", 310, 3441149952},
      {"Qwen--Qwen3-8B", "qwen3", 399, 16381470720},
      {"Qwen--Qwen3-32B", "qwen3", 707, 65524246528},
      {"Qwen--Qwen3-30B-A3B", "qwen3_moe", 579, 61064245248},
      {"Qwen--Qwen3-30B-A3B-FP8", "qwen3_moe", 579, 61064245248},
      {"Qwen--Qwen3-235B-A22B", "qwen3_moe", 1131, 470187269120},
      {"Qwen--Qwen3.5-35B-A3B", "qwen3_5_moe", 693, 2 * 34660610688, 19, 2 * 844640768},
      {"deepseek-ai--DeepSeek-V3", "deepseek_v3", 1025, 1342052868096, 23, 26926853120},
      {"mistralai--Mixtral-8x7B-v0.1", "mixtral", 323, 93405585408},
      {"moonshotai--Kimi-K2-Instruct", "deepseek_v3", 1035, 2052816510976},
      {"moonshotai--Kimi-K2.5", "deepseek_v3", 1035, 2052816510976},
      {"openai--gpt-oss-20b", "gpt_oss", 411, 2 * 20914757184},
      {"openai--gpt-oss-120b", "gpt_oss", 615, 2 * 116829156672},
      // 75 routers have 256 numbers in fp32.
      {"zai-org--GLM-5-FP8", "glm_moe_dsa", 1704, 2 * (743911218432 + 75 * 256), 26,
       2 * (9952920576 + 256)},
      {"zai-org--GLM-5.1", "glm_moe_dsa", 1704, 2 * (743911218432 + 75 * 256), 26,
       2 * (9952920576 + 256)},
  };
  std::set<std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(models_ / "configs")) {
    files.insert(entry.path().filename().string());
  }
  for (const Expected& expected : configs) {
    const std::string file = std::string(expected.file) + "_config.json";
    EXPECT_EQ(files.erase(file), 1u) << file;
    const Model model = load("configs/" + file);
    EXPECT_EQ(model.family, expected.family) << file;
    EXPECT_EQ(model.tensors.size(), expected.tensors) << file;
    EXPECT_EQ(model_bytes(model), expected.bytes) << file;
    ModelOptions options;
    options.mtp = true;
    const Model with_mtp = load("configs/" + file, options);
    EXPECT_EQ(with_mtp.tensors.size(), expected.tensors + expected.mtp_tensors) << file;
    EXPECT_EQ(model_bytes(with_mtp), expected.bytes + expected.mtp_bytes) << file;
  }
  EXPECT_TRUE(files.empty()) << *files.begin() << " is not expected here";
}

TEST_F(SharedData, NamesAreThoseOfTheCheckpoint) {
  for (const char* folder : {"mixtral-8x22b", "qwen3-1.7b-single-file"}) {
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
      theirs.insert(name);
    }
    EXPECT_EQ(ours, theirs) << folder;
    EXPECT_EQ(model_bytes(model), root.at("metadata").at("total_size").as_int(0, INT64_MAX))
        << folder;
  }
}

TEST_F(SharedData, AnMlxCheckpointIsRefusedByName) {
  // Whose index has scales and biases beside each weight.
  const std::string index = "index/qwen3-14b-mlx-4bit/model.safetensors.index.json";
  const std::string message = error_of([&] { load(index); });
  EXPECT_NE(message.find("config.json:24: quantization_config: found quantised as \"mlx\""),
            std::string::npos)
      << message;
  ModelOptions options;
  options.dtype = "bf16";
  const std::string with_dtype = error_of([&] { load(index, options); });
  EXPECT_NE(with_dtype.find("unexpected 564 (lm_head.biases, lm_head.scales, ...)"),
            std::string::npos)
      << with_dtype;
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

TEST_F(SharedData, M2nLayersAreModels) {
  const std::pair<const char*, int32_t> files[] = {{"m2n/moe.json", 1},
                                                   {"m2n/sample_layer_config.json", 4}};
  for (const auto& [file, layers] : files) {
    const Model model = load(file);
    EXPECT_EQ(model.layers, layers);
    EXPECT_EQ(model.experts, 256);
    ASSERT_EQ(std::ssize(model.tensors), layers);
    const Tensor& last = model.tensors.back();
    EXPECT_EQ(last.name, "layers." + std::to_string(layers - 1) + ".moe");
    EXPECT_EQ(last.shape, (Dims{256, 4096, 7168}));
    EXPECT_EQ(last.role, Role::kExpertColumn);
    EXPECT_EQ(last.dtype, Dtype::kBf16);
  }
}

TEST_F(SharedData, OtherDocumentsAreNoModels) {
  EXPECT_THROW(load("m2n/system_configs/dsv3-256gpus-gb200.json"), Error);
}

}  // namespace
}  // namespace refit
