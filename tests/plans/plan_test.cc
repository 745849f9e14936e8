#include "plans/plan.h"

#include <gtest/gtest.h>

#include "flat_plan.h"

namespace refit {
namespace {

Box rows(int64_t first, int64_t last) { return {{first, 0}, {last, 8}}; }
Box part(int64_t row, int64_t last_row, int64_t column, int64_t last_column) {
  return {{row, column}, {last_row, last_column}};
}

// Rank 0 holds rows 0..3 of a bf16 [4, 8]. Rank 1 gets rows 0..2 directly, as two pieces; rank 2
// gets row 3 over a slot of rank 1.
FlatPlan make_example() {
  FlatPlan flat = make_frame({4, 8}, {{rows(0, 4)}, {}, {}}, {{}, {rows(0, 3)}, {rows(3, 4)}});
  flat.slots[1].push_back({0, rows(3, 4), 64});
  flat.transfer(0, Place::kTrain, 0, 1, Place::kGen, 0, 0, part(0, 3, 0, 4), 0, 0);
  flat.transfer(0, Place::kTrain, 0, 1, Place::kGen, 0, 0, part(0, 3, 4, 8), 0, 0);
  flat.transfer(0, Place::kTrain, 0, 1, Place::kStaging, 0, 0, rows(3, 4), 1, 0);
  flat.transfer(1, Place::kStaging, 0, 2, Place::kGen, 0, 0, rows(3, 4), 1, 5);
  return flat;
}

TEST(RankMap, Find) {
  const RankMap map{{{2, {{whole({4}), 0, {1}}}}, {5, {}}}};
  EXPECT_EQ(map.find(1), nullptr);
  ASSERT_NE(map.find(2), nullptr);
  EXPECT_EQ(map.find(2)->front().box, whole({4}));
  EXPECT_EQ(map.find(4), nullptr);
  EXPECT_NE(map.find(5), nullptr);
  EXPECT_EQ(map.find(6), nullptr);
}

TEST(Plan, FindsStepsAndMessages) {
  const Plan plan = make_plan(make_example());
  const Program& program = plan.programs[1];
  ASSERT_EQ(program.steps.size(), 3);  // (0, 0), (1, 0), (1, 5)
  EXPECT_EQ(find_step(program, 0, 0), 0);
  EXPECT_EQ(find_step(program, 1, 5), 2);
  EXPECT_EQ(find_step(program, 1, 1), -1);
  EXPECT_EQ(find_step(program, 2, 0), -1);
  const Message* recv = find_recv(program, program.steps[0], 0);
  ASSERT_NE(recv, nullptr);
  EXPECT_EQ(recv->last_piece - recv->first_piece, 2);
  EXPECT_EQ(find_send(program, program.steps[0], 0), nullptr);
  EXPECT_EQ(find_recv(program, program.steps[0], 2), nullptr);
  EXPECT_NE(find_send(program, program.steps[2], 2), nullptr);
}

TEST(Plan, AreasAndSizes) {
  const Plan plan = make_plan(make_example());
  const Program& program = plan.programs[1];
  const Piece& left = program.pieces[0];  // [0:3, 0:4] of the gen shard
  EXPECT_EQ(piece_area(plan, 1, left), (Shard{rows(0, 3), 0, {8, 1}}));
  EXPECT_EQ(piece_bytes(program, left), 24);
  EXPECT_EQ(message_bytes(program, program.messages[0]), 48);
  const Piece& staged = program.pieces[2];
  EXPECT_EQ(piece_area(plan, 1, staged), (Shard{rows(3, 4), 0, {8, 1}}));
  EXPECT_EQ(buffer_elements(plan, Side::kTrain, 0, 0), 32);
  EXPECT_EQ(buffer_elements(plan, Side::kGen, 0, 1), 24);
  EXPECT_EQ(buffer_elements(plan, Side::kGen, 0, 0), 0);
}

TEST(Plan, Contiguity) {
  FlatPlan flat = make_frame({4, 2, 8}, {{whole({4, 2, 8})}}, {{whole({4, 2, 8})}});
  const auto contiguous = [&](const Box& box) {
    FlatPlan one = flat;
    one.transfer(0, Place::kTrain, 0, 0, Place::kGen, 0, 0, box, 0, 0);
    const Plan plan = make_plan(one);
    return is_contiguous(plan, 0, plan.programs[0].pieces[0]);
  };
  EXPECT_TRUE(contiguous({{0, 0, 0}, {4, 2, 8}}));
  EXPECT_TRUE(contiguous({{1, 0, 0}, {3, 2, 8}}));
  EXPECT_TRUE(contiguous({{1, 1, 0}, {2, 2, 8}}));
  EXPECT_TRUE(contiguous({{1, 1, 3}, {2, 2, 5}}));
  EXPECT_TRUE(contiguous({{1, 1, 3}, {2, 2, 4}}));
  EXPECT_FALSE(contiguous({{0, 1, 0}, {2, 2, 8}}));
  EXPECT_FALSE(contiguous({{0, 0, 0}, {1, 2, 7}}));
  EXPECT_FALSE(contiguous({{0, 0, 3}, {2, 1, 4}}));
}

// Rank 1: a slot of 16 bytes at 64, so 80; channel 0 packs the message of two pieces, 48 bytes;
// channel 1 sends and receives single rows in place.
TEST(Plan, StagingUse) {
  const Plan plan = make_plan(make_example());
  EXPECT_EQ(staging_use(plan, 1).slots, 80);
  EXPECT_EQ(staging_use(plan, 1).packing, 48);
  EXPECT_EQ(staging_use(plan, 0).slots, 0);
  EXPECT_EQ(staging_use(plan, 0).packing, 48);
  EXPECT_EQ(staging_use(plan, 2).total(), 0);
}

TEST(Plan, LocalCopiesAreNotPacked) {
  FlatPlan flat = make_frame({4, 8}, {{rows(0, 4)}}, {{rows(0, 4)}});
  flat.transfer(0, Place::kTrain, 0, 0, Place::kGen, 0, 0, part(0, 4, 0, 4), 0, 0);
  flat.transfer(0, Place::kTrain, 0, 0, Place::kGen, 0, 0, part(0, 4, 4, 8), 0, 0);
  const Plan plan = make_plan(flat);
  EXPECT_EQ(staging_use(plan, 0).total(), 0);
  const PlanTotals totals = plan_totals(plan);
  EXPECT_EQ(totals.copies, 1);
  EXPECT_EQ(totals.bytes_copied, 64);
  EXPECT_EQ(totals.transfers, 0);
  EXPECT_EQ(totals.bytes_total, 0);
}

TEST(Plan, Totals) {
  FlatPlan flat = make_example();
  flat.frame.ranks[2].nvlink_domain = "d1";
  const PlanTotals totals = plan_totals(make_plan(flat));
  EXPECT_EQ(totals.transfers, 3);
  EXPECT_EQ(totals.bytes_intra_domain, 64);  // 48 directly, 16 into the slot
  EXPECT_EQ(totals.bytes_inter_domain, 16);
  EXPECT_EQ(totals.bytes_total, 80);
  EXPECT_EQ(totals.peak_staging_bytes, 128);
  EXPECT_EQ(totals.max_peers, 1);
}

TEST(Plan, SameDomain) {
  FlatPlan flat = make_example();
  flat.frame.ranks[1].nvlink_domain = flat.frame.ranks[2].nvlink_domain = "";
  EXPECT_TRUE(same_domain(flat.frame, 1, 1));
  EXPECT_FALSE(same_domain(flat.frame, 1, 2));  // no name, no NVLink
  EXPECT_FALSE(same_domain(flat.frame, 0, 1));
}

}  // namespace
}  // namespace refit
