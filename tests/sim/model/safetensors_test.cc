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
  write("a.safetensors", kNorm + "data that is never read", kNorm.size());
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
  write_file(path("model.safetensors.index.json"), R"({"weight_map": {}})");
  write_file(path("config.json"),
             R"({"model_type": "qwen3", "hidden_size": 8, "num_hidden_layers": 1,
"num_attention_heads": 2, "intermediate_size": 12, "vocab_size": 10})");
  const Model model = load_model(path("model.safetensors.index.json"));
  EXPECT_EQ(model.tensors.size(), 14u);
  EXPECT_EQ(load_model(folder_.string()), model);
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
