#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "sim/layout/demand.h"
#include "tests/sim/layout/refused.h"
#include "tests/sim/layout/small_model.h"

namespace refit {
namespace {

TEST(Eplb, SlotsAreDealtInOrder) {
  // Six slots for four experts over two expert ranks: 0, 1, 3 and 2, 3, 0.
  const Model model = make_small_model({.layers = 1, .experts = 4});
  const Layout layout = load_layout("vllm:tp=2,ep=on,eplb=0|1|3|2|3|0", model, Side::kGen, 4);
  EXPECT_EQ(held(model, layout, "0.down", 4), "[0:1, 0:8, 0:12] [1:2, 0:8, 0:12] [3:4, 0:8, 0:12]");
  EXPECT_EQ(held(model, layout, "0.down", 5), "[2:3, 0:8, 0:12] [3:4, 0:8, 0:12] [0:1, 0:8, 0:12]");
  EXPECT_EQ(held(model, layout, "0.q", 4), "[0:8, 0:8]");
  const RankMap& down = layout.maps[static_cast<size_t>(layout.tensor_map.at(7))];
  ASSERT_EQ(model.tensors[7].name, "0.down");
  EXPECT_EQ(down.find(5)->at(2), (Shard{Box{{0, 0, 0}, {1, 8, 12}}, 2 * 96, Dims{96, 12, 1}}));
}

TEST(Eplb, ARankMayHaveAnExpertTwice) {
  const Model model = make_small_model({.layers = 1, .experts = 2});
  const Layout train = load_layout("megatron:ep=2", model, Side::kTrain, 0);
  const Layout gen = load_layout("sglang:tp=2,ep=2,eplb=0|0|1|0", model, Side::kGen, 2);
  EXPECT_EQ(held(model, gen, "0.gate", 2), "[0:1, 0:12, 0:8] [0:1, 0:12, 0:8]");
  EXPECT_EQ(held(model, gen, "0.gate", 3), "[1:2, 0:12, 0:8] [0:1, 0:12, 0:8]");
  // It crosses the wire once: gate and down of expert 0 to both ranks, of expert 1 to rank 3.
  const Demand demand = make_demand(model, train, gen);
  int64_t bytes = 0;
  for (size_t t : {size_t{6}, size_t{7}}) {
    for (const Atom& atom : demand.overlays[static_cast<size_t>(demand.tensor_overlay[t])].atoms) {
      bytes +=
          2 * atom.box.volume() * std::ssize(demand.rank_sets[static_cast<size_t>(atom.needers)]);
    }
  }
  EXPECT_EQ(bytes, 2 * 3 * 96 * 2);
}

TEST(Eplb, ExpertTensorParallelismCutsEverySlot) {
  const Model model = make_small_model({.layers = 1, .experts = 2});
  const Layout layout = load_layout("sglang:tp=4,ep=2,eplb=1|0|0|1", model, Side::kGen, 0);
  EXPECT_EQ(held(model, layout, "0.gate", 1), "[1:2, 6:12, 0:8] [0:1, 6:12, 0:8]");
  EXPECT_EQ(held(model, layout, "0.gate", 2), "[0:1, 0:6, 0:8] [1:2, 0:6, 0:8]");
}

TEST(Eplb, AFileHasOneListOrOnePerMoeLayer) {
  Model model = make_small_model({.layers = 3, .experts = 2});
  std::erase_if(model.tensors, [](const Tensor& tensor) {
    return tensor.layer == 0 && (tensor.name == "0.gate" || tensor.name == "0.down");
  });
  const std::string path = testing::TempDir() + "refit_eplb_test.json";
  std::ofstream(path) << R"({"physical_to_logical": [[0, 1, 1, 0], [1, 1, 0, 0]]})";
  const std::string spec = "vllm:eplb=" + path + ",tp=2,ep=on";
  const Layout layout = load_layout(spec, model, Side::kGen, 0);
  EXPECT_EQ(held(model, layout, "1.gate", 0), "[0:1, 0:12, 0:8] [1:2, 0:12, 0:8]");
  EXPECT_EQ(held(model, layout, "2.gate", 0), "[1:2, 0:12, 0:8] [1:2, 0:12, 0:8]");
  // A plan keeps the table, not the file's name.
  const std::string resolved = resolve_layout(spec, Side::kGen);
  EXPECT_EQ(resolved, "vllm:eplb=0|1|1|0/1|1|0|0,tp=2,ep=on");
  EXPECT_EQ(load_layout(resolved, model, Side::kGen, 0).maps, layout.maps);

  for (const auto& [text, words] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"{}", {"physical_to_logical"}},
           {R"({"physical_to_logical": 3})", {"physical_to_logical"}},
           {R"({"physical_to_logical": [0, 1], "x": 1})", {"x"}},
           {R"({"physical_to_logical": [[0, 1], 1]})", {"[1]"}},
           {R"({"physical_to_logical": [0, -1]})", {"-1"}},
           {R"({"physical_to_logical": [[0, 1], [0, 1], [0, 1]]})", {"3 lists", "2: one per MoE"}},
       }) {
    std::ofstream(path) << text;
    expect_layout_refused(spec, model, Side::kGen, words);
  }
  std::remove(path.c_str());
}

