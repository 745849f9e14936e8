// Plans with few network peers, and which ranks may then exchange messages. The oracle counts the
// peers in the messages of the plan.

#include "sim/search/peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <charconv>

#include "base/error.h"
#include "plans/check.h"
#include "sim/search/problem.h"
#include "tests/sim/search/small_fabric.h"

namespace refit {
namespace {

int32_t peers_in(const Plan& plan) {
  size_t most = 0;
  for (size_t rank = 0; rank < plan.programs.size(); ++rank) {
    std::set<int32_t> peers;
    for (const Message& message : plan.programs[rank].messages) {
      if (plan.ranks[static_cast<size_t>(message.peer)].nvlink_domain !=
          plan.ranks[rank].nvlink_domain)
        peers.insert(message.peer);
    }
    most = std::max(most, peers.size());
  }
  return static_cast<int32_t>(most);
}

/// The number after "at least" in the refusal of one peer.
int32_t least_peers(const Problem& problem) {
  try {
    search(problem, {.max_peers = 1, .attempts = 1});
  } catch (const Error& error) {
    const std::string text = error.what(), before = "at least ";
    EXPECT_THAT(text, ::testing::StartsWith("--max-peers: found 1, "));
    const size_t at = text.find(before);
    if (at == std::string::npos) return 0;
    int32_t least = 0;
    std::from_chars(text.data() + at + before.size(), text.data() + text.size(), least);
    return least;
  }
  return 1;
}

TEST(MaxPeers, PlansKeepTheBoundAndTheLeastThatIsNamedWorks) {
  const std::vector<InputSpec> specs = {
      {.model = "qwen3-0.6b",
       .train = "megatron:tp=4,pp=4,dp=2",
       .gen = "vllm:tp=8,dp=4",
       .fabric = "dgx-h100",
       .cost = "",
       .dtype = ""},
      {.model = "qwen3-0.6b",
       .train = "megatron:dp=16",
       .gen = "vllm:tp=8,dp=2",
       .fabric = "dgx-h100",
       .cost = "",
       .dtype = ""},
      {.model = "qwen3-0.6b",
       .train = "fsdp:world=24",
       .gen = "vllm:tp=4,dp=6",
       .fabric = "dgx-h100",
       .cost = "",
       .dtype = ""},
      {.model = "qwen3-0.6b",
       .train = "megatron:tp=2,pp=2",
       .gen = "vllm:tp=4,dp=3",
       .fabric = "emulated-4x4",
       .cost = "",
       .dtype = ""},
      {.model = "qwen3-0.6b",
       .train = "megatron:tp=4,pp=4",
       .gen = "vllm:tp=2,dp=8,ranks=8-23",
       .fabric = "dgx-h100",
       .cost = "",
       .dtype = ""},
      {.model = "qwen3-0.6b",
       .train = "fsdp:world=20",
       .gen = "vllm:tp=8,dp=3",
       .fabric = "dgx-h100",
       .cost = "",
       .dtype = "",
       .nodes = 8,
       .exclude = {"n0.gpu1", "n4.gpu0", "n1.nic2"}},
  };
  for (const InputSpec& spec : specs) {
    SCOPED_TRACE(spec.train + " " + spec.gen + " " + spec.fabric);
    const Problem problem = load_problem(spec);
    const int32_t usual = peers_in(search(problem, {.attempts = 1}));
    const int32_t least = least_peers(problem);
    EXPECT_LE(least, usual);
    for (int32_t bound = std::max(1, least - 1); bound <= usual; bound += std::max(1, usual / 8)) {
      SCOPED_TRACE(bound);
      if (bound < least) {
        EXPECT_THROW(search(problem, {.max_peers = bound, .attempts = 1}), Error);
        continue;
      }
      const Plan plan =
          search(problem, {.max_peers = bound, .attempts = 4});  // that `check` passes
      EXPECT_EQ(plan.max_peers, bound);
      EXPECT_LE(peers_in(plan), bound);
      EXPECT_EQ(plan_totals(plan).max_peers, peers_in(plan));
    }
  }
}

TEST(MaxPeers, ABoundThatDoesNotBindChangesNothing) {
  const Problem problem = load_problem({.model = "qwen3-0.6b",
                                        .train = "megatron:tp=4,pp=2",
                                        .gen = "vllm:tp=8",
                                        .fabric = "dgx-h100",
                                        .cost = "",
                                        .dtype = ""});
  const Plan usual = search(problem, {.attempts = 1});
  Plan bounded = search(problem, {.max_peers = peers_in(usual), .attempts = 1});
  bounded.max_peers = 0;
  EXPECT_EQ(usual, bounded);
}

TEST(MaxPeers, StrategiesOfOneShapeAreRefused) {
  const Problem problem = load_problem({.model = "qwen3-0.6b",
                                        .train = "megatron:tp=4,pp=2",
                                        .gen = "vllm:tp=8",
                                        .fabric = "dgx-h100",
                                        .cost = "",
                                        .dtype = ""});
  const int32_t usual = peers_in(search(problem, {.strategy = "direct"}));
  EXPECT_NO_THROW(search(problem, {.strategy = "direct", .max_peers = usual}));
  EXPECT_THROW(search(problem, {.strategy = "direct", .max_peers = usual - 1}), Error);
}

/// Domains of eight GPUs, with a rank on each of those named.
Problem place(int32_t nodes, std::vector<int32_t> gpus) {
  Problem problem;
  problem.fabric = make_fabric(testing::small_fabric(8), nodes);
  problem.gpu_of_rank = std::move(gpus);
  return problem;
}

// Rank r on GPU r of four domains; domain 0 holds what the others need.
TEST(PeerLinks, LanesHomesAndRing) {
  std::vector<int32_t> gpus(32);
  for (int32_t gpu = 0; gpu < 32; ++gpu) gpus[static_cast<size_t>(gpu)] = gpu;
  const Problem problem = place(4, gpus);
  const std::vector<EntryGuide::Class> classes = {
      {{0}, {{1, {8}}, {2, {16}}, {3, {24}}}, 1000, 3},
  };
  EXPECT_EQ(PeerLinks::most_homes(classes), 3);
  const PeerLinks all(problem, classes, 3);
  EXPECT_TRUE(all.allows(5, 13) && all.allows(5, 21) && all.allows(5, 29));
  EXPECT_FALSE(all.allows(5, 12)) << "another lane";
  EXPECT_EQ(all.most_peers(), 3);
  const PeerLinks one(problem, classes, 1);
  EXPECT_TRUE(one.allows(5, 13));
  EXPECT_FALSE(one.allows(5, 21) || one.allows(5, 29)) << "the first domain is the home";
  EXPECT_TRUE(one.allows(13, 21) && one.allows(21, 29)) << "along the ring";
  EXPECT_FALSE(one.allows(21, 13));
  EXPECT_EQ(one.wave(0, 1), 0);
  EXPECT_EQ(one.wave(0, 2), 1);
  EXPECT_EQ(one.wave(0, 3), 2);
}

// The second domain has ranks on two GPUs only: rank 8 on lane 3 and rank 9 on lane 6.
TEST(PeerLinks, LanesThatADomainLacks) {
  const Problem problem = place(2, {0, 1, 2, 3, 4, 5, 6, 7, 11, 14});
  const PeerLinks links(problem, {{{0}, {{1, {8, 9}}}, 1000, 2}}, 1);
  for (int32_t rank = 0; rank < 8; ++rank) {
    const int32_t to_first = links.allows(rank, 8) ? 1 : 0,
                  to_second = links.allows(rank, 9) ? 1 : 0;
    EXPECT_EQ(to_first + to_second, 1) << rank;
  }
  EXPECT_TRUE(links.allows(3, 8) && links.allows(6, 9));
}

}  // namespace
}  // namespace refit
