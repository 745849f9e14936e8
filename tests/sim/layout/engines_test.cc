#include <gtest/gtest.h>

#include <algorithm>

#include "tests/sim/layout/refused.h"
#include "tests/sim/layout/small_model.h"

namespace refit {
namespace {

TEST(Engines, OfDifferentLayoutsAreOneSide) {
  const Model model = make_small_model({.layers = 3, .experts = 4});
  const std::string spec = "vllm:tp=2,ep=on,ranks=9|8+sglang:tp=4,ep=2+vllm:pp=2,ranks=0-1";
  const Layout layout = load_layout(spec, model, Side::kGen, 4);
  EXPECT_EQ(layout.spec, spec);
  EXPECT_EQ(layout.ranks, (std::vector<int32_t>{0, 1, 8, 9, 10, 11, 12, 13}));
  EXPECT_EQ(layout.notes.size(), 1u);  // three layers over two stages
  const Layout first = load_layout("vllm:tp=2,ep=on,ranks=9|8", model, Side::kGen, 0);
  const Layout second = load_layout("sglang:tp=4,ep=2", model, Side::kGen, 10);
  const Layout third = load_layout("vllm:pp=2", model, Side::kGen, 0);
  for (const Tensor& tensor : model.tensors) {
    for (const int32_t rank : layout.ranks) {
      const Layout& own = rank < 8 ? third : rank < 10 ? first : second;
      EXPECT_EQ(held(model, layout, tensor.name, rank), held(model, own, tensor.name, rank))
          << tensor.name << " on " << rank;
    }
  }
  for (const RankMap& map : layout.maps) {
    EXPECT_TRUE(std::is_sorted(map.shards.begin(), map.shards.end(),
                               [](const auto& a, const auto& b) { return a.first < b.first; }));
  }
  EXPECT_EQ(resolve_layout(spec, Side::kGen), spec);
}

TEST(Engines, BadOnesAreRefused) {
  const Model model = make_small_model({.layers = 2, .experts = 4});
  const auto refused = [&](const std::string& spec, const std::vector<std::string>& words) {
    expect_layout_refused(spec, model, Side::kGen, words);
  };
  refused("vllm:tp=2+vllm:tp=2,ranks=1-2", {"duplicate rank 1", "disjoint ranks"});
  refused("vllm:tp=2+", {"key tp", "2+"});
  refused("vllm:tp=2+trtllm:tp=2", {"key tp"});
  refused("vllm:tp=2+vllm:tp=3", {"vllm:tp=3", "over"});
  refused("vllm:tp=2+vllm:", {"key=value"});
}

}  // namespace
}  // namespace refit
