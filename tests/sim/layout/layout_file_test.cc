#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "tests/sim/layout/refused.h"
#include "tests/sim/layout/small_model.h"

namespace refit {
namespace {

/// Tensors of the given names, all [8, 4].
Model tensors(const std::vector<std::string>& names, Dims shape = {8, 4}) {
  Model model;
  model.name = "few";
  for (const std::string& name : names) {
    model.tensors.push_back(
        {name, shape, Dtype::kBf16, Role::kReplicated, Block::kLayer, 0, false});
  }
  return model;
}

Layout load(const std::string& text, const Model& model) {
  return load_layout(text, model, Side::kTrain, 0);
}

const std::vector<Shard>& shards(const Layout& layout, int32_t rank) {
  static const std::vector<Shard> kNone;
  const auto* found = layout.maps[static_cast<size_t>(layout.tensor_map[0])].find(rank);
  return found == nullptr ? kNone : *found;
}

TEST(LayoutFile, SaysWhatAGridSays) {
  const Model model = make_small_model({.layers = 4, .experts = 4});
  const Layout grid = load("megatron:tp=2,ep=2,pp=2,etp=1,vocab=1", model);
  const Layout file = load(R"(
meshes:
  stage0: {axes: [dp, tp], sizes: [1, 2], ranks: 0-1}
  stage1: {axes: [dp, tp], sizes: [1, 2], ranks: 2-3}
  ep0: {axes: [ep], sizes: [2], ranks: 0-1}
  ep1: {axes: [ep], sizes: [2], ranks: [2, 3]}
tensors:
  - {name: embed, mesh: stage0, placements: [replicate, shard(0)]}
  - {name: head, mesh: stage1, placements: [replicate, shard(0)]}
  - {name: ["{0-1}.q", "{0-1}.k"], mesh: stage0, placements: [replicate, shard(0)]}
  - {name: ["{2-3}.q", "{2-3}.k"], mesh: stage1, placements: [replicate, shard(0)]}
  - {name: "{0-1}.o", mesh: stage0, placements: [replicate, shard(1)]}
  - {name: "{2-3}.o", mesh: stage1, placements: [replicate, shard(1)]}
  - {name: ["{0-1}.gate", "{0-1}.down"], mesh: ep0, placements: [shard(0)]}
  - {name: ["{2-3}.gate", "{2-3}.down"], mesh: ep1, placements: [shard(0)]}
  - {name: ["{0-1}.norm", "{0-1}.o_bias"], mesh: stage0, placements: [replicate, replicate]}
default: {mesh: stage1, placements: [replicate, replicate]}
)",
                           model);
  EXPECT_EQ(file.ranks, grid.ranks);
  for (const Tensor& tensor : model.tensors) {
    for (int32_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(held(model, file, tensor.name, rank), held(model, grid, tensor.name, rank))
          << tensor.name << " on " << rank;
    }
  }
}

TEST(LayoutFile, JsonSaysTheSame) {
  const Model model = tensors({"w"});
  const Layout layout = load(R"json({"tensors": [{"name": "w", "placements": ["shard(1)"],
      "mesh": {"axes": ["tp"], "sizes": [2], "ranks": [[5], [3]]}}], "ranks": [3, 5, 9]})json",
                             model);
  EXPECT_EQ(held(model, layout, "w", 5), "[0:8, 0:2]");
  EXPECT_EQ(held(model, layout, "w", 3), "[0:8, 2:4]");
  EXPECT_EQ(layout.ranks, (std::vector<int32_t>{3, 5, 9}));
}

TEST(LayoutFile, MeshesWithoutRanksBeginAtTheFirstRank) {
  const Model model = tensors({"w"});
  const Layout layout = load_layout(
      "default: {mesh: {axes: [tp], sizes: [2]}, placements: [shard(0)]}\n", model, Side::kGen, 6);
  EXPECT_EQ(layout.ranks, (std::vector<int32_t>{6, 7}));
}

