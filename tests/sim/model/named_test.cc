#include <gtest/gtest.h>

#include "base/file.h"
#include "tests/sim/model/testing.h"

namespace refit {
namespace {

class NamedModels : public testing::Test {
 protected:
  void SetUp() override { ::setenv("REFIT_DATA", REFIT_SOURCE_DIR, 1); }
  void TearDown() override { ::unsetenv("REFIT_DATA"); }
};

TEST_F(NamedModels, HaveTheirPublishedSize) {
  // Parameters by hand. Per layer of Qwen3 (hidden h, ffn f, q = heads * 128, k = KV heads * 128):
  // two norms 2h, two head norms 256, attention h (2 q + 2 k), MLP 3 h f; outside: the embedding
  // 151936 h and a norm h.
  //   0.6B: 28 (2048 + 256 + 1024 * 6144 + 9437184) + 155582464 + 1024 = 596049920
  //   4B:   36 (5120 + 256 + 2560 * 10240 + 74711040) + 388956160 + 2560 = 4022468096
  // Kimi-K2: per layer latent attention as summed below and two norms of 7168; one dense layer with
  // an MLP of 18432, 60 with 384 experts and a shared one of 2048 and a router, which has 384
  // numbers in fp32; outside the embedding, the head and a norm.
  const int64_t kimi_attention = 7168LL * 1536 + 1536 + 1536LL * 64 * 192 + 7168LL * 576 + 512 +
                                 512LL * 64 * 256 + 64LL * 128 * 7168;
  const int64_t kimi = 61 * (kimi_attention + 2 * 7168) + 3LL * 7168 * 18432 +
                       60 * (385LL * 3 * 7168 * 2048 + 384LL * 7168) + 2LL * 163840 * 7168 + 7168;
  EXPECT_EQ(model_bytes(load_model("kimi-k2")), 2 * kimi + 60 * 384 * 4);
  EXPECT_EQ(model_bytes(load_model("qwen3-0.6b")), 2 * 596049920LL);
  EXPECT_EQ(model_bytes(load_model("qwen3-4b")), 2 * 4022468096LL);

  // Published numbers of parameters, of bf16; GLM's 76 routers have 256 numbers each in fp32.
  EXPECT_EQ(model_bytes(load_model("gpt-oss-20b")), 2 * 20914757184LL);
  EXPECT_EQ(model_bytes(load_model("gpt-oss-120b")), 2 * 116829156672LL);
  EXPECT_EQ(model_bytes(load_model("llama-3.1-8b")), 2 * 8030261248LL);
  EXPECT_EQ(model_bytes(load_model("llama-3.2-1b")), 2 * 1235814400LL);
  EXPECT_EQ(model_bytes(load_model("qwen2.5-1.5b")), 2 * 1543714304LL);
  ModelOptions with_mtp;
  with_mtp.mtp = true;
  EXPECT_EQ(model_bytes(load_model("glm-5.1", with_mtp)), 2 * 753864139008LL + 2 * 76 * 256);

  // Published: bytes of the bf16 weights, in units of 0.1 GB.
  const std::pair<const char*, int64_t> published[] = {
      {"deepseek-v3", 13421}, {"qwen3-4b", 80},   {"qwen3-30b-a3b", 611}, {"qwen3-235b-a22b", 4702},
      {"qwen3-32b", 655},     {"qwen3-14b", 295}, {"qwen3-8b", 164},      {"qwen3-1.7b", 34}};
  for (const auto& [name, size] : published) {
    EXPECT_EQ((model_bytes(load_model(name)) + 50'000'000) / 100'000'000, size) << name;
  }
}

TEST_F(NamedModels, EveryFileLoadsAndSurvivesBeingKeptAsText) {
  std::string names = list_data_files("models");
  int count = 0;
  while (!names.empty()) {
    const std::string name = names.substr(0, names.find(','));
    names.erase(0, name.size() + 2);
    const Model model = load_model(name);
    EXPECT_EQ(model.name, name);
    EXPECT_EQ(parse_model(resolve_model(name), name), model);
    ++count;
  }
  EXPECT_EQ(count, 18);
}

TEST_F(NamedModels, ErrorsNameTheKnownOnes) {
  const std::string message = error_of([] { load_model("qwen3-5b"); });
  EXPECT_TRUE(message.starts_with(
      "--model: found \"qwen3-5b\", expected a file, a checkpoint's folder or one of: "
      "deepseek-v3, glm-5.1, gpt-oss-120b, "))
      << message;
  EXPECT_THROW(load_model(""), Error);
  EXPECT_THROW(load_model("no/such/file.json"), Error);
}

TEST(NamedModel, FilesAreStrict) {
  const std::string text = R"(family: qwen3
source: a test
hidden_size: 8
num_hidden_layers: 1
num_attention_heads: 2
intermediate_size: 12
vocab_size: 10
)";
  EXPECT_EQ(parse_model(text, "x.yaml").tensors.size(), 14u);
  EXPECT_TRUE(error_of([&] {
                parse_model(text + "hiden_size: 8\n", "x.yaml");
              }).starts_with("x.yaml:8: hiden_size: found an unknown key, expected one of: "));
  EXPECT_THROW(parse_model(text + "num_experts: 8\n", "x.yaml"), Error);  // of another family
  EXPECT_THROW(parse_model(text + "hidden_size: 8\n", "x.yaml"), Error);
  for (const char* line :
       {"family: qwen3\n", "source: a test\n", "vocab_size: 10\n", "num_hidden_layers: 1\n"}) {
    std::string without = text;
    without.erase(without.find(line), std::string(line).size());
    EXPECT_THROW(parse_model(without, "x.yaml"), Error) << line;
  }
}

}  // namespace
}  // namespace refit
