// Each rule of `check` by hand. A plan that passes is changed in one way; the fault has to say so.

#include "plans/check.h"

#include <gtest/gtest.h>

#include "flat_plan.h"
#include "plans/order.h"

namespace refit {
namespace {

using Rule = Fault::Rule;

Box rows(int64_t first, int64_t last) { return {{first, 0}, {last, 2}}; }

std::vector<std::string> print(const std::vector<Fault>& faults) {
  std::vector<std::string> lines;
  for (const Fault& fault : faults) lines.push_back(print_fault(fault));
  return lines;
}

using Lines = std::vector<std::string>;

// Rank 0 trains a [4, 2]; ranks 1 and 2 need rows 0..2 and 2..4. Rank 2's come over a slot of rank
// 1.
FlatPlan make_example() {
  FlatPlan flat = make_frame({4, 2}, {{rows(0, 4)}, {}, {}}, {{}, {rows(0, 2)}, {rows(2, 4)}});
  flat.slots[1].push_back({0, rows(2, 4), 0});
  flat.frame.staging_bytes = 8;
  flat.transfer(0, Place::kTrain, 0, 1, Place::kGen, 0, 0, rows(0, 2), 0, 0);
  flat.transfer(0, Place::kTrain, 0, 1, Place::kStaging, 0, 0, rows(2, 4), 0, 1);
  flat.transfer(1, Place::kStaging, 0, 2, Place::kGen, 0, 0, rows(2, 4), 1, 0);
  flat.waits.push_back({1, 1, 0, {0, 1}});
  return flat;
}

Lines faults_of(const FlatPlan& flat) { return print(check(make_plan(flat))); }

TEST(Check, Passes) { EXPECT_EQ(faults_of(make_example()), Lines{}); }

TEST(Check, EmptyPlanPasses) { EXPECT_TRUE(check(Plan{}).empty()); }

TEST(CheckForm, ProgramsForAllRanks) {
  Plan plan = make_plan(make_example());
  plan.programs.pop_back();
  EXPECT_EQ(print(check(plan)), Lines{"form: 2 programs for 3 ranks"});
}

TEST(CheckForm, Malformed) {
  Plan plan = make_plan(make_example());
  plan.programs[1].pieces[0].area = 1;
  EXPECT_EQ(print(check(plan)),
            Lines{"form: rank 1: piece 0: [0:2, 0:2] of tensor 'w': the rank has no shard 1"});
}

TEST(CheckForm, Conversion) {
  FlatPlan flat = make_example();
  flat.frame.tensors[0].gen_dtype = Dtype::kFp8E4m3;
  EXPECT_EQ(faults_of(flat).front(),
            "form: tensor 'w': train dtype bf16 cannot be converted to gen dtype fp8_e4m3");
}

TEST(CheckForm, WaitForNothing) {
  FlatPlan flat = make_example();
  flat.waits.push_back({1, 1, 0, {0, 7}});
  flat.waits.push_back({2, 1, 0, {1, 0}});
  EXPECT_EQ(faults_of(flat),
            (Lines{"form: rank 1, channel 1, step 0: waits for channel 0, step 7, which the rank "
                   "does not have",
                   "form: rank 2, channel 1, step 0: waits for step 0 of its own channel"}));
}

TEST(CheckForm, PeerTwice) {
  FlatPlan flat = make_example();
  flat.ends[1].pieces.clear();
  flat.ends[0].pieces[0].box = flat.ends[1].pieces.emplace_back(flat.ends[0].pieces[0]).box;
  flat.ends[1].pieces[0] = {0, rows(0, 2), Place::kGen, 0};
  flat.ends.push_back(flat.ends[0]);
  EXPECT_EQ(faults_of(flat),
            Lines{"form: rank 0, channel 0, step 0: sends to rank 1 twice or out of order"});
}

TEST(CheckForm, TooManyPeers) {
  std::vector<std::vector<Box>> train = {{rows(0, 4)}}, gen = {{}};
  for (int rank = 1; rank <= kMaxPeersPerStep + 1; ++rank) {
    train.emplace_back();
    gen.push_back({rows(0, 1)});
  }
  FlatPlan flat = make_frame({4, 2}, train, gen);
  for (int32_t rank = 1; rank <= kMaxPeersPerStep; ++rank) {
    flat.transfer(0, Place::kTrain, 0, rank, Place::kGen, 0, 0, rows(0, 1), 0, 0);
  }
  FlatPlan over = flat;
  flat.transfer(0, Place::kTrain, 0, kMaxPeersPerStep + 1, Place::kGen, 0, 0, rows(0, 1), 0, 1);
  EXPECT_EQ(faults_of(flat), Lines{});
  over.transfer(0, Place::kTrain, 0, kMaxPeersPerStep + 1, Place::kGen, 0, 0, rows(0, 1), 0, 0);
  EXPECT_EQ(faults_of(over), Lines{"form: rank 0, channel 0, step 0: sends to 9 ranks in one "
                                   "step, at most 8 are allowed"});
}

TEST(CheckForm, Lane) {
  FlatPlan flat = make_example();
  flat.frame.channels[1].lane = Lane::kNvlink;
  EXPECT_EQ(faults_of(flat), Lines{});
  flat.frame.ranks[2].nvlink_domain = "d1";
  EXPECT_EQ(faults_of(flat),
            (Lines{"form: rank 1, channel 1, step 0: sends to rank 2 of another NVLink domain on "
                   "an nvlink channel",
                   "form: rank 2, channel 1, step 0: receives from rank 1 of another NVLink "
                   "domain on an nvlink channel"}));
}

TEST(CheckForm, NetworkPeers) {
  FlatPlan flat = make_example();
  flat.frame.max_peers = 1;
  EXPECT_EQ(faults_of(flat), Lines{});  // all in one domain
  for (PlanRank& rank : flat.frame.ranks) rank.nvlink_domain = "";
  EXPECT_EQ(faults_of(flat), Lines{"form: rank 1: 2 network peers, at most 1 are allowed"});
}

TEST(CheckForm, ReceiveIntoTrain) {
  FlatPlan flat = make_frame({4, 2}, {{rows(0, 4)}, {rows(0, 4)}}, {{}, {}});
  flat.transfer(0, Place::kTrain, 0, 1, Place::kTrain, 0, 0, rows(0, 1), 0, 0);
  EXPECT_EQ(faults_of(flat), Lines{"form: rank 1, channel 0, step 0: receives [0:1, 0:2] of 'w' "
                                   "into a train shard"});
}

TEST(CheckForm, FusedShards) {
  // gate and up of two experts, [2, 3, 4] each, fused to [2, 6, 4]: interleaved, but apart.
  FlatPlan flat = make_frame({2, 3, 4}, {{}}, {{whole({2, 3, 4})}});
  flat.frame.tensors.push_back(flat.frame.tensors[0]);
  flat.frame.tensors[1].name = "up";
  flat.frame.maps.push_back(flat.frame.maps[1]);
  flat.frame.tensors[1].gen_map = 2;
  flat.frame.maps[1].shards[0].second[0].stride = {24, 4, 1};
  flat.frame.maps[2].shards[0].second[0].stride = {24, 4, 1};
  flat.frame.maps[2].shards[0].second[0].offset = 12;
  const auto form_faults = [&] {
    Lines lines;
    for (const Fault& fault : check(make_plan(flat))) {
      if (fault.rule == Rule::kForm) lines.push_back(print_fault(fault));
    }
    return lines;
  };
  EXPECT_EQ(form_faults(), Lines{});
  flat.frame.maps[2].shards[0].second[0].offset = 11;  // the last of gate is the first of up
  EXPECT_EQ(form_faults(), Lines{"form: rank 0: gen shards [0:2, 0:3, 0:4] of 'w' and [0:2, 0:3, "
                                 "0:4] of 'up' overlap in buffer 'w'"});
  flat.frame.maps[2].shards[0].second[0].offset = 13;  // the last of up is the first of gate's next
  EXPECT_EQ(form_faults().size(), 1);
  flat.frame.maps[2].shards[0].second[0].offset = 24;
  flat.frame.maps[2].shards[0].second[0].stride = {12, 4, 1};
  EXPECT_EQ(form_faults().size(), 1);
  flat.frame.maps[2].shards[0].second[0].offset = 48;
  flat.frame.maps[2].shards[0].second[0].stride = {11, 4, 1};
  EXPECT_EQ(form_faults(),
            Lines{"form: rank 0: gen shard [0:2, 0:3, 0:4] of 'up' overlaps itself"});
  flat.frame.maps[2].shards[0].second[0].stride = {12, 4, 1};
  flat.frame.tensors[1].gen_dtype = Dtype::kFp32;
  EXPECT_EQ(form_faults(), Lines{"form: tensor 'up' is fp32 in buffer 'w', which holds bf16"});
}

TEST(CheckStaging, Bound) {
  FlatPlan flat = make_example();
  flat.frame.staging_bytes = 7;
  EXPECT_EQ(faults_of(flat),
            Lines{"staging: rank 1: 8 bytes of slots and 0 of packing, at most 7 are allowed"});
}

TEST(CheckPairing, MissingEnds) {
  FlatPlan flat = make_example();
  flat.ends.erase(flat.ends.begin() + 2);  // 0 no longer sends what 1 stages
  EXPECT_EQ(faults_of(flat), Lines{"pairing: rank 1, channel 0, step 1: receives from rank 0, "
                                   "which does not send"});
  flat = make_example();
  flat.ends[1].step = 9;
  EXPECT_EQ(faults_of(flat),
            (Lines{"pairing: rank 0, channel 0, step 0: sends to rank 1, which does not receive",
                   "pairing: rank 1, channel 0, step 9: receives from rank 0, which does not "
                   "send"}));
}

TEST(CheckPairing, DifferentPieces) {
  FlatPlan flat = make_example();
  flat.ends[2].pieces[0].box = rows(1, 3);
  EXPECT_EQ(faults_of(flat),
            Lines{"pairing: rank 0, channel 0, step 1: to rank 1: piece 0 is sent as bf16 [1:3, "
                  "0:2] of 'w' and received as bf16 [2:4, 0:2] of 'w'"});
  flat.ends[2].pieces = {{0, rows(2, 3)}, {0, rows(3, 4)}};
  EXPECT_EQ(faults_of(flat), Lines{"pairing: rank 0, channel 0, step 1: to rank 1: 2 pieces are "
                                   "sent, 1 received"});
}

// Ranks 0 and 1 exchange on two channels; each waits for the other channel first.
TEST(CheckProgress, Cycle) {
  FlatPlan flat = make_frame({4, 2}, {{rows(0, 4)}, {}}, {{}, {rows(0, 4)}});
  flat.transfer(0, Place::kTrain, 0, 1, Place::kGen, 0, 0, rows(0, 2), 0, 3);
  flat.transfer(0, Place::kTrain, 0, 1, Place::kGen, 0, 0, rows(2, 4), 1, 4);
  EXPECT_EQ(faults_of(flat), Lines{});
  flat.waits.push_back({0, 0, 3, {1, 4}});
  EXPECT_EQ(faults_of(flat), Lines{});
  flat.waits.push_back({1, 1, 4, {0, 3}});
  EXPECT_EQ(faults_of(flat),
            (Lines{"progress: rank 0, channel 0, step 3: never ends (on or behind a cycle; its "
                   "peers: 1)",
                   "progress: rank 0, channel 1, step 4: never ends (on or behind a cycle; its "
                   "peers: 1)",
                   "progress: rank 1, channel 0, step 3: never ends (on or behind a cycle; its "
                   "peers: 0)",
                   "progress: rank 1, channel 1, step 4: never ends (on or behind a cycle; its "
                   "peers: 0)"}));
}

TEST(CheckHolding, MissingWait) {
  FlatPlan flat = make_example();
  flat.waits.clear();
  EXPECT_EQ(faults_of(flat), Lines{"holding: rank 1, channel 1, step 0: sends [2:4, 0:2] of 'w' "
                                   "from slot 0: it need not have arrived by then"});
}

// What a step receives is there at its end: too late for what it sends.
TEST(CheckHolding, WithinOneStep) {
  FlatPlan flat = make_example();
  for (size_t end : {4, 5}) {
    flat.ends[end].channel = 0;
    flat.ends[end].step = 1;
  }
  flat.waits.clear();
  EXPECT_EQ(faults_of(flat), Lines{"holding: rank 1, channel 0, step 1: sends [2:4, 0:2] of 'w' "
                                   "from slot 0: it need not have arrived by then"});
}

TEST(CheckHolding, ForwardFromGen) {
  FlatPlan flat = make_frame({4, 2}, {{rows(0, 4)}, {}, {}}, {{}, {rows(0, 4)}, {rows(1, 2)}});
  flat.transfer(0, Place::kTrain, 0, 1, Place::kGen, 0, 0, rows(2, 4), 0, 0);
  flat.transfer(0, Place::kTrain, 0, 1, Place::kGen, 0, 0, rows(0, 2), 0, 1);
  flat.transfer(1, Place::kGen, 0, 2, Place::kGen, 0, 0, rows(1, 2), 1, 0);
  flat.waits.push_back({1, 1, 0, {0, 0}});
  EXPECT_EQ(faults_of(flat), Lines{"holding: rank 1, channel 1, step 0: sends [1:2, 0:2] of 'w' "
                                   "from its gen shard, which channel 0, step 1 need not have "
                                   "written by then"});
  flat.waits[0].on.step = 1;
  EXPECT_EQ(faults_of(flat), Lines{});
}

// Rank 1 never waits itself; rank 0 does, and rank 1's second step needs rank 0 to come along.
TEST(CheckHolding, OrderThroughAnotherRank) {
  FlatPlan flat = make_frame({4, 2}, {{rows(0, 4)}, {}, {}}, {{}, {rows(0, 1)}, {rows(2, 4)}});
  flat.slots[1].push_back({0, rows(2, 4), 0});
  flat.transfer(0, Place::kTrain, 0, 1, Place::kStaging, 0, 0, rows(2, 4), 0, 0);
  flat.transfer(1, Place::kStaging, 0, 2, Place::kGen, 0, 0, rows(2, 4), 1, 1);
  flat.transfer(0, Place::kTrain, 0, 1, Place::kGen, 0, 0, rows(0, 1), 1, 0);
  EXPECT_EQ(faults_of(flat).size(), 1);
  // end(0: channel 0, step 0) does not tell that rank 1 is done with it, only that it had begun.
  flat.waits.push_back({0, 1, 0, {0, 0}});
  EXPECT_EQ(faults_of(flat).size(), 1);
  // A second message on channel 0 does: rank 1 begins it after the first one has ended.
  flat.slots[1].push_back({0, rows(0, 1), 8});
  flat.transfer(0, Place::kTrain, 0, 1, Place::kStaging, 1, 0, rows(0, 1), 0, 1);
  flat.waits[0].on.step = 1;
  EXPECT_EQ(faults_of(flat), Lines{});
  const Plan plan = make_plan(flat);
  const Meetings meetings(plan);
  const Order order(plan, meetings);
  EXPECT_TRUE(order.stuck().empty());
  EXPECT_TRUE(order.ends_before(meetings.group(1, 0), meetings.group(1, 3)));
  EXPECT_FALSE(order.ends_before(meetings.group(1, 1), meetings.group(1, 2)));
  EXPECT_FALSE(order.ends_before(meetings.group(1, 3), meetings.group(1, 0)));
}

TEST(CheckDelivery, NotAtAll) {
  FlatPlan flat = make_example();
  flat.ends.erase(flat.ends.begin(), flat.ends.begin() + 2);
  EXPECT_EQ(faults_of(flat), Lines{"delivery: rank 1: element [0:1, 0:1] of 'w' of gen shard [0:2, "
                                   "0:2] is written 0 times"});
}

TEST(CheckDelivery, Twice) {
  FlatPlan flat = make_example();
  flat.transfer(0, Place::kTrain, 0, 1, Place::kGen, 0, 0, Box{{1, 1}, {2, 2}}, 1, 7);
  EXPECT_EQ(faults_of(flat), Lines{"delivery: rank 1: element [1:2, 1:2] of 'w' of gen shard [0:2, "
                                   "0:2] is written 2 times"});
}

// One slot after the other in the same bytes: the second arrival waits until the first was sent on.
TEST(CheckStaging, ReusedTooEarly) {
  FlatPlan flat = make_frame({4, 2}, {{rows(0, 4)}, {}, {}}, {{}, {}, {rows(0, 4)}});
  flat.slots[1] = {{0, rows(0, 2), 0}, {0, rows(2, 4), 4}};
  flat.transfer(0, Place::kTrain, 0, 1, Place::kStaging, 0, 0, rows(0, 2), 0, 0);
  flat.transfer(1, Place::kStaging, 0, 2, Place::kGen, 0, 0, rows(0, 2), 1, 0);
  flat.transfer(0, Place::kTrain, 0, 1, Place::kStaging, 1, 0, rows(2, 4), 0, 1);
  flat.transfer(1, Place::kStaging, 1, 2, Place::kGen, 0, 0, rows(2, 4), 1, 1);
  flat.waits = {{1, 1, 0, {0, 0}}, {1, 1, 1, {0, 1}}, {1, 0, 1, {1, 0}}};
  EXPECT_EQ(faults_of(flat), Lines{});
  flat.waits.pop_back();
  const Lines faults = faults_of(flat);
  ASSERT_FALSE(faults.empty());
  for (const std::string& fault : faults) {
    EXPECT_TRUE(
        fault.starts_with("staging: rank 1, channel 0, step 1: receives [2:4, 0:2] of 'w' "
                          "into slot 1 over what channel 1, step 0 may still have to send") ||
        fault.starts_with("holding: rank 1, channel 1, step 0: sends [0:2, 0:2]"))
        << fault;
  }
}

TEST(Check, AtMostSoManyOfEachRule) {
  std::vector<std::vector<Box>> train(20), gen(20, {rows(0, 4)});
  const Plan plan = make_plan(make_frame({4, 2}, train, gen));
  EXPECT_EQ(check(plan, 5).size(), 5);
  EXPECT_EQ(check(plan, 100).size(), 20);
  EXPECT_EQ(print(check(plan, 1)), Lines{"delivery: rank 0: element [0:1, 0:1] of 'w' of gen shard "
                                         "[0:4, 0:2] is written 0 times"});
}

}  // namespace
}  // namespace refit
