#pragma once

#include <cstdint>
#include <random>

#include "tests/sim/simulator/small.h"

namespace refit {

/// Rounds of random transfers on three channels, with waits from each round to the one before it on
/// another channel.
inline Plan random_steps(uint64_t seed, int32_t ranks) {
  std::mt19937_64 random(seed);
  PlanWriter writer(ranks, 3);
  for (int32_t channel = 0; channel < 3; ++channel) {
    for (int32_t step = 0; step < 6; ++step) {
      for (int32_t from = 0; from < ranks; ++from) {
        for (int n = 0; n < 3; ++n) {
          const auto to = static_cast<int32_t>(random() % static_cast<uint64_t>(ranks));
          const int pieces = 1 + static_cast<int>(random() % 2);
          writer.send(from, to, channel, step, 1 + static_cast<int64_t>(random() % 999), pieces,
                      pieces);
        }
        if (step > 0 && random() % 3 == 0)
          writer.wait(from, channel, step, (channel + 1) % 3, step - 1);
      }
    }
  }
  return writer.write();
}

/// Everything costs something.
inline CostModel full_cost() {
  CostModel cost;
  cost.nvlink = {0.8, 60, 0.2, 0.01};
  cost.net = {0.9, 7, 0.5, 0.02};
  cost.gpu_rate = 70;
  cost.memory_rate = 500;
  cost.copy_start = 0.1;
  return cost;
}

}  // namespace refit
