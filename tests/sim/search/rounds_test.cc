#include "sim/search/rounds.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace refit {
namespace {

constexpr int64_t kMessage = int64_t{1} << 20;
constexpr int32_t kLag = 2;

struct Case {
  Problem problem;
  Routing routing;
  std::vector<int32_t> roots;
  std::vector<std::vector<int32_t>> children;  // by hop
};

/// Random trees of hops over `ranks` ranks; a hop below another leaves from where that one ended.
Case random_case(uint32_t seed, int32_t ranks, int hops) {
  std::mt19937 random(seed);
  Case made;
  made.problem.gpu_of_rank.assign(static_cast<size_t>(ranks), -1);  // all ports alike
  for (const int64_t rows : {7, 300, 5000}) {
    Tensor tensor;
    tensor.shape = Dims{rows, 512};
    made.problem.model.tensors.push_back(tensor);
  }
  for (int i = 0; i < hops; ++i) {
    Hop hop;
    hop.parent =
        i > 0 && random() % 2 == 0 ? static_cast<int32_t>(random() % static_cast<uint32_t>(i)) : -1;
    if (hop.parent >= 0) {
      const Hop& parent = made.routing.hops[static_cast<size_t>(hop.parent)];
      hop.tensor = parent.tensor;
      hop.box = parent.box;
      hop.from = parent.to;
    } else {
      hop.tensor = static_cast<int32_t>(random() % 3);
      hop.box = static_cast<int32_t>(made.routing.boxes.size());
      hop.from = static_cast<int32_t>(random() % static_cast<uint32_t>(ranks));
      made.routing.boxes.push_back(
          whole(made.problem.model.tensors[static_cast<size_t>(hop.tensor)].shape));
      made.roots.push_back(i);
    }
    do {
      hop.to = static_cast<int32_t>(random() % static_cast<uint32_t>(ranks));
    } while (hop.to == hop.from);
    made.routing.hops.push_back(hop);
    made.children.emplace_back();
    if (hop.parent >= 0) made.children[static_cast<size_t>(hop.parent)].push_back(i);
  }
  return made;
}

void expect_right(const Case& made, bool uneven = false) {
  const RoundShape shape{kMessage, kLag, uneven};
  const auto parts = pack_rounds(made.problem, made.routing, made.roots, made.children, shape);
  std::vector<std::vector<Box>> boxes(made.routing.hops.size());
  std::map<std::pair<int32_t, int32_t>, std::set<int32_t>> out_peers, in_peers;  // (round, rank)
  std::map<std::pair<int32_t, int32_t>, int64_t> out_bytes, in_bytes;
  for (const RoundPart& packed : parts) {
    const Hop& hop = made.routing.hops[static_cast<size_t>(packed.part.hop)];
    boxes[static_cast<size_t>(packed.part.hop)].push_back(packed.part.box);
    out_peers[{packed.round, hop.from}].insert(hop.to);
    in_peers[{packed.round, hop.to}].insert(hop.from);
    const int64_t bytes = box_bytes(made.problem, hop.tensor, packed.part.box);
    out_bytes[{packed.round, hop.from}] += bytes;
    in_bytes[{packed.round, hop.to}] += bytes;
    EXPECT_EQ(packed.after >= 0, hop.parent >= 0);
    if (hop.parent < 0) continue;
    EXPECT_GE(packed.round, packed.after + kLag);
    // The parent's part of that round carries these rows.
    const bool brought = std::any_of(parts.begin(), parts.end(), [&](const RoundPart& other) {
      return other.part.hop == hop.parent && other.round == packed.after &&
             contains(other.part.box, packed.part.box);
    });
    EXPECT_TRUE(brought);
  }
  for (size_t hop = 0; hop < boxes.size(); ++hop) {
    EXPECT_TRUE(covers_once(made.routing.boxes[static_cast<size_t>(made.routing.hops[hop].box)],
                            boxes[hop]))
        << hop;
  }
  for (const auto* peers : {&out_peers, &in_peers}) {
    for (const auto& [at, set] : *peers) EXPECT_LE(std::ssize(set), kMaxPeersPerStep);
  }
  for (const auto* bytes : {&out_bytes, &in_bytes}) {
    for (const auto& [at, sum] : *bytes) {
      EXPECT_LE(sum, round_bytes(shape, at.first) + kMessage / 16);
    }
  }
}

TEST(PackRounds, Nothing) { EXPECT_TRUE(pack_rounds({}, {}, {}, {}, {kMessage, kLag}).empty()); }

TEST(PackRounds, UnevenRounds) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    expect_right(random_case(seed, 2 + static_cast<int32_t>(seed % 9), static_cast<int>(seed)),
                 true);
  }
}

TEST(PackRounds, RandomForests) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    expect_right(random_case(seed, 2 + static_cast<int32_t>(seed % 9), static_cast<int>(seed)));
  }
}

