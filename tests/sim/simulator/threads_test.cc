#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>

#include "plans/check.h"
#include "sim/simulator/critical.h"
#include "sim/simulator/sensitivity.h"
#include "tests/sim/simulator/random_steps.h"

namespace refit {
namespace {

/// Rates as on a real fabric, so that nothing is a round number.
Fabric fabric() { return SmallCluster{.nvlink = 361.7, .nic = 48.3, .nic_latency = 1e-3}.make(8); }

TEST(Threads, AloneOrTwoAtATimeTheBitsAreTheSame) {
  const Plan plan = random_steps(7, 16);
  const Fabric cluster = fabric();
  const CostModel cost = full_cost();
  for (const double error : {0.0, 0.01}) {
    const SimulateOptions how{.entries = true, .error = error};
    const Timeline alone = simulate(plan, cluster, cost, how);
    Timeline first, second;
    std::thread one([&] { first = simulate(plan, cluster, cost, how); });
    std::thread two([&] { second = simulate(plan, cluster, cost, how); });
    one.join();
    two.join();
    EXPECT_EQ(first, alone);
    EXPECT_EQ(second, alone);
  }
}

TEST(Threads, APlanIsCheckedWhileItIsReplayed) {
  const Plan plan = random_steps(8, 16);
  const auto print_faults = [&] {
    std::string text;
    for (const Fault& fault : check(plan)) text += print_fault(fault) + "\n";
    return text;
  };
  const Timeline alone = simulate(plan, fabric(), full_cost());
  const std::string faults_alone = print_faults();
  Timeline replayed;
  std::thread other([&] { replayed = simulate(plan, fabric(), full_cost()); });
  EXPECT_EQ(print_faults(), faults_alone);
  other.join();
  EXPECT_EQ(replayed, alone);
}

// The bits themselves, for every compiler, optimisation and sanitizer that this is built with.
TEST(Threads, AKnownResult) {
  const Timeline timeline = simulate(random_steps(7, 16), fabric(), full_cost());
  uint64_t hash = 1469598103934665603ULL;  // FNV-1a over the bits of all times
  const auto add = [&](double value) {
    uint64_t bits = 0;
    static_assert(sizeof(bits) == sizeof(value));
    std::memcpy(&bits, &value, sizeof(bits));
    for (int byte = 0; byte < 8; ++byte)
      hash = (hash ^ (bits >> (8 * byte) & 0xff)) * 1099511628211ULL;
  };
  for (const double end : timeline.rank_end) add(end);
  for (const double busy : timeline.link_busy_s) add(busy);
  EXPECT_EQ(hash, 15106949874735557467ULL);
}

TEST(Threads, SensitivitiesDoNotDependOnThreads) {
  const Plan plan = random_steps(8, 8);
  const Fabric cluster = fabric();
  const std::vector<Sensitivity> first = sensitivities(plan, cluster, full_cost());
  const std::vector<Sensitivity> again = sensitivities(plan, cluster, full_cost());
  ASSERT_EQ(first.size(), again.size());
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].change, again[i].change);
    EXPECT_EQ(first[i].refit_s, again[i].refit_s);
  }
}

}  // namespace
}  // namespace refit
