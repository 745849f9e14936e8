#include "sim/layout/stages.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace refit {
namespace {

std::vector<int32_t> counts(const Stages& stages, int32_t pp) {
  std::vector<int32_t> result(static_cast<size_t>(pp), 0);
  for (const int32_t stage : stages.of_layer) ++result[static_cast<size_t>(stage)];
  return result;
}

StageOptions options(int32_t pp, int32_t vpp = 1) {
  StageOptions result;
  result.pp = pp;
  result.vpp = vpp;
  return result;
}

TEST(Stages, DeepSeekOverSixteen) {
  const Stages stages = deal_layers(61, options(16), "x");
  EXPECT_EQ(counts(stages, 16),
            (std::vector<int32_t>{4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 3, 3, 3}));
  EXPECT_EQ(stages.of_layer[51], 12);  // 13 * 4 = 52 layers before stage 13
  EXPECT_EQ(stages.of_layer[52], 13);
  ASSERT_EQ(stages.notes.size(), 1u);
  EXPECT_EQ(stages.notes[0], "61 layers over 16 pipeline stages: 13 of 4 layers, then 3 of 3");
}

TEST(Stages, EvenDivisionNeedsNoNote) {
  const Stages stages = deal_layers(6, options(3), "x");
  EXPECT_EQ(stages.of_layer, (std::vector<int32_t>{0, 0, 1, 1, 2, 2}));
  EXPECT_TRUE(stages.notes.empty());
}

TEST(Stages, FewerLayersThanStages) {
  EXPECT_EQ(deal_layers(2, options(3), "x").of_layer, (std::vector<int32_t>{0, 1}));
}

TEST(Stages, FirstAndLastLeaveTheRestToTheOthers) {
  StageOptions ends = options(4);
  ends.first = 1;
  ends.last = 3;
  EXPECT_EQ(counts(deal_layers(10, ends, "x"), 4), (std::vector<int32_t>{1, 3, 3, 3}));
  ends.last.reset();
  EXPECT_EQ(counts(deal_layers(10, ends, "x"), 4), (std::vector<int32_t>{1, 3, 3, 3}));
  ends = options(2);
  ends.first = 0;
  EXPECT_EQ(deal_layers(2, ends, "x").of_layer, (std::vector<int32_t>{1, 1}));
}

TEST(Stages, ChunksAreDealtInRounds) {
  // Megatron's interleaved schedule: 8 layers, pp=2, vpp=2: chunks of 2 on stages 0, 1, 0, 1.
  EXPECT_EQ(deal_layers(8, options(2, 2), "x").of_layer,
            (std::vector<int32_t>{0, 0, 1, 1, 0, 0, 1, 1}));
  StageOptions uneven = options(2, 2);
  uneven.layers = {1, 2, 3, 0};
  EXPECT_EQ(deal_layers(6, uneven, "x").of_layer, (std::vector<int32_t>{0, 1, 1, 0, 0, 0}));
  StageOptions first = options(2, 2);
  first.first = 2;  // chunks of 1 and 3
  EXPECT_EQ(deal_layers(8, first, "x").of_layer, (std::vector<int32_t>{0, 1, 1, 1, 0, 1, 1, 1}));
}

TEST(Stages, LayersAreReadWithRepeats) {
  const std::vector<int32_t> layers = parse_layers("3|4*14|2", 16, "x");
  ASSERT_EQ(layers.size(), 16u);
  EXPECT_EQ(layers.front(), 3);
  EXPECT_EQ(layers[14], 4);
  EXPECT_EQ(layers.back(), 2);
}

TEST(Stages, BadLayersAreRefused) {
  for (const char* text : {"", "|", "3|", "4*", "*4", "4*0", "-1|5", "4x2", "1.5|2", "4*99999999",
                           "1|1|1", "1", " 1|1"}) {
    EXPECT_THROW(parse_layers(text, 2, "x"), Error) << text;
  }
}

TEST(Stages, ContradictionsAreRefused) {
  StageOptions bad = options(2, 2);
  EXPECT_THROW(deal_layers(7, bad, "x"), Error);  // does not divide by pp * vpp
  EXPECT_THROW(deal_layers(6, bad, "x"), Error);  // stages of 3 in 2 chunks
  bad = options(3);
  bad.first = 3;
  EXPECT_THROW(deal_layers(10, bad, "x"), Error);  // 7 over 2
  EXPECT_THROW(deal_layers(2, bad, "x"), Error);   // more than there are
  bad = options(2);
  bad.first = 3;
  bad.last = 4;
  EXPECT_THROW(deal_layers(10, bad, "x"), Error);  // 3 left over
  bad = options(1);
  bad.first = 1;
  bad.last = 1;
  EXPECT_THROW(deal_layers(2, bad, "x"), Error);  // one stage is not two
  bad = options(2);
  bad.layers = {4, 5};
  EXPECT_THROW(deal_layers(10, bad, "x"), Error);  // 9 in all
  bad.layers = {5, 5};
  bad.first = 5;
  EXPECT_THROW(deal_layers(10, bad, "x"), Error);  // both ways at once
}

}  // namespace
}  // namespace refit