TEST(LayoutFile, SplitsFollowTheirRule) {
  // 8 rows over 3: chunk 3, 3, 2; balanced 3, 3, 2; over 5: chunk 2, 2, 2, 2, 0; balanced 2, 2, 2,
  // 1, 1.
  const Model model = tensors({"w"});
  const auto rows = [&](const std::string& split, int32_t rank) {
    const Layout layout = load(
        "tensors:\n  - {name: w, mesh: {axes: [f], sizes: [5], ranks: 0-4}, "
        "placements: [shard(0)], split: " +
            split + "}\n",
        model);
    EXPECT_EQ(layout.ranks.size(), 5u);
    return held(model, layout, "w", rank);
  };
  EXPECT_EQ(rows("chunk", 3), "[6:8, 0:4]");
  EXPECT_EQ(rows("chunk", 4), "-");
  EXPECT_EQ(rows("balanced", 3), "[6:7, 0:4]");
  EXPECT_EQ(rows("balanced", 4), "[7:8, 0:4]");
}

TEST(LayoutFile, FsdpOverTpInBothSpellings) {
  // Mesh (fsdp, tp) of ranks 0..3 on 5 rows in torch chunks. tp cuts first: 0-2 and 3-4; then fsdp:
  // rank 0 (0, 0): 0-1; rank 1 (0, 1): 3; rank 2 (1, 0): 2; rank 3 (1, 1): 4 (pytorch PR 150490).
  const Model model = tensors({"w"}, {5, 4});
  const std::string mesh = "{axes: [fsdp, tp], sizes: [2, 2], ranks: 0-3}";
  const Layout order =
      load("default: {mesh: " + mesh +
               ", placements: [shard(0), shard(0)], split: chunk, order: [tp, fsdp]}\n",
           model);
  const Layout strided =
      load("default: {mesh: " + mesh +
               ", placements: [\"strided_shard(0, 2)\", shard(0)], split: chunk}\n",
           model);
  const char* expected[] = {"[0:2, 0:4]", "[3:4, 0:4]", "[2:3, 0:4]", "[4:5, 0:4]"};
  for (int32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(held(model, order, "w", rank), expected[rank]);
    EXPECT_EQ(held(model, strided, "w", rank), expected[rank]);
  }
}

TEST(LayoutFile, PiecesOfAStridedShardLieOneAfterTheOther) {
  // Two pieces of 4 rows, each halved: rank 0 has rows 0-1 and 4-5 in one dense buffer.
  const Model model = tensors({"w"});
  const Layout layout = load(
      "default: {mesh: {axes: [a], sizes: [2], ranks: 0-1}, placements: "
      "[\"strided_shard(0,2)\"]}\n",
      model);
  EXPECT_EQ(shards(layout, 0), (std::vector<Shard>{{Box{{0, 0}, {2, 4}}, 0, Dims{4, 1}},
                                                   {Box{{4, 0}, {6, 4}}, 8, Dims{4, 1}}}));
  EXPECT_EQ(shards(layout, 1), (std::vector<Shard>{{Box{{2, 0}, {4, 4}}, 0, Dims{4, 1}},
                                                   {Box{{6, 0}, {8, 4}}, 8, Dims{4, 1}}}));
}

TEST(LayoutFile, BuffersMayBeColumnMajor) {
  const Model model = tensors({"w"});
  const Layout layout = load(
      "default: {mesh: {axes: [a], sizes: [2], ranks: 0-1}, placements: [shard(0)], storage: "
      "column_major}\n",
      model);
  EXPECT_EQ(shards(layout, 1), (std::vector<Shard>{{Box{{4, 0}, {8, 4}}, 0, Dims{1, 4}}}));
}

