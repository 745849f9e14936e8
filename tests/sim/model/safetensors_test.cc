#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "tests/sim/model/testing.h"

namespace refit {
namespace {

namespace fs = std::filesystem;

class Safetensors : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "refit-model-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  /// A safetensors file with this header; `length` is what its prefix claims.
  void write(const std::string& name, const std::string& header, uint64_t length) const {
    std::string bytes;
    for (int byte = 0; byte < 8; ++byte) bytes += static_cast<char>(length >> (8 * byte) & 0xff);
    write_file(path(name), bytes + header);
  }

  fs::path folder_;
};

const std::string kNorm =
    R"({"__metadata__": {"format": "pt"}, "model.norm.weight": {"dtype": "BF16", "shape": [20], "data_offsets": [0, 40]}})";
const std::string kHead =
    R"({"lm_head.weight": {"dtype": "F32", "shape": [50, 20], "data_offsets": [0, 4000]}})";

TEST_F(Safetensors, HeaderIsATensorList) {
  write("a.safetensors", kNorm + std::string(40, 'x'), kNorm.size());
  const Model model = load_model(path("a.safetensors"));
  EXPECT_EQ(model.name, "a");
  ASSERT_EQ(model.tensors.size(), 1u);
  EXPECT_EQ(
      model.tensors[0],
      (Tensor{
          "model.norm.weight", {20}, Dtype::kBf16, Role::kReplicated, Block::kHead, -1, false}));
  EXPECT_EQ(parse_model(resolve_model(path("a.safetensors")), "a"), model);
}

TEST_F(Safetensors, IndexNamesTheFiles) {
  write("1.safetensors", kNorm, kNorm.size());
  write("2.safetensors", kHead, kHead.size());
  write_file(
      path("model.safetensors.index.json"),
      R"({"metadata": {}, "weight_map": {"lm_head.weight": "2.safetensors", "model.norm.weight": "1.safetensors"}})");
  const Model model = load_model(path("model.safetensors.index.json"));
  EXPECT_EQ(model.name, folder_.filename().string());
  ASSERT_EQ(model.tensors.size(), 2u);
  EXPECT_EQ(model.tensors[1].shape, (Dims{50, 20}));
  write("2.safetensors", kNorm, kNorm.size());
  EXPECT_NE(error_of([&] {
              load_model(path("model.safetensors.index.json"));
            }).find("another file has too"),
            std::string::npos);
  fs::remove(path("2.safetensors"));
  EXPECT_TRUE(error_of([&] {
                load_model(path("model.safetensors.index.json"));
              }).starts_with(path("2.safetensors")));
}

TEST_F(Safetensors, IndexPrefersTheConfigBesideIt) {
  std::string names;
  for (const char* name :
       {"model.embed_tokens", "model.norm", "lm_head", "model.layers.0.input_layernorm",
        "model.layers.0.post_attention_layernorm", "model.layers.0.self_attn.q_proj",
        "model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.v_proj",
        "model.layers.0.self_attn.o_proj", "model.layers.0.self_attn.q_norm",
        "model.layers.0.self_attn.k_norm", "model.layers.0.mlp.gate_proj",
        "model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj"}) {
    names += std::string(names.empty() ? "" : ",\n") + "\"" + name + ".weight\": \"1\"";
  }
  const auto write_index = [&](const std::string& all) {
    write_file(path("model.safetensors.index.json"), "{\"weight_map\": {" + all + "}}");
  };
  const auto message = [&] {
    return error_of([&] { load_model(path("model.safetensors.index.json")); });
  };
  write_index(names);
  write_file(path("config.json"),
             R"({"model_type": "qwen3", "hidden_size": 8, "num_hidden_layers": 1,
"num_attention_heads": 2, "intermediate_size": 12, "vocab_size": 10})");
  const Model model = load_model(path("model.safetensors.index.json"));
  EXPECT_EQ(model.tensors.size(), 14u);
  EXPECT_EQ(load_model(folder_.string()), model);

