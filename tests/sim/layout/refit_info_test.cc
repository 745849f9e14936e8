#include <gtest/gtest.h>

#include "tests/sim/layout/refused.h"
#include "tests/sim/layout/small_model.h"

namespace refit {
namespace {

/// One layer with an MLP tensor, its experts and one tensor outside the bulk.
struct Info {
  std::string train_world = "4", gen_world = "2", extra = "";
  std::string up =
      R"("pp_stage": 1, "src_mesh_info": {"mesh": [0, 1]}, "src_placements": [{"dim": 0}],
      "dst_mesh_info": {"mesh": [2, 3]}, "dst_placements": [{"dim": 1}])";
  std::string text() const {
    return fmt::format(
        R"({{"layer_names": ["model.layers.0"], "per_layer_params": {{"model.layers.0": [
      {{"name": "model.layers.0.mlp.up_proj.weight", "global_shape": [8, 4], "dtype": "torch.bfloat16", {}}},
      {{"name": "model.layers.0.mlp.experts.up_proj.weight", "global_shape": [2, 6, 4], "dtype": "bfloat16",
        "grouped_expert_proj": "up_proj", "pp_stage": 0,
        "src_mesh_info": {{"mesh": [[0], [1]]}}, "src_placements": [{{"dim": 0}}, {{}}],
        "dst_mesh_info": {{"mesh": [[2, 3]]}}, "dst_placements": [{{}}, {{"dim": 0}}]}}]}},
      "train_world_size": {}, "gen_world_size": {}, "pp_size": 2, "gen_tp_size": 2,
      "misc_meta": {{"model.norm.weight": {{"shape": [4], "dtype": "float32"}}}}{}}})",
        up, train_world, gen_world, extra);
  }
};

Model read_model(const Info& info) {
  return parse_model(info.text(), "info.json", {.dtype = "", .unknown_replicate = true});
}

TEST(RefitInfo, IsAModel) {
  const Model model = read_model({});
  ASSERT_EQ(model.tensors.size(), 3u);
  EXPECT_EQ(model.tensors[0].name, "model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(model.tensors[1].shape, (Dims{2, 6, 4}));
  EXPECT_EQ(model.tensors[2].dtype, Dtype::kFp32);
  EXPECT_EQ(model.experts, 2);
}

TEST(RefitInfo, RanksOfStagesFollowEachOther) {
  // Four train ranks in two stages, two gen ranks. A stage's communicator numbers its own train
  // ranks 0 and 1 and the gen ranks 2 and 3: of stage 1 these are ranks 2, 3 and 4, 5.
  const Model model = read_model({});
  const Layout train = load_layout(Info{}.text(), model, Side::kTrain, 0);
  const Layout gen = load_layout(Info{}.text(), model, Side::kGen, 99);
  EXPECT_EQ(train.ranks, (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(gen.ranks, (std::vector<int32_t>{4, 5}));
  const std::string up = "model.layers.0.mlp.up_proj.weight";
  EXPECT_EQ(held(model, train, up, 0), "-");
  EXPECT_EQ(held(model, train, up, 2), "[0:4, 0:4]");
  EXPECT_EQ(held(model, train, up, 3), "[4:8, 0:4]");
  EXPECT_EQ(held(model, gen, up, 5), "[0:8, 2:4]");
  const std::string experts = "model.layers.0.mlp.experts.up_proj.weight";
  EXPECT_EQ(held(model, train, experts, 1), "[1:2, 0:6, 0:4]");
  EXPECT_EQ(held(model, gen, experts, 4), "[0:1, 0:6, 0:4]");
  // Gathered on training rank 0, needed by all.
  EXPECT_EQ(held(model, train, "model.norm.weight", 0), "[0:4]");
  EXPECT_EQ(held(model, train, "model.norm.weight", 1), "-");
  EXPECT_EQ(held(model, gen, "model.norm.weight", 5), "[0:4]");
  EXPECT_EQ(train.notes.size(), 1u);
}

TEST(RefitInfo, BadOnesAreRefused) {
  const Model model = read_model({});
  const auto refused = [&](const Info& info, const std::vector<std::string>& words) {
    for (const Side side : {Side::kTrain, Side::kGen}) {
      expect_layout_refused(info.text(), model, side, words);
    }
  };
  const auto up = [](const std::string& src, const std::string& placements) {
    Info info;
    info.up = R"("pp_stage": 1, "src_mesh_info": {"mesh": )" + src + R"(}, "src_placements": )" +
              placements + R"(, "dst_mesh_info": {"mesh": [2, 3]}, "dst_placements": [{"dim": 1}])";
    return info;
  };
  refused({.train_world = "5"}, {"5 ranks", "pp_size = 2"});
  refused({.train_world = "0"}, {"train_world_size"});
  refused({.extra = R"(, "vpp": 2)"}, {"vpp"});
  refused({.up = R"("pp_stage": 2)"}, {"pp_stage", "2"});
  refused({.up = R"("src_placements": [])"}, {"no key \"pp_stage\""});
  refused({.up = R"("pp_stage": 0)"}, {"no key \"src_"});
  refused({.gen_world = "1"}, {"rank 3", "2 to 2, the gen ranks"});
  refused(up("[0, 2]", R"([{"dim": 0}])"), {"rank 2", "0 to 1, the train ranks"});
  refused(up("[0, 0]", R"([{"dim": 0}])"), {"rank 0 more than once"});
  refused(up("[[0], [0, 1]]", R"([{}, {}])"), {"a list of 2", "1, as the others"});
  refused(up("[[0], 1]", R"([{}, {}])"), {"equal depth"});
  refused(up("[0, [1]]", R"([{}])"), {"equal depth"});
  refused(up("[]", R"([])"), {"an empty list"});
  refused(up("0", R"([])"), {"mesh"});
  refused(up("[0, 1]", R"([])"), {"0 placements", "1, one per dimension"});
  refused(up("[0, 1]", R"([{"dim": -1}])"), {"-1"});
  refused(up("[0, 1]", R"([{"reduce": "sum"}])"), {"reduce"});
  refused(up("[0, 1]", R"(["shard"])"), {"shard"});
  expect_layout_refused(up("[0, 1]", R"([{"dim": 2}])").text(), model, Side::kTrain,
                        {"up_proj", "2 dimensions"});

  Model other = model;
  other.tensors[0].shape = {8, 8};
  expect_layout_refused(Info{}.text(), other, Side::kTrain, {"global shape [8, 4]", "[8, 8]"});
  other = model;
  other.tensors[0].name = "model.layers.0.mlp.gate_proj.weight";
  expect_layout_refused(Info{}.text(), other, Side::kGen,
                        {"1 missing tensors (model.layers.0.mlp.gate_proj.weight)", "unexpected"});
}

}  // namespace
}  // namespace refit