TEST(LayoutFile, BoxesLieDenselyOrWhereTheySay) {
  const Model model = tensors({"w"});
  const Layout layout = load(R"(
tensors:
  - name: w
    boxes:
      0: [[[0, 2], [0, 4]], [[4, 6], [0, 4]]]
      1: {shape: [3, 8], boxes: [{box: [[2, 4], [0, 4]], at: [1, 4]}, {box: [[2, 4], [0, 4]], at: [1, 0]}]}
      7: []
)",
                             model);
  EXPECT_EQ(layout.ranks, (std::vector<int32_t>{0, 1, 7}));
  EXPECT_EQ(shards(layout, 0), (std::vector<Shard>{{Box{{0, 0}, {2, 4}}, 0, Dims{4, 1}},
                                                   {Box{{4, 0}, {6, 4}}, 8, Dims{4, 1}}}));
  // Row 1, column 4 of three rows of eight: element 12. The same box may lie in two places.
  EXPECT_EQ(shards(layout, 1), (std::vector<Shard>{{Box{{2, 0}, {4, 4}}, 12, Dims{8, 1}},
                                                   {Box{{2, 0}, {4, 4}}, 8, Dims{8, 1}}}));
  EXPECT_TRUE(shards(layout, 7).empty());
}

TEST(LayoutFile, SeveralEnginesAreOneSide) {
  const Model model = tensors({"w"});
  const Layout layout = load(R"(
tensors:
  - name: "*"
    parts:
      - {mesh: {axes: [tp], sizes: [2], ranks: 4-5}, placements: [shard(0)]}
      - {mesh: {axes: [tp], sizes: [4], ranks: 0-3}, placements: [shard(1)]}
)",
                             model);
  EXPECT_EQ(held(model, layout, "w", 5), "[4:8, 0:4]");
  EXPECT_EQ(held(model, layout, "w", 3), "[0:8, 3:4]");
  EXPECT_EQ(layout.ranks.size(), 6u);
}

TEST(LayoutFile, ASideMayHaveASubset) {
  const Model model = tensors({"a", "b"});
  const Layout layout = load(
      "tensors:\n  - {name: b, absent: true}\n"
      "default: {mesh: {axes: [x], sizes: [1], ranks: 0}, placements: [replicate]}\n",
      model);
  EXPECT_EQ(held(model, layout, "a", 0), "[0:8, 0:4]");
  EXPECT_EQ(held(model, layout, "b", 0), "-");
}

TEST(LayoutFile, EveryTensorIsInOneEntry) {
  const Model model = tensors({"a", "b", "c", "d", "e"});
  const std::string rest = ", mesh: {axes: [x], sizes: [1], ranks: 0}, placements: [replicate]}\n";
  expect_layout_refused("tensors:\n  - {name: a" + rest, model, Side::kTrain,
                        {"4 missing tensors (b, c, d, ...)"});
  expect_layout_refused("tensors:\n  - {name: [a, b, c, d, e]" + rest + "  - {name: '?'" + rest,
                        model, Side::kTrain, {"5 tensors with duplicate entries (a, b, c, ...)"});
  expect_layout_refused("tensors:\n  - {name: [a, b, c, d, f.w]" + rest, model, Side::kTrain,
                        {"1 missing tensors (e)", "1 unexpected names", "(f.w)"});
  expect_layout_refused("tensors:\n  - {name: [x]" + rest + "default: {absent: true}\n", model,
                        Side::kTrain, {"1 unexpected names"});
}

TEST(LayoutFile, DeclaredLocalShapesHaveToFit) {
  const Model model = tensors({"w"}, {5, 4});
  const std::string head =
      "default: {mesh: {axes: [x], sizes: [2], ranks: 0-1}, placements: [shard(0)], split: chunk, "
      "local_shapes: ";
  EXPECT_NO_THROW(load(head + "{0: [3, 4], 1: [2, 4]}}\n", model));
  expect_layout_refused(head + "{0: [1, 4], 1: [4, 4]}}\n", model, Side::kTrain,
                        {"tensor w, rank 0", "[1, 4]", "[3, 4], the shape"});
  expect_layout_refused(head + "{1: [4, 2]}}\n", model, Side::kTrain, {"rank 1", "[2, 4]"});
  expect_layout_refused(head + "{7: [1]}}\n", model, Side::kTrain, {"rank 7", "0 elements"});
}