  write_index(names + R"(, "lm_head.scales": "1")");
  EXPECT_NE(message().find("found unexpected 1 (lm_head.scales)"), std::string::npos) << message();
  write_index(names.substr(names.find(',') + 1));
  EXPECT_NE(message().find("found no 1 (model.embed_tokens.weight)"), std::string::npos)
      << message();
  EXPECT_NE(message().find("a qwen3 of 1 layers"), std::string::npos) << message();
  // Block scales go with their weights; a model of text and images says which tensors are which.
  write_index(names + R"(, "model.layers.0.mlp.up_proj.weight_scale_inv": "1",
      "model.visual.patch.weight": "1")");
  EXPECT_EQ(message(), "");
  write_file(path("model.safetensors.index.json"), "{\n<<<<<<< ours\n\"weight_map\": {}}");
  EXPECT_NE(message().find("index.json:2"), std::string::npos) << message();
}

TEST_F(Safetensors, OffsetsThatDoNotFitAreRefusedWithTheTensor) {
  const auto refusal = [&](const std::string& header, size_t data = 0) {
    write("a.safetensors", header + std::string(data, 'x'), header.size());
    return error_of([&] { load_model(path("a.safetensors")); });
  };
  const auto tensor = [](const std::string& name, const std::string& dtype, int begin, int end) {
    return "\"" + name + R"(": {"dtype": ")" + dtype + R"(", "shape": [4, 5], "data_offsets": [)" +
           std::to_string(begin) + ", " + std::to_string(end) + "]}";
  };
  const std::string embed = "model.embed_tokens.weight", head = "lm_head.weight";
  const auto two = [&](int begin, int end) {
    return "{" + tensor(embed, "BF16", 0, 40) + ", " + tensor(head, "BF16", begin, end) + "}";
  };
  EXPECT_EQ(refusal(two(40, 80)), "");
  EXPECT_EQ(refusal(two(40, 80), 80), "");
  EXPECT_NE(refusal(two(30, 70)).find("lm_head.weight from 30, which overlaps the end of " + embed),
            std::string::npos);
  EXPECT_NE(refusal(two(42, 82)).find("lm_head.weight from 42, which leaves a gap after"),
            std::string::npos);
  EXPECT_NE(refusal(two(40, 78)).find("lm_head.weight.data_offsets: found 38 bytes"),
            std::string::npos)
      << refusal(two(40, 78));
  EXPECT_NE(refusal(two(80, 40)).find("found -40 bytes"), std::string::npos);
  EXPECT_NE(refusal("{" + tensor(embed, "F32", 0, 40) + "}").find("expected 80"),
            std::string::npos);
  EXPECT_NE(
      refusal("{" + tensor(embed, "BF16", 8, 48) + "}").find("a gap after the end of the header"),
      std::string::npos);
  EXPECT_NE(refusal(two(40, 80), 79).find("found 79 bytes of data"), std::string::npos);
  EXPECT_NE(
      refusal(R"({"model.norm.weight": {"dtype": "BF16", "shape": [4], "data_offsets": [0]}})")
          .find("found 1 offsets"),
      std::string::npos);
}

TEST_F(Safetensors, DamagedFilesAreRefused) {
  const auto expect_error = [&] {
    const std::string message = error_of([&] { load_model(path("a.safetensors")); });
    EXPECT_TRUE(message.starts_with(path("a.safetensors"))) << message;
  };
  write_file(path("a.safetensors"), "");
  expect_error();
  write_file(path("a.safetensors"), "short");
  expect_error();
  write("a.safetensors", kNorm, kNorm.size() + 1);
  expect_error();
  write("a.safetensors", kNorm, kNorm.size() - 1);
  expect_error();
  write("a.safetensors", kNorm, UINT64_MAX);
  expect_error();
  write("a.safetensors", "[]", 2);
  expect_error();
  write("a.safetensors", "{}", 2);
  expect_error();
}

}  // namespace
}  // namespace refit
