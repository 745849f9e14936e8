#include "sim/layout/demand.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>

#include "base/error.h"
#include "tests/refused.h"
#include "tests/sim/layout/small_model.h"

namespace refit {
namespace {

using Ranks = std::vector<int32_t>;

/// A model of one tensor.
Model one_tensor(const Dims& shape, Dtype dtype = Dtype::kBf16) {
  Model model;
  model.tensors.push_back({"w", shape, dtype, Role::kReplicated, Block::kLayer, 0, false});
  return model;
}

Layout one_map(RankMap map) {
  Layout layout;
  for (const auto& [rank, shards] : map.shards) layout.ranks.push_back(rank);
  layout.maps.push_back(std::move(map));
  layout.tensor_map.push_back(0);
  return layout;
}

Layout sharded(const Dims& shape, std::vector<int32_t> sizes, Ranks ranks,
               std::vector<Placement> placements, Split split = Split::kChunk) {
  Mesh mesh{std::vector<std::string>(sizes.size(), "a"), std::move(sizes), std::move(ranks)};
  return one_map(make_map(shape, mesh, placements, split, "w"));
}

Ranks from(int32_t first, int32_t count) {
  Ranks ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

Shard shard(Box box) { return {box, 0, dense_strides(box.extents())}; }

TEST(Demand, TwoHalvesToThreeThirds) {
  // Ranks 0, 1 hold rows 0-5 and 6-11; ranks 2, 3, 4 need rows 0-3, 4-7, 8-11: cut at 4, 6, 8.
  const Model model = one_tensor({12, 2});
  const Demand demand = make_demand(model, sharded({12, 2}, {2}, {0, 1}, {{0}}),
                                    sharded({12, 2}, {3}, {2, 3, 4}, {{0}}));
  ASSERT_EQ(demand.overlays.size(), 1u);
  const auto& atoms = demand.overlays[0].atoms;
  ASSERT_EQ(atoms.size(), 4u);
  const struct {
    Box box;
    Ranks holders, needers;
  } expected[] = {{Box{{0, 0}, {4, 2}}, {0}, {2}},
                  {Box{{4, 0}, {6, 2}}, {0}, {3}},
                  {Box{{6, 0}, {8, 2}}, {1}, {3}},
                  {Box{{8, 0}, {12, 2}}, {1}, {4}}};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(atoms[i].box, expected[i].box);
    EXPECT_EQ(demand.rank_sets[static_cast<size_t>(atoms[i].holders)], expected[i].holders);
    EXPECT_EQ(demand.rank_sets[static_cast<size_t>(atoms[i].needers)], expected[i].needers);
  }
  EXPECT_EQ(demand.bytes, 12 * 2 * 2);
  EXPECT_EQ(demand.copy_bytes, 0);
  EXPECT_EQ(demand.rank_sets,
            (std::vector<Ranks>{{0}, {2}, {3}, {1}, {4}}));  // in order of first use
}

TEST(Demand, ColocatedRanksCopyWhatTheyHold) {
  // Ranks 0, 1 hold halves and need all of it: each copies its half and receives the other.
  const Model model = one_tensor({4, 4}, Dtype::kFp32);
  const Demand demand =
      make_demand(model, sharded({4, 4}, {2}, {0, 1}, {{0}}), sharded({4, 4}, {2}, {0, 1}, {{-1}}));
  EXPECT_EQ(demand.bytes, 64);
  EXPECT_EQ(demand.copy_bytes, 64);
  EXPECT_EQ(demand.classes.size(), 2u);
  EXPECT_EQ(demand.classes[0].bytes, 32);
}

TEST(Demand, EqualMapsShareAnOverlayAndClassesAddUp) {
  Model model = one_tensor({8, 2});
  model.tensors.push_back(model.tensors[0]);
  model.tensors.push_back(model.tensors[0]);
  model.tensors[2].dtype = Dtype::kFp8E4m3;
  Layout train = sharded({8, 2}, {2}, {0, 1}, {{0}}), gen = sharded({8, 2}, {1}, {2}, {{-1}});
  train.tensor_map = gen.tensor_map = {0, 0, 0};
  const Demand demand = make_demand(model, train, gen);
  ASSERT_EQ(demand.overlays.size(), 1u);
  EXPECT_EQ(demand.overlays[0].tensors, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(demand.tensor_overlay, (std::vector<int32_t>{0, 0, 0}));
  ASSERT_EQ(demand.classes.size(), 2u);
  for (const DemandClass& c : demand.classes) {
    EXPECT_EQ(c.bytes, 8 * 2 + 8 * 2 + 8);
    EXPECT_EQ(c.atoms, 3);
  }
}

TEST(Demand, NeighboursInTheSameShardsAreOneAtom) {
  // Columns are cut in the lower half only: of the four cells the upper two are one atom.
  RankMap all, needs;
  all.shards.push_back({0, {shard({{0, 0}, {4, 4}})}});
  needs.shards.push_back({1, {shard({{0, 0}, {2, 4}})}});
  needs.shards.push_back({2, {shard({{2, 0}, {4, 2}})}});
  needs.shards.push_back({3, {shard({{2, 2}, {4, 4}})}});
  const Demand demand = make_demand(one_tensor({4, 4}), one_map(all), one_map(needs));
  ASSERT_EQ(demand.overlays[0].atoms.size(), 3u);
  EXPECT_EQ(demand.overlays[0].atoms[0].box, (Box{{0, 0}, {2, 4}}));
}

TEST(Demand, AnAtomIsNeverInTwoShardsOfARank) {
  // Rank 0 keeps the tensor in four quarters, each in a place of its own; rank 1 has room for two
  // copies of the whole, which it needs once.
  RankMap quarters;
  quarters.shards.push_back({0,
                             {shard({{0, 0}, {2, 2}}), shard({{0, 2}, {2, 4}}),
                              shard({{2, 0}, {4, 2}}), shard({{2, 2}, {4, 4}})}});
  RankMap twice;
  twice.shards.push_back({1, {shard({{0, 0}, {4, 4}}), shard({{0, 0}, {4, 4}})}});
  for (const bool forth : {true, false}) {
    const Layout train = one_map(forth ? quarters : twice), gen = one_map(forth ? twice : quarters);
    const Demand demand = make_demand(one_tensor({4, 4}), train, gen);
    ASSERT_EQ(demand.overlays[0].atoms.size(), 4u);
    EXPECT_EQ(demand.overlays[0].atoms[1].box, (Box{{0, 2}, {2, 4}}));
    EXPECT_EQ(demand.bytes, 32);
  }
}

TEST(Demand, WhatNobodyNeedsIsLeftOut) {
  RankMap part;
  part.shards.push_back({1, {shard({{3}, {5}})}});
  const Demand demand = make_demand(one_tensor({8}), sharded({8}, {1}, {0}, {{-1}}), one_map(part));
  ASSERT_EQ(demand.overlays[0].atoms.size(), 1u);
  EXPECT_EQ(demand.overlays[0].atoms[0].box, (Box{{3}, {5}}));
  EXPECT_EQ(demand.bytes, 4);

  RankMap nothing;
  nothing.shards.push_back({1, {}});
  const Demand none =
      make_demand(one_tensor({8}), sharded({8}, {1}, {0}, {{-1}}), one_map(nothing));
  EXPECT_TRUE(none.overlays[0].atoms.empty());
  EXPECT_TRUE(none.classes.empty());
  EXPECT_EQ(none.bytes, 0);
}

TEST(Demand, AScalarIsOneElement) {
  const Demand demand = make_demand(one_tensor({}, Dtype::kFp32), sharded({}, {2}, {0, 1}, {{-1}}),
                                    sharded({}, {3}, {2, 3, 4}, {{-1}}));
  EXPECT_EQ(demand.overlays[0].atoms.size(), 1u);
  EXPECT_EQ(demand.bytes, 12);
}

TEST(Demand, AnElementWithoutHolderIsRefused) {
  RankMap hole;
  hole.shards.push_back({0, {shard({{0, 0}, {4, 2}}), shard({{0, 3}, {4, 4}})}});
  EXPECT_EQ(error_of([&] {
              make_demand(one_tensor({4, 4}), one_map(hole), sharded({4, 4}, {2}, {7, 9}, {{0}}));
            }),
            "tensor w, box [0:2, 2:3]: found a missing source: no train rank covers it, "
            "expected one that does, because gen rank 7 needs it");
}

TEST(Demand, FourBitCutsStayOnBytes) {
  const Model model = one_tensor({4, 6}, Dtype::kFp4E2m1);
  const Demand rows = make_demand(model, sharded({4, 6}, {4}, from(0, 4), {{0}}),
                                  sharded({4, 6}, {1}, {4}, {{-1}}));
  EXPECT_EQ(rows.bytes, 12);
  const Layout halves = sharded({4, 6}, {2}, {0, 1}, {{1}});  // cut at column 3
  EXPECT_THROW(make_demand(model, halves, sharded({4, 6}, {1}, {4}, {{-1}})), Error);
}

TEST(Demand, FiguresOfPublicReports) {
  // Layouts that went wrong elsewhere, with the bytes that direct delivery takes.
  // 5 x 10 fp32 over 4 (chunks of 2, 2, 1, 0), to two full copies (pytorch#103306).
  EXPECT_EQ(make_demand(one_tensor({5, 10}, Dtype::kFp32), sharded({5, 10}, {4}, from(0, 4), {{0}}),
                        sharded({5, 10}, {2}, from(4, 2), {{-1}}))
                .bytes,
            400);
  // 512 x 4 bf16 over 8, to 30 of which the last is empty (pytorch#150862): 36 pairs.
  const Demand trailing =
      make_demand(one_tensor({512, 4}), sharded({512, 4}, {8}, from(0, 8), {{0}}),
                  sharded({512, 4}, {30}, from(8, 30), {{0}}));
  EXPECT_EQ(trailing.bytes, 4096);
  EXPECT_EQ(trailing.overlays[0].atoms.size(), 36u);
  // 30 experts in chunks over 8, to a balanced split over 8 (vllm#21497): 9 pairs.
  const Demand experts =
      make_demand(one_tensor({30, 4, 8}), sharded({30, 4, 8}, {8}, from(0, 8), {{0}}),
                  sharded({30, 4, 8}, {8}, from(8, 8), {{0}}, Split::kBalanced));
  EXPECT_EQ(experts.bytes, 1920);
  EXPECT_EQ(experts.classes.size(), 9u);
}

/// Ranks that have the element.
Ranks owners(const RankMap& map, const Box& element) {
  std::set<int32_t> ranks;
  for (const auto& [rank, shards] : map.shards) {
    for (const Shard& s : shards) {
      if (contains(s.box, element)) ranks.insert(rank);
    }
  }
  return {ranks.begin(), ranks.end()};
}

/// Compares a demand of one tensor with ownership element by element. Returns false when some
/// needed element has no holder.
bool expect_matches(const Dims& shape, const RankMap& train, const RankMap& gen, int trial) {
  const Model model = one_tensor(shape);
  struct Element {
    Ranks holders, needers;
  };
  std::vector<std::pair<Box, Element>> elements;
  bool covered = true;
  for (int64_t i = 0; i < shape[0]; ++i) {
    for (int64_t j = 0; j < shape[1]; ++j) {
      for (int64_t k = 0; k < shape[2]; ++k) {
        const Box box{{i, j, k}, {i + 1, j + 1, k + 1}};
        elements.push_back({box, {owners(train, box), owners(gen, box)}});
        covered = covered && (elements.back().second.needers.empty() ||
                              !elements.back().second.holders.empty());
      }
    }
  }
  if (!covered) {
    EXPECT_THROW(make_demand(model, one_map(train), one_map(gen)), Error) << trial;
    return false;
  }
  const Demand demand = make_demand(model, one_map(train), one_map(gen));
  EXPECT_TRUE(std::is_sorted(demand.overlays[0].atoms.begin(), demand.overlays[0].atoms.end(),
                             [](const Atom& a, const Atom& b) { return a.box < b.box; }));
  int64_t bytes = 0, copies = 0;
  std::set<std::pair<Ranks, Ranks>> classes;
  for (const auto& [box, element] : elements) {
    int found = 0;
    for (const Atom& atom : demand.overlays[0].atoms) {
      if (!contains(atom.box, box)) continue;
      ++found;
      EXPECT_EQ(demand.rank_sets[static_cast<size_t>(atom.holders)], element.holders) << trial;
      EXPECT_EQ(demand.rank_sets[static_cast<size_t>(atom.needers)], element.needers) << trial;
    }
    EXPECT_EQ(found, element.needers.empty() ? 0 : 1) << trial;
    if (!element.needers.empty()) classes.insert({element.holders, element.needers});
    for (const int32_t rank : element.needers) {
      const bool copy = std::binary_search(element.holders.begin(), element.holders.end(), rank);
      (copy ? copies : bytes) += 2;
    }
  }
  EXPECT_EQ(demand.bytes, bytes) << trial;
  EXPECT_EQ(demand.copy_bytes, copies) << trial;
  EXPECT_EQ(demand.classes.size(), classes.size()) << trial;
  const std::set<Ranks> sets(demand.rank_sets.begin(), demand.rank_sets.end());
  EXPECT_EQ(sets.size(), demand.rank_sets.size()) << trial;
  return true;
}

TEST(Demand, GridsAgreeWithBruteForce) {
  std::mt19937 random(7);
  const auto pick = [&](int32_t lo, int32_t hi) {
    return std::uniform_int_distribution<int32_t>(lo, hi)(random);
  };
  for (int trial = 0; trial < 200; ++trial) {
    const Dims shape{pick(1, 7), pick(1, 7), pick(1, 3)};
    const auto side = [&](int32_t first) {
      const std::vector<int32_t> sizes{pick(1, 3), pick(1, 3)};
      return sharded(shape, sizes, from(first, sizes[0] * sizes[1]), {{pick(-1, 2)}, {pick(-1, 2)}},
                     pick(0, 1) == 0 ? Split::kChunk : Split::kBalanced);
    };
    const Layout train = side(0), gen = side(pick(0, 9));  // apart, or partly colocated
    EXPECT_TRUE(expect_matches(shape, train.maps[0], gen.maps[0], trial));
  }
}

TEST(Demand, AnyBoxesAgreeWithBruteForce) {
  // Overlapping boxes, several of a rank, holes: nothing that a grid would give.
  std::mt19937 random(11);
  const auto pick = [&](int64_t lo, int64_t hi) {
    return std::uniform_int_distribution<int64_t>(lo, hi)(random);
  };
  int covered = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const Dims shape{pick(1, 5), pick(1, 5), pick(1, 3)};
    const auto side = [&](int32_t first, int32_t ranks) {
      RankMap map;
      for (int32_t rank = first; rank < first + ranks; ++rank) {
        std::vector<Shard> shards;
        for (int64_t n = pick(0, 3); n > 0; --n) {
          Box box = whole(shape);
          for (int dim = 0; dim < 3; ++dim) {
            if (pick(0, 2) == 0) continue;
            box.lo[dim] = pick(0, shape[dim] - 1);
            box.hi[dim] = pick(box.lo[dim] + 1, shape[dim]);
          }
          shards.push_back(shard(box));
        }
        map.shards.push_back({rank, shards});
      }
      return map;
    };
    covered += expect_matches(shape, side(0, 5), side(3, 4), trial) ? 1 : 0;
  }
  EXPECT_GT(covered, 30);  // both outcomes are seen
  EXPECT_LT(covered, 270);
}

TEST(Demand, WholeModelsAreDelivered) {
  // Every generator needs 1 / tp of what tp cuts and all of what is replicated; count it from the
  // maps.
  const Model model = make_small_model({.layers = 5, .experts = 4});
  const Layout train = load_layout("megatron:tp=2,pp=2,ep=2,dp=2", model, Side::kTrain, 0);
  for (const char* spec : {"vllm:tp=4,dp=2", "vllm:tp=2,dp=2,ep=on,pp=2", "fsdp:world=3",
                           "vllm:tp=2,engines=2,ranks=0|3|7|9"}) {
    const Layout gen = load_layout(spec, model, Side::kGen, 8);
    const Demand demand = make_demand(model, train, gen);
    int64_t needed = 0;
    for (size_t tensor = 0; tensor < model.tensors.size(); ++tensor) {
      for (const auto& [rank, shards] :
           gen.maps[static_cast<size_t>(gen.tensor_map[tensor])].shards) {
        for (const Shard& s : shards) needed += 2 * s.box.volume();
      }
    }
    EXPECT_EQ(demand.bytes + demand.copy_bytes, needed) << spec;
    EXPECT_EQ(demand.copy_bytes > 0, std::string(spec).find("ranks=") != std::string::npos) << spec;
  }
}

}  // namespace
}  // namespace refit
