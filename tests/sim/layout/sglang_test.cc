#include <gtest/gtest.h>

#include "tests/sim/layout/small_model.h"

namespace refit {
namespace {

TEST(Sglang, ExpertRanksAreBlocksOfTp) {
  // tp=4, ep=2: tp ranks 0, 1 have experts 0-1, tp ranks 2, 3 experts 2-3; each halved by etp.
  const Model model = make_small_model({.layers = 1, .experts = 4});
  const Layout layout = load_layout("sglang:tp=4,ep=2,dp=2", model, Side::kGen, 0);
  ASSERT_EQ(layout.ranks.size(), 8u);
  const char* gate[] = {"[0:2, 0:6, 0:8]", "[0:2, 6:12, 0:8]", "[2:4, 0:6, 0:8]",
                        "[2:4, 6:12, 0:8]"};
  for (int32_t rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(held(model, layout, "0.gate", rank), gate[rank % 4]) << rank;
    EXPECT_EQ(held(model, layout, "0.q", rank),
              fmt::format("[{}:{}, 0:8]", rank % 4 * 4, rank % 4 * 4 + 4));
  }
}

TEST(Sglang, StagesAndEnginesAsInVllm) {
  const Model model = make_small_model({.layers = 2, .experts = 4});
  const Layout ours = load_layout("sglang:tp=2,pp=2,dp=2,engines=2", model, Side::kGen, 3);
  const Layout vllm = load_layout("vllm:tp=2,pp=2,dp=2,engines=2", model, Side::kGen, 3);
  EXPECT_EQ(ours.ranks, vllm.ranks);
  for (const Tensor& tensor : model.tensors) {
    for (const int32_t rank : ours.ranks) {
      EXPECT_EQ(held(model, ours, tensor.name, rank), held(model, vllm, tensor.name, rank));
    }
  }
}

}  // namespace
}  // namespace refit
