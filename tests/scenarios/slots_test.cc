// Redundant experts, planned by every strategy. search() checks each plan: every element of every
// slot is written exactly once, with the right element, an expert that a rank has twice included.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "sim/search/search.h"
#include "sim/search/strategies.h"
#include "tests/sim/search/small_fabric.h"

namespace refit {
namespace {

Model one_layer(int32_t experts) {
  Model model;
  model.name = "experts";
  model.layers = 1;
  model.experts = experts;
  model.tensors.push_back(
      {"gate", Dims{experts, 8, 4}, Dtype::kBf16, Role::kExpertColumn, Block::kLayer, 0, true});
  model.tensors.push_back(
      {"down", Dims{experts, 4, 8}, Dtype::kBf16, Role::kExpertRow, Block::kLayer, 0, true});
  model.tensors.push_back(
      {"norm", Dims{4}, Dtype::kFp32, Role::kReplicated, Block::kHead, -1, false});
  return model;
}

TEST(Slots, EveryCopyOfAnExpertIsWritten) {
  std::mt19937 random(3);
  const auto pick = [&](int32_t lo, int32_t hi) {
    return lo + static_cast<int32_t>(random() % static_cast<uint32_t>(hi - lo + 1));
  };
  int twice = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const int32_t ep = pick(1, 4), experts = 2 * pick(1, 4), etp = trial % 2 + 1;
    const int32_t per_rank = (experts + ep - 1) / ep + pick(0, 3);
    std::vector<int32_t> slots;
    for (int32_t slot = 0; slot < ep * per_rank; ++slot) {
      slots.push_back(slot < experts ? slot : pick(0, experts - 1));
    }
    std::shuffle(slots.begin(), slots.end(), random);
    const std::string table = fmt::format("{}", fmt::join(slots, "|"));
    std::string gen = etp == 1 ? fmt::format("vllm:tp={},ep=on,eplb={},engines=2", ep, table)
                               : fmt::format("sglang:tp={},ep={},eplb={}", ep * etp, ep, table);
    if (trial % 5 == 0) {  // colocated in part
      gen += fmt::format(",ranks=1-{}", ep * 2);
    }
    const Problem problem =
        testing::make_small_problem(one_layer(experts), "megatron:ep=2,tp=2,etp=1", gen);
    const RankMap& map = problem.gen.maps[static_cast<size_t>(problem.gen.tensor_map[0])];
    for (const auto& [rank, shards] : map.shards) {
      for (size_t i = 1; i < shards.size(); ++i)
        twice += shards[i].box == shards[i - 1].box ? 1 : 0;
    }
    for (const Strategy& known : all_strategies()) {
      if (known.baseline) continue;  // peers do not serve redundant experts
      const std::string strategy = known.name;
      SCOPED_TRACE(gen + ", " + strategy);
      const Plan plan = search(problem, {.strategy = strategy});
      int64_t slot_bytes = 0;
      for (const Program& program : plan.programs) {
        for (const Step& step : program.steps) {
          for (int32_t m = step.first_recv; m < step.last_message; ++m) {
            const Message& message = program.messages[static_cast<size_t>(m)];
            for (int32_t p = message.first_piece; p < message.last_piece; ++p) {
              const Piece& piece = program.pieces[static_cast<size_t>(p)];
              if (piece.tensor != 2) slot_bytes += piece_bytes(program, piece);
            }
          }
        }
      }
      // gate and down of a slot have 64 bytes each, over all ranks of its expert-tensor group.
      const int64_t engines = etp == 1 ? 2 : 1;
      EXPECT_EQ(slot_bytes, engines * ep * per_rank * 2 * 64);
    }
  }
  EXPECT_GT(twice, 20);  // the trials have to be worth the name
}

}  // namespace
}  // namespace refit