TEST(LayoutFile, BadFilesAreRefused) {
  const Model model = tensors({"w"});
  const std::string mesh = "mesh: {axes: [x], sizes: [2], ranks: 0-1}";
  const std::string entry = "default: {" + mesh + ", placements: [shard(0)]";
  struct Case {
    std::string text;
    std::vector<std::string> words;
  };
  const std::vector<Case> cases{
      {"a\nb\n", {"no map"}},
      {"x: 1\n", {"per_layer_params", "tensors"}},
      {"tensors: []\n", {"no tensors"}},
      {"tensors:\n  - 3\n", {"tensors[0]"}},
      {"tensors:\n  - {" + mesh + ", placements: [shard(0)]}\n", {"\"name\""}},
      {"tensors:\n  - {name: '', " + mesh + ", placements: [shard(0)]}\n", {"an empty name"}},
      {"tensors:\n  - {name: 'a{', " + mesh + ", placements: [shard(0)]}\n", {"{0-15}"}},
      {"default: {}\n", {"no placement", "absent: true"}},
      {"default: {absent: false}\n", {"absent"}},
      {"default: {absent: true}\n", {"no ranks"}},
      {"default: {absent: true, boxes: {}}\n", {"more than one kind"}},
      {entry + ", other: 1}\n", {"other"}},
      {entry + "}\nother: 1\n", {"other"}},
      {entry + ", name: w}\n", {"name"}},
      {entry + ", split: odd}\n", {"\"odd\"", "even, chunk or balanced"}},
      {entry + ", storage: tiled}\n", {"\"tiled\""}},
      {entry + ", order: [x, x]}\n", {"second time"}},
      {entry + ", order: []}\n", {"0 axes"}},
      {entry + ", order: [y]}\n", {"\"y\""}},
      {"default: {mesh: dense, placements: [shard(0)]}\n", {"mesh \"dense\""}},
      {"default: {" + mesh + "}\n", {"placements"}},
      {"default: {" + mesh + ", placements: []}\n", {"0 placements", "1, one per axis"}},
      {"default: {" + mesh + ", placements: [partial]}\n", {"partial", "placement"}},
      {"default: {" + mesh + ", placements: [partial(sum)]}\n", {"partial"}},
      {"default: {" + mesh + ", placements: [shard]}\n", {"placement \"shard\""}},
      {"default: {" + mesh + ", placements: [shard()]}\n", {"\"\""}},
      {"default: {" + mesh + ", placements: [shard(-1)]}\n", {"-1"}},
      {"default: {" + mesh + ", placements: ['shard(0,2)']}\n", {"shard(0,2)"}},
      {"default: {" + mesh + ", placements: [strided_shard(0)]}\n", {"strided_shard(0)"}},
      {"default: {" + mesh + ", placements: ['strided_shard(0, 0)']}\n", {"0"}},
      {"default: {" + mesh + ", placements: [Shard(0)]}\n", {"Shard(0)"}},
      {"default: {" + mesh + ", placements: [shard(2)]}\n", {"tensor w", "2 dimensions"}},
      {"default: {mesh: {axes: [x], sizes: [3], ranks: 0-2}, placements: [shard(0)]}\n",
       {"tensor w", "dimension 0 over x=3", "extent 8"}},
      {"default: {mesh: {axes: [x], sizes: [2], ranks: 0-2}, placements: [shard(0)]}\n",
       {"3 ranks", "2"}},
      {"default: {mesh: {axes: [x], sizes: [2], ranks: [1, 1]}, placements: [shard(0)]}\n",
       {"rank 1 more than once"}},
      {"default: {mesh: {axes: [x], sizes: [2], ranks: [0, -1]}, placements: [shard(0)]}\n",
       {"-1"}},
      {"default: {mesh: {axes: [x, x], sizes: [1, 2], ranks: 0-1}, placements: [replicate, "
       "replicate]}\n",
       {"\"x\" a second time"}},
      {"default: {mesh: {axes: [x], sizes: [1, 2], ranks: 0-1}, placements: [replicate]}\n",
       {"2 sizes"}},
      {"default: {mesh: {axes: [x, y], sizes: [65536, 65536]}, placements: [replicate, "
       "replicate]}\n",
       {"at most 65536"}},
      {"default: {mesh: {axes: [x], sizes: [2], ranks: 0-1, extra: 1}, placements: [shard(0)]}\n",
       {"extra"}},
      {"default: {parts: [{" + mesh + ", placements: [shard(0)]}, {" + mesh +
           ", placements: [shard(0)]}]}\n",
       {"duplicate rank 0", "parts[0]"}},
      {"default: {boxes: {x: [[[0, 8], [0, 4]]]}}\n", {"x"}},
      {"default: {boxes: {0: [[[0, 9], [0, 4]]]}}\n", {"tensor w", "[0:9, 0:4]", "[0:8, 0:4]"}},
      {"default: {boxes: {0: [[[0, 8]]]}}\n", {"[0:8]"}},
      {"default: {boxes: {0: [[[4, 4], [0, 4]]]}}\n", {"LO < HI"}},
      {"default: {boxes: {0: [[[4], [0, 4]]]}}\n", {"LO < HI"}},
      {"default: {boxes: {0: [[[0, 8], [0, 4]], [[2, 4], [0, 4]]]}}\n", {"equal or apart"}},
      {"default: {boxes: {0: {shape: [8, 4], boxes: [{box: [[0, 8], [0, 4]], at: [1, 0]}]}}}\n",
       {"room in the local shape [8, 4]"}},
      {"default: {boxes: {0: {shape: [8, 4], boxes: [{box: [[0, 8], [0, 4]], at: [0]}]}}}\n",
       {"room in the local shape [8, 4]"}},
      {"default: {boxes: {0: {shape: [8, 4], boxes: [{box: [[0, 2], [0, 4]], at: [0, 0]}, {box: "
       "[[2, 4], [0, 4]], at: [1, 0]}]}}}\n",
       {"another box"}},
      {"default: {boxes: {0: {boxes: []}}}\n", {"\"shape\""}},
      {"default: {boxes: {0: {shape: [8, 4], boxes: [], pad: 2}}}\n", {"pad"}},
      {"ranks: 0-x\n" + entry + "}\n", {"x"}},
  };
  for (const Case& bad : cases) expect_layout_refused(bad.text, model, Side::kTrain, bad.words);
}

TEST(LayoutFile, AFileIsItsText) {
  const Model model = tensors({"w"});
  const std::string path = testing::TempDir() + "refit_layout_file_test.yaml";
  const std::string text =
      "default: {mesh: {axes: [x], sizes: [2], ranks: 0-1}, placements: [shard(0)]}\n";
  std::ofstream(path) << text;
  EXPECT_EQ(resolve_layout(path, Side::kGen), text);
  EXPECT_EQ(resolve_layout(text, Side::kGen), text);
  EXPECT_EQ(load(path, model).maps, load(text, model).maps);
  std::ofstream(path) << text.substr(0, text.size() - 1);  // without the end of the line
  EXPECT_EQ(resolve_layout(path, Side::kGen), text);
  std::ofstream(path) << "default: {absent: 1}\n";
  expect_layout_refused(path, model, Side::kTrain, {path + ":1: default.absent"});
  std::remove(path.c_str());
}

}  // namespace
}  // namespace refit
