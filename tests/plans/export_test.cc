#include "plans/export.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "random_plan.h"

namespace refit {
namespace {

// Rank 0 trains a [4, 2]; rank 1 needs rows 0..2, rank 2 rows 2..4. Rank 2's come over a slot of
// rank 1, which forwards them on the other channel.
FlatPlan make_example() {
  const Box top{{0, 0}, {2, 2}}, bottom{{2, 0}, {4, 2}};
  FlatPlan flat = make_frame({4, 2}, {{whole({4, 2})}, {}, {}}, {{}, {top}, {bottom}});
  flat.frame.channels[0].lane = Lane::kNet;
  flat.frame.ranks[0].gen = false;
  flat.frame.ranks[0].nvlink_domain = "d \"zero\"";
  flat.frame.prediction.predicted_s = 0.5;
  flat.frame.prediction.lower_bound_s = 0.25;
  flat.slots[1].push_back({0, bottom, 0});
  flat.transfer(0, Place::kTrain, 0, 1, Place::kStaging, 0, 0, bottom, 0, 0);
  flat.transfer(0, Place::kTrain, 0, 1, Place::kGen, 0, 0, top, 0, 0);
  flat.transfer(1, Place::kStaging, 0, 2, Place::kGen, 0, 0, bottom, 1, 0);
  flat.waits.push_back({1, 1, 0, {0, 0}});
  return flat;
}

// By hand, from the schema in the design.
constexpr const char* kJson = R"({"format": "refit-plan",
 "version": 1,
 "digest": "abc",
 "predicted_s": 0.5,
 "lower_bound_s": 0.25,
 "ranks": [
  {"rank": 0, "sides": ["train"], "node": "n0", "nvlink_domain": "d \"zero\"", "device": 0, "nics": [{"rail": 0}]},
  {"rank": 1, "sides": ["train", "gen"], "node": "n0", "nvlink_domain": "d0", "device": 1, "nics": [{"rail": 1}]},
  {"rank": 2, "sides": ["train", "gen"], "node": "n0", "nvlink_domain": "d0", "device": 2, "nics": [{"rail": 2}]}],
 "channels": [
  {"id": 0, "lane": "net"},
  {"id": 1, "lane": "any"}],
 "maps": [
  {"0": [[[0, 4], [0, 2]]]},
  {"1": [[[0, 2], [0, 2]]], "2": [[[2, 4], [0, 2]]]}],
 "tensors": [
  {"name": "w", "shape": [4, 2], "train_dtype": "bf16", "gen_dtype": "bf16", "train": 0, "gen": 1}],
 "transfers": [
  {"id": 0, "from": 0, "to": 1, "channel": 0, "step": 0, "after": [], "pieces": [{"tensor": 0, "box": [[2, 4], [0, 2]], "wire_dtype": "bf16", "src": "train", "dst": "staging"}, {"tensor": 0, "box": [[0, 2], [0, 2]], "wire_dtype": "bf16", "src": "train", "dst": "gen"}]},
  {"id": 1, "from": 1, "to": 2, "channel": 1, "step": 0, "after": [0], "pieces": [{"tensor": 0, "box": [[2, 4], [0, 2]], "wire_dtype": "bf16", "src": "staging", "dst": "gen"}]}]}
)";

TEST(Export, GoldenJson) {
  std::ostringstream out;
  export_json(make_plan(make_example()), "abc", out);
  EXPECT_EQ(out.str(), kJson);
  EXPECT_NO_THROW(nlohmann::json::parse(out.str()));
}

