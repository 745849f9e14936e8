#include <gtest/gtest.h>

#include "tests/sim/layout/small_model.h"

namespace refit {
namespace {

Layout train(const std::string& spec, const Model& model) {
  return load_layout(spec, model, Side::kTrain, 0);
}

/// What ranks 0, 1, ... hold.
std::vector<std::string> all_held(const Model& model, const Layout& layout,
                                  const std::string& tensor) {
  std::vector<std::string> result;
  for (int32_t rank = 0; rank <= layout.ranks.back(); ++rank)
    result.push_back(held(model, layout, tensor, rank));
  return result;
}
using Held = std::vector<std::string>;

TEST(Megatron, FiveAxes) {
  // W = tp * dp = 4 = etp * ep * edp = 2 * 2 * 1. In a stage: tp = rank % 2, dp = rank / 2; etp =
  // rank % 2, ep = rank / 2.
  const Model model = make_small_model({.layers = 2, .experts = 4});
  const Layout layout = train("megatron:tp=2,pp=2,ep=2,dp=2,vocab=1", model);
  EXPECT_EQ(layout.ranks, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(all_held(model, layout, "0.q"),
            (Held{"[0:8, 0:8]", "[8:16, 0:8]", "[0:8, 0:8]", "[8:16, 0:8]", "-", "-", "-", "-"}));
  EXPECT_EQ(all_held(model, layout, "1.o"),
            (Held{"-", "-", "-", "-", "[0:8, 0:8]", "[0:8, 8:16]", "[0:8, 0:8]", "[0:8, 8:16]"}));
  EXPECT_EQ(all_held(model, layout, "1.o_bias"),
            (Held{"-", "-", "-", "-", "[0:8]", "[0:8]", "[0:8]", "[0:8]"}));
  EXPECT_EQ(all_held(model, layout, "0.k"),
            (Held{"[0:2, 0:8]", "[2:4, 0:8]", "[0:2, 0:8]", "[2:4, 0:8]", "-", "-", "-", "-"}));
  EXPECT_EQ(all_held(model, layout, "0.norm"),
            (Held{"[0:8]", "[0:8]", "[0:8]", "[0:8]", "-", "-", "-", "-"}));
  EXPECT_EQ(all_held(model, layout, "0.gate"),
            (Held{"[0:2, 0:6, 0:8]", "[0:2, 6:12, 0:8]", "[2:4, 0:6, 0:8]", "[2:4, 6:12, 0:8]", "-",
                  "-", "-", "-"}));
  EXPECT_EQ(all_held(model, layout, "1.down"),
            (Held{"-", "-", "-", "-", "[0:2, 0:8, 0:6]", "[0:2, 0:8, 6:12]", "[2:4, 0:8, 0:6]",
                  "[2:4, 0:8, 6:12]"}));
  EXPECT_EQ(all_held(model, layout, "embed"),
            (Held{"[0:5, 0:8]", "[5:10, 0:8]", "[0:5, 0:8]", "[5:10, 0:8]", "-", "-", "-", "-"}));
  EXPECT_EQ(all_held(model, layout, "head"),
            (Held{"-", "-", "-", "-", "[0:5, 0:8]", "[5:10, 0:8]", "[0:5, 0:8]", "[5:10, 0:8]"}));
}

TEST(Megatron, ContextParallelRanksHoldTheSameWeights) {
  // tp = rank % 2, cp = rank / 2 % 2, dp = rank / 4; experts: etp 1, ep = rank % 4, edp = rank / 4.
  const Model model = make_small_model({.layers = 1, .experts = 4});
  const Layout layout = train("megatron:tp=2,cp=2,ep=4,etp=1,world=8", model);
  EXPECT_EQ(all_held(model, layout, "0.o"),
            (Held{"[0:8, 0:8]", "[0:8, 8:16]", "[0:8, 0:8]", "[0:8, 8:16]", "[0:8, 0:8]",
                  "[0:8, 8:16]", "[0:8, 0:8]", "[0:8, 8:16]"}));
  EXPECT_EQ(held(model, layout, "0.gate", 1), "[1:2, 0:12, 0:8]");
  EXPECT_EQ(held(model, layout, "0.gate", 5), "[1:2, 0:12, 0:8]");
  EXPECT_EQ(held(model, layout, "0.gate", 7), "[3:4, 0:12, 0:8]");
}

TEST(Megatron, OrderWithPipelineInTheMiddle) {
  // tp = rank % 2, pp = rank / 2 % 2, dp = rank / 4.
  const Model model = make_small_model({.layers = 2});
  const Layout layout = train("megatron:tp=2,pp=2,dp=2,order=tp-cp-pp-ep-dp", model);
  EXPECT_EQ(all_held(model, layout, "0.norm"),
            (Held{"[0:8]", "[0:8]", "-", "-", "[0:8]", "[0:8]", "-", "-"}));
  EXPECT_EQ(all_held(model, layout, "1.q"),
            (Held{"-", "-", "[0:8, 0:8]", "[8:16, 0:8]", "-", "-", "[0:8, 0:8]", "[8:16, 0:8]"}));
}

TEST(Megatron, OrderWithDataFastest) {
  // dp = rank % 2, tp = rank / 2; experts: edp = rank % 2, ep = rank / 2, etp 1.
  const Model model = make_small_model({.layers = 1, .experts = 4});
  const Layout layout = train("megatron:tp=2,dp=2,etp=1,ep=2,order=dp-tp-ep", model);
  EXPECT_EQ(all_held(model, layout, "0.q"),
            (Held{"[0:8, 0:8]", "[0:8, 0:8]", "[8:16, 0:8]", "[8:16, 0:8]"}));
  EXPECT_EQ(all_held(model, layout, "0.gate"),
            (Held{"[0:2, 0:12, 0:8]", "[0:2, 0:12, 0:8]", "[2:4, 0:12, 0:8]", "[2:4, 0:12, 0:8]"}));
}

TEST(Megatron, WidthOfAStageFollowsFromWhatIsGiven) {
  const Model model = make_small_model({.layers = 16, .experts = 48});
  const auto world = [&](const std::string& spec) { return train(spec, model).ranks.size(); };
  EXPECT_EQ(world("megatron:ep=16,pp=16"), 256u);  // DESIGN.md: W = 16
  EXPECT_EQ(world("megatron:tp=2,ep=3,etp=1"), 6u);
  EXPECT_EQ(world("megatron:tp=4,cp=2"), 8u);
  EXPECT_EQ(world("megatron:tp=2,dp=3"), 6u);
  EXPECT_EQ(world("megatron:tp=2,etp=1,ep=2,edp=3"), 6u);
  EXPECT_EQ(world("megatron:tp=2,pp=2,dp=3,edp=3,world=12"), 12u);
  EXPECT_EQ(world("megatron:tp=1"), 1u);
}

TEST(Megatron, KvHeadsAreSharedByNeighbours) {
  // Two KV heads on tp=4: ranks 0, 1 hold head 0, ranks 2, 3 head 1.
  const Model model = make_small_model({.layers = 1});
  EXPECT_EQ(all_held(model, train("megatron:tp=4", model), "0.k"),
            (Held{"[0:2, 0:8]", "[0:2, 0:8]", "[2:4, 0:8]", "[2:4, 0:8]"}));
}

TEST(Megatron, VocabularyIsPaddedBeforeItIsCut) {
  // 10 rows: to a multiple of 1 * 4, which is 12, 3 each; of 2 * 4, which is 16, 4 each; of 128 *
  // 4.
  const Model model = make_small_model({.layers = 1, .vocab = 10});
  EXPECT_EQ(all_held(model, train("megatron:tp=4,vocab=1", model), "embed"),
            (Held{"[0:3, 0:8]", "[3:6, 0:8]", "[6:9, 0:8]", "[9:10, 0:8]"}));
  EXPECT_EQ(all_held(model, train("megatron:tp=4,vocab=2", model), "embed"),
            (Held{"[0:4, 0:8]", "[4:8, 0:8]", "[8:10, 0:8]", "-"}));
  EXPECT_EQ(all_held(model, train("megatron:tp=4", model), "head"),
            (Held{"[0:10, 0:8]", "-", "-", "-"}));
  // Qwen3: 151936 rows to 149 * 1024 = 152576, 19072 each.
  const Model qwen = make_small_model({.layers = 1, .vocab = 151936});
  const Layout layout = train("megatron:tp=8", qwen);
  EXPECT_EQ(held(qwen, layout, "embed", 1), "[19072:38144, 0:8]");
  EXPECT_EQ(held(qwen, layout, "embed", 7), "[133504:151936, 0:8]");
}

TEST(Megatron, TiedEmbeddingsAreAtBothEnds) {
  const Model model = make_small_model({.layers = 3, .tied = true});
  EXPECT_EQ(all_held(model, train("megatron:tp=2,pp=3,vocab=1", model), "embed"),
            (Held{"[0:5, 0:8]", "[5:10, 0:8]", "-", "-", "[0:5, 0:8]", "[5:10, 0:8]"}));
  EXPECT_EQ(all_held(model, train("megatron:tp=2,vocab=1", model), "embed"),
            (Held{"[0:5, 0:8]", "[5:10, 0:8]"}));
}

TEST(Megatron, StagesFollowTheirKeys) {
  const Model model = make_small_model({.layers = 8});
  EXPECT_EQ(held(model, train("megatron:pp=2,vpp=2", model), "2.norm", 1), "[0:8]");
  EXPECT_EQ(held(model, train("megatron:pp=2,vpp=2", model), "4.norm", 1), "-");
  EXPECT_EQ(held(model, train("megatron:pp=3,layers=1|6|1", model), "6.norm", 1), "[0:8]");
  EXPECT_EQ(held(model, train("megatron:pp=2,first=7", model), "6.norm", 0), "[0:8]");
  EXPECT_EQ(held(model, train("megatron:pp=2,last=7", model), "1.norm", 1), "[0:8]");
  EXPECT_EQ(
      train("megatron:pp=3", model).notes,
      (std::vector<std::string>{"8 layers over 3 pipeline stages: 2 of 3 layers, then 1 of 2"}));
}

TEST(Megatron, RanksMayBeAnySet) {
  const Model model = make_small_model({.layers = 1});
  const Layout layout = train("megatron:tp=4,ranks=8-9|3|0", model);
  EXPECT_EQ(layout.ranks, (std::vector<int32_t>{0, 3, 8, 9}));
  EXPECT_EQ(held(model, layout, "0.q", 8), "[0:4, 0:8]");
  EXPECT_EQ(held(model, layout, "0.q", 3), "[8:12, 0:8]");
  EXPECT_EQ(held(model, layout, "0.q", 0), "[12:16, 0:8]");
  EXPECT_EQ(load_layout("megatron:tp=2", model, Side::kGen, 6).ranks, (std::vector<int32_t>{6, 7}));
}

TEST(Megatron, ProjectionsIntoPredictionLayersAreCutWhereTheFrameworkCutsThem) {
  // Megatron-Core's eh_proj is column parallel, vLLM's and SGLang's are plain; vLLM's fc of Qwen is
  // column parallel again.
  Model model = make_small_model({.layers = 1});
  model.tensors.push_back({"eh", {8, 16}, Dtype::kBf16, Role::kMtpColumn, Block::kHead});
  model.tensors.push_back({"fc", {8, 16}, Dtype::kBf16, Role::kMtpFcColumn, Block::kHead});
  const std::string whole = "[0:8, 0:16]", half = "[4:8, 0:16]";
  for (const auto& [spec, eh, fc] :
       {std::tuple("megatron:tp=2", half, half), std::tuple("vllm:tp=2", whole, half),
        std::tuple("sglang:tp=2", whole, whole), std::tuple("fsdp:world=2,tp=2", whole, whole)}) {
    const Layout layout = train(spec, model);
    EXPECT_EQ(held(model, layout, "eh", 1), eh) << spec;
    EXPECT_EQ(held(model, layout, "fc", 1), fc) << spec;
  }
}

TEST(Megatron, EqualPlacementsShareAMap) {
  const Model model = make_small_model({.layers = 4, .experts = 4});
  const Layout layout = train("megatron:tp=2,pp=2,ep=2", model);
  const auto map_of = [&](const std::string& name) {
    for (size_t t = 0; t < model.tensors.size(); ++t) {
      if (model.tensors[t].name == name) return layout.tensor_map[t];
    }
    return -1;
  };
  EXPECT_EQ(map_of("embed"), 0);
  EXPECT_EQ(map_of("0.q"), map_of("1.q"));
  EXPECT_NE(map_of("1.q"), map_of("2.q"));          // another stage
  EXPECT_EQ(map_of("0.norm"), map_of("0.o_bias"));  // another role, the same placement
  EXPECT_EQ(map_of("final_norm"), map_of("3.norm"));
  // embed; norm, q, k, o, gate, down per stage; head.
  EXPECT_EQ(layout.maps.size(), 14u);
}

}  // namespace
}  // namespace refit
