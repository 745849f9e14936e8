#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/sim/layout/small_model.h"

namespace refit {
namespace {

Layout gen(const std::string& spec, const Model& model) {
  return load_layout(spec, model, Side::kGen, 0);
}

TEST(Vllm, RanksAreNumberedEngineDataPipelineTensor) {
  // tp = rank % 2, pp = rank / 2 % 2, dp = rank / 4 % 2, engine = rank / 8.
  const Model model = make_small_model({.layers = 2});
  const Layout layout = gen("vllm:tp=2,pp=2,dp=2,engines=2", model);
  ASSERT_EQ(layout.ranks.size(), 16u);
  for (int32_t rank = 0; rank < 16; ++rank) {
    const bool second_stage = rank / 2 % 2 == 1;
    const std::string part = rank % 2 == 0 ? "[0:8, 0:8]" : "[8:16, 0:8]";
    EXPECT_EQ(held(model, layout, "0.q", rank), second_stage ? "-" : part) << rank;
    EXPECT_EQ(held(model, layout, "1.q", rank), second_stage ? part : "-") << rank;
    EXPECT_EQ(held(model, layout, "final_norm", rank), second_stage ? "[0:8]" : "-") << rank;
  }
}

TEST(Vllm, ExpertsSpreadOverTheRanksOfAnEngine) {
  // Expert rank = dp index * 2 + tp index; 6 experts over 4: 2, 2, 1, 1. Engine 1 repeats it.
  const Model model = make_small_model({.layers = 1, .experts = 6});
  const Layout layout = gen("vllm:tp=2,dp=2,ep=on,engines=2", model);
  const char* expected[] = {"[0:2, 0:12, 0:8]", "[2:4, 0:12, 0:8]", "[4:5, 0:12, 0:8]",
                            "[5:6, 0:12, 0:8]"};
  for (int32_t rank = 0; rank < 8; ++rank)
    EXPECT_EQ(held(model, layout, "0.gate", rank), expected[rank % 4]) << rank;
}

TEST(Vllm, SpreadExpertsStayInTheirStage) {
  // Stage 1 has ranks 2, 3 (dp 0) and 6, 7 (dp 1); their expert ranks are 0, 1, 2, 3.
  const Model model = make_small_model({.layers = 2, .experts = 4});
  const Layout layout = gen("vllm:tp=2,pp=2,dp=2,ep=on", model);
  EXPECT_EQ(held(model, layout, "1.gate", 2), "[0:1, 0:12, 0:8]");
  EXPECT_EQ(held(model, layout, "1.gate", 3), "[1:2, 0:12, 0:8]");
  EXPECT_EQ(held(model, layout, "1.gate", 6), "[2:3, 0:12, 0:8]");
  EXPECT_EQ(held(model, layout, "1.gate", 7), "[3:4, 0:12, 0:8]");
  EXPECT_EQ(held(model, layout, "1.gate", 0), "-");
}

TEST(Vllm, WithoutExpertParallelismEachExpertIsCutByTp) {
  const Model model = make_small_model({.layers = 1, .experts = 3});
  for (const char* spec : {"vllm:tp=2,dp=2", "vllm:tp=2,dp=2,ep=off"}) {
    const Layout layout = gen(spec, model);
    for (int32_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(held(model, layout, "0.gate", rank),
                rank % 2 == 0 ? "[0:3, 0:6, 0:8]" : "[0:3, 6:12, 0:8]");
      EXPECT_EQ(held(model, layout, "0.down", rank),
                rank % 2 == 0 ? "[0:3, 0:8, 0:6]" : "[0:3, 0:8, 6:12]");
    }
  }
}

TEST(Vllm, MoreExpertRanksThanExperts) {
  const Model model = make_small_model({.layers = 1, .experts = 2});
  const Layout layout = gen("vllm:dp=3,ep=on", model);
  EXPECT_EQ(held(model, layout, "0.down", 1), "[1:2, 0:8, 0:12]");
  EXPECT_EQ(held(model, layout, "0.down", 2), "-");
}

TEST(Vllm, KvHeadsAreSharedByNeighbours) {
  const Model model = make_small_model({.layers = 1, .kv_heads = 2});
  const Layout layout = gen("vllm:tp=8,dp=2", model);
  for (int32_t rank = 0; rank < 16; ++rank) {
    EXPECT_EQ(held(model, layout, "0.k", rank), rank % 8 < 4 ? "[0:2, 0:8]" : "[2:4, 0:8]") << rank;
  }
}

TEST(Vllm, StagesMayBeSaid) {
  const Model model = make_small_model({.layers = 3});
  EXPECT_EQ(held(model, gen("vllm:pp=2", model), "1.norm", 0), "[0:8]");
  EXPECT_EQ(gen("vllm:pp=2", model).notes.size(), 1u);
  EXPECT_EQ(held(model, gen("vllm:pp=2,layers=1|2", model), "1.norm", 0), "-");
  EXPECT_TRUE(gen("vllm:pp=2,layers=1|2", model).notes.empty());
}

TEST(Fsdp, CutsDimensionZeroInTorchChunks) {
  const Model model = make_small_model({.layers = 1, .experts = 5, .vocab = 10});
  const Layout layout = load_layout("fsdp:world=4", model, Side::kTrain, 2);
  EXPECT_EQ(layout.ranks, (std::vector<int32_t>{2, 3, 4, 5}));
  EXPECT_EQ(held(model, layout, "embed", 2), "[0:3, 0:8]");
  EXPECT_EQ(held(model, layout, "embed", 5), "[9:10, 0:8]");
  EXPECT_EQ(held(model, layout, "0.o", 3), "[2:4, 0:16]");
  EXPECT_EQ(held(model, layout, "0.gate", 4), "[4:5, 0:12, 0:8]");
  EXPECT_EQ(held(model, layout, "0.gate", 5), "-");
}

}  // namespace
}  // namespace refit
