#include "sim/model/recipe.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "tests/sim/model/testing.h"

namespace refit {
namespace {

namespace fs = std::filesystem;

class RecipeFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "refit-recipe-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    fs::create_directories(folder_ / "a" / "b");
    ::setenv("REFIT_DATA", REFIT_SOURCE_DIR, 1);
  }
  void TearDown() override {
    fs::remove_all(folder_);
    ::unsetenv("REFIT_DATA");
  }
  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = (folder_ / name).string();
    write_file(path, text);
    return path;
  }
  Recipe load(const std::string& name, const std::string& text) const {
    auto recipe = Recipe::load(write(name, text));
    EXPECT_TRUE(recipe.has_value());
    return *recipe;
  }

  fs::path folder_;
};

TEST_F(RecipeFiles, DefaultsAreOverriddenKeyByKey) {
  write("base.yaml", "policy: {a: 1, b: 2, map: {x: 1, y: 2}, list: [1, 2]}\ncluster: {n: 8}\n");
  write("a/middle.yaml", "defaults: ../base.yaml\npolicy:\n  b: 3\n  map: {y: null}\n  list: []\n");
  const Recipe recipe = load("a/b/leaf.yaml", "defaults: ../middle.yaml\npolicy:\n  map: {x: 7}\n");
  EXPECT_EQ(recipe.number("policy.a", 0), 1);
  EXPECT_EQ(recipe.number("policy.b", 0), 3);
  EXPECT_EQ(recipe.number("policy.map.x", 0), 7);
  EXPECT_FALSE(recipe.contains("policy.map.y"));
  EXPECT_EQ(recipe.number("policy.map.y", 5), 5);
  EXPECT_TRUE(recipe.is_empty("policy.list"));
  EXPECT_EQ(recipe.number("cluster.n", 0), 8);
  EXPECT_TRUE(recipe.place("policy.map.x").ends_with("leaf.yaml:3: policy.map.x"))
      << recipe.place("policy.map.x");
  EXPECT_TRUE(recipe.place("policy.b").ends_with("middle.yaml:3: policy.b"));
}

TEST_F(RecipeFiles, SeveralDefaultsInOrder) {
  write("one.yaml", "policy: {a: 1, b: 1}\n");
  write("two.yaml", "policy: {b: 2}\n");
  const Recipe recipe = load("r.yaml", "defaults: [one.yaml, two.yaml]\n");
  EXPECT_EQ(recipe.number("policy.a", 0), 1);
  EXPECT_EQ(recipe.number("policy.b", 0), 2);
}

TEST_F(RecipeFiles, ReferencesAreAbsoluteOrRelative) {
  const Recipe recipe = load("r.yaml", R"(
policy:
  size: 4
  name: tp${policy.size}-${.size}
  nothing: null
  gen:
    own: ${..size}
    product: ${mul:${mul:${policy.size}, 3}, ${.own}}
    none: ${policy.nothing}
    deep:
      up: ${...size}
  flag: ${policy.on}
  on: True
)");
  EXPECT_EQ(recipe.text("policy.name", ""), "tp4-4");
  EXPECT_EQ(recipe.number("policy.gen.own", 0), 4);
  EXPECT_EQ(recipe.number("policy.gen.product", 0), 48);
  EXPECT_EQ(recipe.number("policy.gen.none", 6), 6);
  EXPECT_EQ(recipe.number("policy.gen.deep.up", 0), 4);
  EXPECT_TRUE(recipe.flag("policy.flag"));
  EXPECT_FALSE(recipe.flag("policy.absent"));
}

TEST_F(RecipeFiles, AnchorsAreMergedUnderTheirMapsOwnKeys) {
  const Recipe recipe = load("r.yaml", R"(
policy: &base
  size: 4
  inner: &inner {x: 1, y: 2}
teacher:
  size: 5
  <<: *base
  inner:
    <<: *inner
    y: 3
)");
  EXPECT_EQ(recipe.number("teacher.size", 0), 5);
  EXPECT_EQ(recipe.number("teacher.inner.x", 0), 1);
  EXPECT_EQ(recipe.number("teacher.inner.y", 0), 3);
}