TEST(Eplb, MultiTokenPredictionLayersHaveTheSameSlots) {
  Model model = make_small_model({.layers = 1, .experts = 2});
  model.tensors.push_back(
      {"mtp.gate", {2, 12, 8}, Dtype::kBf16, Role::kExpertColumn, Block::kHead});
  const Layout layout = load_layout("vllm:tp=2,ep=on,eplb=1|1|0|1", model, Side::kGen, 0);
  for (const char* tensor : {"0.gate", "mtp.gate"}) {
    EXPECT_EQ(held(model, layout, tensor, 0), "[1:2, 0:12, 0:8] [1:2, 0:12, 0:8]");
    EXPECT_EQ(held(model, layout, tensor, 1), "[0:1, 0:12, 0:8] [1:2, 0:12, 0:8]");
  }
  Model two = make_small_model({.layers = 2, .experts = 2});
  two.tensors.push_back(model.tensors.back());
  expect_layout_refused("vllm:tp=2,ep=on,eplb=0|1/1|0", two, Side::kGen,
                        {"2 lists", "1, as multi-token-prediction layers"});
}

TEST(Eplb, BadTablesAreRefused) {
  const Model model = make_small_model({.layers = 1, .experts = 4});
  const auto refused = [&](const std::string& spec, const std::vector<std::string>& words) {
    expect_layout_refused(spec, model, Side::kGen, words);
  };
  refused("vllm:tp=2,eplb=0|1|2|3", {"key eplb", "ep=on"});
  refused("vllm:tp=2,ep=on,eplb=", {"key eplb"});
  refused("vllm:tp=2,ep=on,eplb=no_such_file.json", {"key eplb", "no_such_file.json"});
  refused("vllm:tp=2,ep=on,eplb=0|1|2|x", {"key eplb", "x"});
  refused("vllm:tp=2,ep=on,eplb=0|1|2|4", {"expert 4", "0 to 3"});
  refused("vllm:tp=2,ep=on,eplb=0|1|2|2", {"no slot of expert 3"});
  refused("vllm:tp=2,ep=on,eplb=0|1|2|3|0", {"over ep=2", "extent 5"});
  refused("vllm:tp=2,ep=on,eplb=0|1|2|3/0|1|2|3", {"2 lists", "1: one per MoE layer"});
  refused("megatron:eplb=0|1|2|3", {"unknown key \"eplb\""});
  expect_layout_refused("vllm:tp=2,ep=on,eplb=0|1", make_small_model({}), Side::kGen,
                        {"expert 0", "0 experts"});
}

}  // namespace
}  // namespace refit