// 0 -> 1 -> 2 -> 0 in circles: messages that wait for one another to be full must still leave.
TEST(PackRounds, CirclesOfForwards) {
  Case made = random_case(1, 3, 0);
  for (int32_t tree = 0; tree < 30; ++tree) {
    for (int32_t depth = 0; depth < 3; ++depth) {
      const auto index = static_cast<int32_t>(made.routing.hops.size());
      Hop hop;
      hop.tensor = 0;
      hop.from = (tree + depth) % 3;
      hop.to = (hop.from + 1) % 3;
      hop.parent = depth == 0 ? -1 : index - 1;
      if (depth == 0) made.routing.boxes.push_back(whole(made.problem.model.tensors[0].shape));
      hop.box = static_cast<int32_t>(made.routing.boxes.size()) - 1;
      made.routing.hops.push_back(hop);
      made.children.emplace_back();
      if (depth == 0) {
        made.roots.push_back(index);
      } else {
        made.children[static_cast<size_t>(index) - 1].push_back(index);
      }
    }
  }
  expect_right(made);
}

/// Seconds on ports of a message per second, if rounds ran one after the other: the busiest ports.
double messages_of(const Case& made, std::span<const double> rates) {
  std::map<int32_t, std::map<int32_t, double>> out, in;  // by round and rank
  for (const RoundPart& packed :
       pack_rounds(made.problem, made.routing, made.roots, made.children, {kMessage, kLag})) {
    const Hop& hop = made.routing.hops[static_cast<size_t>(packed.part.hop)];
    const auto bytes =
        static_cast<double>(box_bytes(made.problem, hop.tensor, packed.part.box)) / kMessage;
    out[packed.round][hop.from] += bytes / rates[static_cast<size_t>(hop.from)];
    in[packed.round][hop.to] += bytes / rates[static_cast<size_t>(hop.to)];
  }
  double sum = 0;
  for (auto& [round, ports] : out) {
    double most = 0;
    for (const auto* side : {&ports, &in[round]}) {
      for (const auto& [rank, seconds] : *side) most = std::max(most, seconds);
    }
    sum += most;
  }
  return sum;
}

/// Every one of the first `side` ranks sends a tensor of so many rows of a KiB to each of the others.
Case all_to_all(int32_t side, int64_t rows) {
  Case made = random_case(1, 2 * side, 0);
  made.problem.model.tensors[0].shape = Dims{rows, 512};  // bf16
  for (int32_t from = 0; from < side; ++from) {
    for (int32_t to = side; to < 2 * side; ++to) {
      made.routing.boxes.push_back(whole(made.problem.model.tensors[0].shape));
      const auto index = static_cast<int32_t>(made.routing.hops.size());
      made.routing.hops.push_back({.tensor = 0, .box = index, .from = from, .to = to});
      made.roots.push_back(index);
      made.children.emplace_back();
    }
  }
  return made;
}

// Every pair has whole messages, then a half and a quarter more: all ports can be full in all
// rounds (König), so that these take as long as a port's messages, one after the other.
TEST(PackRounds, NoPortWaits) {
  const std::vector<double> rates(12, 1);
  for (const auto& [rows, messages] : {std::pair(1024, 6.0), std::pair(2048 + 768, 16.5)}) {
    const Case made = all_to_all(6, rows);
    expect_right(made);
    EXPECT_NEAR(messages_of(made, rates), messages, 0.03 * messages);
  }
}

// Rank 0 sends to ranks 2 and 3, and rank 3 has a NIC of half the rate: in a round it gets at most
// half a message, and the sender fills up with what is for the other.
TEST(PackRounds, SlowPortsCarryTheirShare) {
  Case made = random_case(1, 4, 0);
  made.problem.fabric = make_fabric(
      {"name: f\ndefault_cost: nominal\nnode: {gpus: 4, nics: 4, nic: 10GB/s, nic_latency: 1us}\n"
       "network: {kind: flat}\nlinks: [{name: n0.nic3, rate: 5GB/s}]\n",
       "f.yaml"},
      1);
  made.problem.cost = parse_cost(load_cost_source("nominal"));
  made.problem.gpu_of_rank = {0, 1, 2, 3};
  for (int32_t i = 0; i < 2; ++i) {
    made.routing.boxes.push_back(whole(made.problem.model.tensors[2].shape));
    made.routing.hops.push_back({.tensor = 2, .box = i, .from = 0, .to = 2 + i});
    made.roots.push_back(i);
    made.children.emplace_back();
  }
  expect_right(made);
  std::map<std::pair<int32_t, int32_t>, int64_t> bytes;  // by round, hop
  for (const RoundPart& packed :
       pack_rounds(made.problem, made.routing, made.roots, made.children, {kMessage, kLag})) {
    bytes[{packed.round, packed.part.hop}] += box_bytes(made.problem, 2, packed.part.box);
  }
  for (const auto& [at, sum] : bytes) {
    if (at.second == 1) {
      EXPECT_LE(sum, kMessage / 2 + kMessage / 16);
    }
  }
  // 2 x 5000 x 512 x 2 bytes are 9.8 MiB for the sender, and 9.8 for the slow rank at half the rate.
  EXPECT_LE(messages_of(made, std::vector<double>{1, 1, 1, 0.5}), 11);
}

}  // namespace
}  // namespace refit