TEST_F(RecipeFiles, BadOnesNameThePlace) {
  const Recipe recipe = load("r.yaml", R"(
policy:
  a: ${policy.b}
  b: ${policy.a}
  gone: ${policy.absent}
  far: ${.....x}
  open: ${policy.a
  env: ${oc.env:HOME}
  map: {x: 1}
  word: yes
  big: 99999999
)");
  const auto refused = [&](const char* path, const std::string& words) {
    const std::string message = error_of([&] { recipe.number(path, 0); });
    EXPECT_NE(message.find(path), std::string::npos) << message;
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  refused("policy.gone", "${policy.absent}");
  refused("policy.far", "inside the file");
  refused("policy.open", "\"}\"");
  refused("policy.env", "oc.env");
  refused("policy.map", "a map or a list");
  refused("policy.word", "yes");
  refused("policy.big", "99999999");
  EXPECT_NE(error_of([&] { recipe.text("policy.a", ""); }).find("come back to themselves"),
            std::string::npos);
  EXPECT_NE(error_of([&] { recipe.flag("policy.word"); }).find("true or false"), std::string::npos);

  EXPECT_NE(
      error_of([&] { Recipe::load(write("l.yaml", "defaults: l.yaml\n")); }).find("without an end"),
      std::string::npos);
  EXPECT_NE(error_of([&] {
              Recipe::load(write("m.yaml", "defaults: none.yaml\n"));
            }).find("m.yaml:1: defaults: found \"none.yaml\""),
            std::string::npos);
}

TEST_F(RecipeFiles, OtherFilesAreNoneOrRefusedByKind) {
  EXPECT_FALSE(Recipe::load(write("layout.yaml", "tensors: []\n")).has_value());
  EXPECT_FALSE(Recipe::load(write("broken.yaml", "a: [\n")).has_value());
  EXPECT_FALSE(Recipe::load(write("policy.json", "{\"policy\": {}}")).has_value());
  const std::pair<const char*, const char*> kinds[] = {
      {"actor: {backend: x}\nrollout: {backend: y}\n", "an AReaL recipe"},
      {"actor_train: {}\nactor_infer: {}\n", "a ROLL recipe"},
      {"actor_rollout_ref: {}\ndefaults: [x]\n", "a veRL recipe"}};
  for (const auto& [text, kind] : kinds) {
    EXPECT_NE(error_of([&, &body = text] { Recipe::load(write("r.yaml", body)); }).find(kind),
              std::string::npos);
  }
  EXPECT_NE(error_of([&] { Recipe::load(write("r.toml", "")); }).find("a TOML file"),
            std::string::npos);
}

TEST_F(RecipeFiles, NameAModel) {
  const auto model = [&](const std::string& name, const std::string& more = "") {
    return load_model(write("r.yaml", "policy:\n  model_name: " + name + "\n" + more));
  };
  EXPECT_EQ(model("Qwen/Qwen3-4B-Base"), load_model("qwen3-4b"));
  EXPECT_EQ(model("meta-llama/Llama-3.1-8B-Instruct"), load_model("llama-3.1-8b"));
  EXPECT_EQ(model("Qwen/Qwen3.5-397B-A17B").name, "qwen3.5-397b-a17b");
  EXPECT_EQ(resolve_model(write("r.yaml", "policy: {model_name: Qwen/Qwen3-8B}\n")),
            resolve_model("qwen3-8b"));
  EXPECT_NE(error_of([&] { model("someone/Other-7B"); })
                .find("r.yaml:2: policy.model_name: found "
                      "\"someone/Other-7B\""),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              model("Qwen/Qwen3-8B", "  hf_config_overrides: {num_hidden_layers: 2}\n");
            }).find("hf_config_overrides"),
            std::string::npos);
}

}  // namespace
}  // namespace refit
