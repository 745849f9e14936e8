#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "tests/sim/layout/refused.h"
#include "tests/sim/layout/small_model.h"

namespace refit {
namespace {

struct Half {
  int num_gpus = 1, tp = 1, cp = 1, ep = 1, pp = 1, fsdp = 1, dp = 1;
  std::string text() const {
    return fmt::format(
        R"({{"num_gpus": {}, "tp_size": {}, "cp_size": {}, "ep_size": {}, "pp_size": {}, "fsdp_size": {}, "dp_size": {}}})",
        num_gpus, tp, cp, ep, pp, fsdp, dp);
  }
};

std::string system_json(const Half& train, const Half& gen) {
  return fmt::format(R"({{"_comment": "x", "train": {}, "generation": {}}})", train.text(),
                     gen.text());
}

TEST(M2nSystem, HalvesAreMegatronGrids) {
  const Model model = make_small_model({.layers = 4, .experts = 4});
  const std::string text =
      system_json({.num_gpus = 8, .ep = 4, .pp = 2}, {.num_gpus = 8, .tp = 2, .dp = 4});
  const Layout train = load_layout(text, model, Side::kTrain, 0);
  const Layout gen = load_layout(text, model, Side::kGen, 8);
  const Layout same_train = load_layout("megatron:ep=4,pp=2,edp=1", model, Side::kTrain, 0);
  const Layout same_gen = load_layout("vllm:tp=2,dp=4,vocab=2", model, Side::kGen, 8);
  EXPECT_EQ(train.maps, same_train.maps);
  EXPECT_EQ(train.tensor_map, same_train.tensor_map);
  EXPECT_EQ(gen.maps, same_gen.maps);
  EXPECT_EQ(gen.ranks, same_gen.ranks);
  EXPECT_EQ(train.spec, text);
}

TEST(M2nSystem, ExpertsAreNotCutWhenTheyAreSpread) {
  // tp=2, ep=4, dp=1: etp 1, W = 4 = tp * 2.
  const Model model = make_small_model({.layers = 1, .experts = 4});
  const Layout layout =
      load_layout(system_json({.num_gpus = 4, .tp = 2, .ep = 4}, {}), model, Side::kTrain, 0);
  EXPECT_EQ(held(model, layout, "0.gate", 3), "[3:4, 0:12, 0:8]");
  EXPECT_EQ(held(model, layout, "0.q", 3), "[8:16, 0:8]");
}

TEST(M2nSystem, FsdpAlone) {
  const Model model = make_small_model({});
  const Layout layout =
      load_layout(system_json({.num_gpus = 4, .fsdp = 2, .dp = 2}, {}), model, Side::kTrain, 0);
  EXPECT_EQ(held(model, layout, "0.q", 1), "[8:16, 0:8]");
  EXPECT_EQ(held(model, layout, "0.q", 2), "[0:8, 0:8]");
}

TEST(M2nSystem, RefusesWhatIsWrong) {
  const Model model = make_small_model({.experts = 4});
  const std::string good = Half{}.text();
  struct Case {
    std::string text;
    std::vector<std::string> words;
  };
  const std::vector<Case> cases{
      {"{", {}},
      {"{}", {"train"}},
      {fmt::format(R"({{"train": {}}})", good), {"generation"}},
      {fmt::format(R"({{"train": {}, "generation": {}, "other": 1}})", good, good), {"other"}},
      {fmt::format(R"({{"train": 3, "generation": {}}})", good), {"train"}},
      {fmt::format(R"({{"train": {}, "generation": {{"num_gpus": 1}}}})", good),
       {"generation", "tp_size"}},
      {system_json({.tp = 0}, {}), {"tp_size", "0"}},
      {system_json({}, {.pp = -1}), {"pp_size", "-1"}},
      {system_json({.num_gpus = 8, .tp = 2, .dp = 2}, {}), {"train", "num_gpus 8", "4, that is"}},
      {system_json({.num_gpus = 4, .ep = 4, .dp = 2}, {}),
       {"train", "num_gpus 4", "8, that is pp_size * ep_size * dp_size"}},
      {system_json({.num_gpus = 3, .tp = 2, .ep = 3}, {}), {"tp * cp = 2 * 1"}},
      {system_json({.num_gpus = 4, .tp = 2, .fsdp = 2}, {}),
       {"train", "fsdp_size 2 with tp_size 2"}},
      {system_json({.num_gpus = 4, .fsdp = 2}, {}),
       {"num_gpus 4", "2, that is fsdp_size * dp_size"}},
      {R"({"train": {"num_gpus": 1, "num_gpus": 1}})", {"num_gpus"}},
      {R"({"train": {"num_gpus": "one"}, "generation": {}})", {"num_gpus", "one"}},
  };
  for (const Case& bad : cases) expect_layout_refused(bad.text, model, Side::kTrain, bad.words);
}

TEST(M2nSystem, AFileIsItsText) {
  const Model model = make_small_model({});
  const std::string path = testing::TempDir() + "refit_m2n_system_test.json";
  const std::string text = system_json({.num_gpus = 2, .tp = 2}, {});
  std::ofstream(path) << text;
  const Layout from_file = load_layout(path, model, Side::kTrain, 0);
  EXPECT_EQ(from_file.spec, path);
  EXPECT_EQ(resolve_layout(path, Side::kGen), text);
  EXPECT_EQ(from_file.maps,
            load_layout(resolve_layout(path, Side::kGen), model, Side::kTrain, 0).maps);
  EXPECT_EQ(resolve_layout("vllm:tp=2", Side::kGen), "vllm:tp=2");
  EXPECT_THROW(resolve_layout("no such layout", Side::kGen), Error);

  std::ofstream(path) << "tp: 2\n";
  EXPECT_THROW(load_layout(path, model, Side::kTrain, 0), Error);
  std::filesystem::remove(path);
}

TEST(M2nSystem, PublishedFilesLoad) {
  const char* shared = std::getenv("REFIT_SHARED");
  const std::filesystem::path folder =
      std::filesystem::path(shared != nullptr ? shared : REFIT_SOURCE_DIR "/../shared") /
      "data/models/m2n/system_configs";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "skipped: no ../shared";
  const Model model = make_small_model({.layers = 61, .kv_heads = 8, .experts = 256});
  struct Case {
    const char* file;
    size_t train, gen;
  };
  for (const Case& file :
       {Case{"dsv3-128gpus-gb200.json", 64, 64}, Case{"dsv3-256gpus-gb200.json", 128, 128},
        Case{"qwen3-32b-dp1-tp2-to-dp1-tp2.json", 2, 2},
        Case{"qwen3-32b-tp4pp4dp2-to-tp4dp8-64gpus-h100.json", 32, 32}}) {
    Model fitting = model;
    // The experts' 12 rows do not divide by tp=8.
    for (Tensor& tensor : fitting.tensors) {
      if (tensor.role == Role::kExpertColumn) tensor.shape = {256, 16, 8};
      if (tensor.role == Role::kExpertRow) tensor.shape = {256, 8, 16};
    }
    const std::string path = (folder / file.file).string();
    EXPECT_EQ(load_layout(path, fitting, Side::kTrain, 0).ranks.size(), file.train) << file.file;
    EXPECT_EQ(load_layout(path, fitting, Side::kGen, 0).ranks.size(), file.gen) << file.file;
  }
}

}  // namespace
}  // namespace refit
