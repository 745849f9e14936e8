// Random pairs of layouts, planned by every strategy, checked, and replayed on the host backend.
// The oracle is gather and slice: a global tensor as plain bytes, of which every rank's buffers are
// cut out element by element.

#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>

#include "base/error.h"
#include "exec/executor.h"
#include "exec/host_backend.h"
#include "sim/search/search.h"
#include "tests/pipeline/random_layout.h"
#include "tests/sim/search/small_fabric.h"

namespace refit {
namespace {

using testing::layout_of;
using testing::Random;

constexpr int kPairs = 2000;  // times REFIT_FUZZ_SCALE

int scale() {
  const char* text = std::getenv("REFIT_FUZZ_SCALE");
  return text == nullptr ? 1 : std::max(std::atoi(text), 1);
}

/// A random mesh of up to 8 ranks with placements; axes that shard one dimension twice, uneven
/// splits and empty shards included.
RankMap random_map(Random& random, const Dims& shape, const std::vector<int32_t>& ranks) {
  Mesh mesh{.axis = {}, .size = {}, .ranks = ranks};
  std::vector<Placement> placements;
  for (auto left = static_cast<int32_t>(ranks.size()); left > 1 || mesh.size.empty();) {
    auto size = static_cast<int32_t>(random.in(1, left));
    while (left % size != 0) --size;
    mesh.axis.push_back("a" + std::to_string(mesh.size.size()));
    mesh.size.push_back(size);
    placements.push_back({static_cast<int32_t>(random.in(-1, shape.count - 1))});
    left /= size;
    if (left > 1 && size == 1 && mesh.size.size() > 3) {
      mesh.size.back() = left;
      left = 1;
    }
  }
  const Split split = random.one_of(2) ? Split::kChunk : Split::kBalanced;
  return make_map(shape, mesh, placements, split, "test");
}

std::vector<int32_t> some_ranks(Random& random, int32_t first, int64_t count) {
  std::vector<int32_t> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), first);
  for (size_t i = ranks.size(); i > 1; --i) {
    std::swap(ranks[i - 1], ranks[static_cast<size_t>(random.in(0, static_cast<int64_t>(i) - 1))]);
  }
  return ranks;
}

Problem random_problem(Random& random) {
  Problem problem;
  problem.model.name = "random";
  const auto train_ranks = some_ranks(random, 0, random.in(1, 8));
  // Colocated now and then: some gen ranks are train ranks.
  const auto first_gen = static_cast<int32_t>(
      random.one_of(4) ? random.in(0, std::ssize(train_ranks) - 1) : std::ssize(train_ranks));
  const auto gen_ranks = some_ranks(random, first_gen, random.in(1, 8));
  std::vector<RankMap> train, gen;
  for (int64_t t = 0, count = random.in(1, 3); t < count; ++t) {
    Tensor tensor;
    tensor.name = "t" + std::to_string(t);
    constexpr Dtype kDtypes[] = {Dtype::kBf16, Dtype::kFp32, Dtype::kFp8E4m3, Dtype::kFp64};
    tensor.dtype = kDtypes[random.in(0, 3)];
    tensor.shape.count = static_cast<int32_t>(random.in(1, 3));
    for (int d = 0; d < tensor.shape.count; ++d)
      tensor.shape[d] = random.in(1, random.one_of(8) ? 60 : 9);
    train.push_back(random_map(random, tensor.shape, train_ranks));
    gen.push_back(random_map(random, tensor.shape, gen_ranks));
    problem.model.tensors.push_back(tensor);
  }
  problem.train = layout_of(train, train_ranks);
  problem.gen = layout_of(gen, gen_ranks);
  problem.demand = make_demand(problem.model, problem.train, problem.gen);
  testing::place_on_small_fabric(problem);
  return problem;
}

std::byte element_byte(size_t tensor, int64_t index, int64_t byte) {
  const uint64_t x =
      (static_cast<uint64_t>(index) * 8 + static_cast<uint64_t>(byte) + tensor * 7919) *
      0x9E3779B97F4A7C15ULL;
  return static_cast<std::byte>(x >> 56);
}

