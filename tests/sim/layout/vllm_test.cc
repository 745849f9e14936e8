#include <gtest/gtest.h>

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

TEST(Vllm, VocabularyIsPaddedToSixtyFour) {
  // 151936 = 64 * 2374 is cut as it is; 151937 rows as if they were 152000 = 64 * 2375.
  const Model qwen = make_small_model({.layers = 1, .vocab = 151936});
  EXPECT_EQ(held(qwen, gen("vllm:tp=8", qwen), "embed", 7), "[132944:151936, 0:8]");
  const Model more = make_small_model({.layers = 1, .vocab = 151937});
  EXPECT_EQ(held(more, gen("vllm:tp=8", more), "embed", 0), "[0:19000, 0:8]");
  EXPECT_EQ(held(more, gen("sglang:tp=8", more), "head", 7), "[133000:151937, 0:8]");
  const Model few = make_small_model({.layers = 1, .vocab = 10});
  EXPECT_EQ(held(few, gen("vllm:tp=2,vocab=12", few), "embed", 1), "[6:10, 0:8]");
  EXPECT_EQ(held(few, gen("vllm:tp=2", few), "embed", 1), "-");
}

TEST(Vllm, StagesBeforeTheLastTakeMore) {
  // 6 layers over 4 stages, get_pp_indices: 1, 2, 2, 1. SGLang's: 1, 1, 2, 2.
  const Model model = make_small_model({.layers = 6});
  const auto stages = [&](const std::string& spec) {
    const Layout layout = gen(spec, model);
    std::string text;
    for (int32_t layer = 0; layer < 6; ++layer) {
      for (int32_t rank = 0; rank < 4; ++rank) {
        if (held(model, layout, fmt::format("{}.norm", layer), rank) != "-") {
          text += fmt::format("{}", rank);
        }
      }
    }
    return text + " " + layout.notes.at(0);
  };
  EXPECT_EQ(stages("vllm:pp=4"),
            "011223 6 layers over 4 pipeline stages: 1 of 1 layers, then 2 of 2, then 1 of 1");
  EXPECT_EQ(stages("sglang:pp=4"),
            "012233 6 layers over 4 pipeline stages: 2 of 1 layers, then 2 of 2");
}

TEST(Fsdp, ShardsWhatTensorParallelismLeaves) {
  // Ranks (replica, shard, tp), tp fastest: rank = (replica * 2 + shard) * 2 + tp. q has 16 rows:
  // tp 8 each, then shards of 4. o has 16 columns: tp cuts these, and the 8 rows are sharded.
  const Model model = make_small_model({.layers = 1, .vocab = 10});
  const Layout layout = load_layout("fsdp:world=8,replicas=2,tp=2", model, Side::kTrain, 0);
  const char* q[] = {"[0:4, 0:8]", "[8:12, 0:8]", "[4:8, 0:8]", "[12:16, 0:8]"};
  const char* o[] = {"[0:4, 0:8]", "[0:4, 8:16]", "[4:8, 0:8]", "[4:8, 8:16]"};
  const char* embed[] = {"[0:3, 0:8]", "[5:8, 0:8]", "[3:5, 0:8]", "[8:10, 0:8]"};
  for (int32_t rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(held(model, layout, "0.q", rank), q[rank % 4]) << rank;
    EXPECT_EQ(held(model, layout, "0.o", rank), o[rank % 4]) << rank;
    EXPECT_EQ(held(model, layout, "embed", rank), embed[rank % 4]) << rank;
    EXPECT_EQ(held(model, layout, "0.norm", rank), rank / 2 % 2 == 0 ? "[0:4]" : "[4:8]") << rank;
  }
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