TEST(Export, GoldenYaml) {
  FlatPlan flat = make_frame({}, {{whole({})}}, {{whole({})}});
  flat.transfer(0, Place::kTrain, 0, 0, Place::kGen, 0, 0, whole({}), 1, 7);
  flat.frame.maps.pop_back();
  flat.frame.tensors[0].gen_map = 0;
  std::ostringstream out;
  export_yaml(make_plan(flat), "abc", out);
  EXPECT_EQ(out.str(), R"(format: "refit-plan"
version: 1
digest: "abc"
predicted_s: 0
lower_bound_s: 0
ranks:
  - {"rank": 0, "sides": ["train", "gen"], "node": "n0", "nvlink_domain": "d0", "device": 0, "nics": [{"rail": 0}]}
channels:
  - {"id": 0, "lane": "any"}
  - {"id": 1, "lane": "any"}
maps:
  - {"0": [[]]}
tensors:
  - {"name": "w", "shape": [], "train_dtype": "bf16", "gen_dtype": "bf16", "train": 0, "gen": 0}
transfers:
  - {"id": 0, "from": 0, "to": 0, "channel": 1, "step": 7, "after": [], "pieces": [{"tensor": 0, "box": [], "wire_dtype": "bf16", "src": "train", "dst": "gen"}]}
)");
}

TEST(Export, EmptyLists) {
  std::ostringstream json, yaml;
  export_json({}, "", json);
  EXPECT_EQ(nlohmann::json::parse(json.str())["transfers"], nlohmann::json::array());
  export_yaml({}, "", yaml);
  EXPECT_NE(yaml.str().find("\nranks: []\nchannels: []\n"), std::string::npos) << yaml.str();
}

// JSON has neither NaN nor bytes that are no UTF-8.
TEST(Export, StaysJson) {
  FlatPlan flat = make_example();
  flat.frame.prediction.predicted_s = std::numeric_limits<double>::quiet_NaN();
  flat.frame.tensors[0].name = "w\n\xff\\";
  std::ostringstream out;
  export_json(make_plan(flat), "abc", out);
  const auto json = nlohmann::json::parse(out.str());
  EXPECT_TRUE(json["predicted_s"].is_null());
  EXPECT_EQ(json["tensors"][0]["name"], "w\n\xef\xbf\xbd\\");
}

TEST(Export, GoldenCsv) {
  std::ostringstream out;
  export_csv(make_plan(make_example()), out);
  EXPECT_EQ(out.str(),
            "id,from,to,channel,step,bytes,pieces,lane,same_domain\n"
            "0,0,1,0,0,16,2,net,false\n"
            "1,1,2,1,0,8,1,any,true\n");
}

// Ids are an order of execution, and `after` only looks back.
TEST(PairTransfers, OrderIsExecutable) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    const FlatPlan flat = make_random_plan(random);
    const Plan plan = make_plan(flat);
    const std::vector<PairedTransfer> transfers = pair_transfers(plan);
    ASSERT_EQ(2 * transfers.size(), flat.ends.size());
    std::set<std::tuple<int32_t, int32_t, int32_t, int32_t>> distinct;
    for (size_t id = 0; id < transfers.size(); ++id) {
      const PairedTransfer& a = transfers[id];
      distinct.insert({a.from, a.to, a.channel, a.step});
      for (const int64_t before : a.after) ASSERT_LT(before, static_cast<int64_t>(id));
      for (const FlatWait& wait : flat.waits) {
        if ((wait.rank != a.from && wait.rank != a.to) || wait.channel != a.channel ||
            wait.step != a.step) {
          continue;
        }
        for (size_t other = 0; other < transfers.size(); ++other) {
          const PairedTransfer& b = transfers[other];
          if ((b.from == wait.rank || b.to == wait.rank) && b.channel == wait.on.channel &&
              b.step == wait.on.step) {
            ASSERT_NE(std::find(a.after.begin(), a.after.end(), static_cast<int64_t>(other)),
                      a.after.end());
          }
        }
      }
      for (size_t earlier = 0; earlier < id; ++earlier) {  // channels stay in order
        const PairedTransfer& b = transfers[earlier];
        const bool share = a.from == b.from || a.from == b.to || a.to == b.from || a.to == b.to;
        if (share && a.channel == b.channel) {
          ASSERT_LE(b.step, a.step);
        }
      }
    }
    ASSERT_EQ(distinct.size(), transfers.size());
  }
}

}  // namespace
}  // namespace refit