/// Calls visit(global index, byte offset in the buffer) for every element of a shard, by counting.
template <typename Visit>
void for_each_element(const Dims& shape, const Shard& shard, int64_t width, Visit visit) {
  Dims at = shard.box.lo;
  if (shard.box.empty()) return;
  while (true) {
    int64_t index = 0, local = shard.offset;
    for (int d = 0; d < shape.count; ++d) {
      index = index * shape[d] + at[d];
      local += (at[d] - shard.box.lo[d]) * shard.stride[d];
    }
    visit(index, local * width);
    int d = shape.count - 1;
    for (; d >= 0 && ++at[d] == shard.box.hi[d]; --d) at[d] = shard.box.lo[d];
    if (d < 0) return;
  }
}

/// Visits every byte of the rank's buffers of one side: visit(tensor, element, byte of the element,
/// address).
template <typename Visit>
void for_each_byte(const Plan& plan, Side side, int32_t rank, const Executor::Buffers& buffers,
                   Visit visit) {
  for (size_t t = 0; t < plan.tensors.size(); ++t) {
    const PlanTensor& tensor = plan.tensors[t];
    const int32_t map = side == Side::kTrain ? tensor.train_map : tensor.gen_map;
    const auto* shards = plan.maps[static_cast<size_t>(map)].find(rank);
    if (shards == nullptr) continue;
    std::byte* base = side == Side::kTrain ? buffers.train[static_cast<size_t>(tensor.train_buffer)]
                                           : buffers.gen[static_cast<size_t>(tensor.gen_buffer)];
    const int64_t width = dtype_bits(tensor.train_dtype) / 8;
    for (const Shard& shard : *shards) {
      for_each_element(tensor.shape, shard, width, [&](int64_t index, int64_t offset) {
        for (int64_t byte = 0; byte < width; ++byte) visit(t, index, byte, base + offset + byte);
      });
    }
  }
}

/// Replays and counts the bytes of gen buffers that differ from the global tensors.
int64_t wrong_bytes(const Plan& plan) {
  HostWorld world(static_cast<int32_t>(plan.ranks.size()), 20);
  std::vector<int64_t> wrong(plan.ranks.size(), 0);
  world.run([&](Backend& backend) {
    const int32_t rank = backend.rank();
    const Executor::Buffers buffers = allocate_buffers(plan, backend);
    for_each_byte(plan, Side::kTrain, rank, buffers,
                  [](size_t t, int64_t index, int64_t byte, std::byte* at) {
                    *at = element_byte(t, index, byte);
                  });
    for_each_byte(plan, Side::kGen, rank, buffers,
                  [](size_t t, int64_t index, int64_t byte, std::byte* at) {
                    *at = ~element_byte(t, index, byte);
                  });
    Executor(plan, backend, buffers).run();
    for_each_byte(plan, Side::kGen, rank, buffers,
                  [&](size_t t, int64_t index, int64_t byte, std::byte* at) {
                    wrong[static_cast<size_t>(rank)] += *at != element_byte(t, index, byte);
                  });
  });
  return std::accumulate(wrong.begin(), wrong.end(), int64_t{0});
}

TEST(Replay, RandomLayoutPairsEqualGatherAndSlice) {
  Random random(2026);
  const auto strategies = list_strategies();
  int64_t transfers = 0, copies = 0, refused = 0;
  for (int pair = 0; pair < kPairs * scale(); ++pair) {
    const Problem problem = random_problem(random);
    const std::string strategy = strategies[static_cast<size_t>(pair) % strategies.size()].first;
    SCOPED_TRACE("pair " + std::to_string(pair) + ", " + strategy);
    Plan plan;
    try {
      plan = search(problem, {.strategy = strategy});  // checks the plan
    } catch (const Error& error) {  // NCCL M2N serves meshes of even shards along one dimension
      ASSERT_TRUE(strategy.starts_with("m2n") &&
                  std::string(error.what()).starts_with(strategy + ": t"))
          << error.what();
      ++refused;
      continue;
    }
    EXPECT_GE(plan.prediction.predicted_s, plan.prediction.lower_bound_s * (1 - 1e-9));
    ASSERT_EQ(wrong_bytes(plan), 0);
    const PlanTotals totals = plan_totals(plan);
    transfers += totals.transfers;
    copies += totals.copies;
  }
  // The pairs have to be worth the name.
  EXPECT_GT(transfers, kPairs);
  EXPECT_GT(copies, kPairs / 20);
  EXPECT_LT(refused, 2 * kPairs * scale() / std::ssize(strategies));  // not all of m2n
}

}  // namespace
}  // namespace refit
