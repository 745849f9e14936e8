#include "exec/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <mutex>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "exec/host_backend.h"
#include "exec/host_replay.h"
#include "exec/verify.h"
#include "tests/exec/test_plans.h"

namespace refit {
namespace {

using testing::dense_shard;
using testing::PlanMaker;
using testing::replicate;
using testing::split;

const ReplayOptions kVerified{.iterations = 2, .verify = true, .timeout_s = 30, .progress = {}};

/// Rows on two train ranks to columns on two gen ranks; one tensor of each width.
PlanMaker rows_to_columns() {
  PlanMaker maker(4, 2);
  const Dims shape{8, 12, 4};
  for (const Dtype dtype :
       {Dtype::kFp64, Dtype::kFp32, Dtype::kBf16, Dtype::kFp8E4m3, Dtype::kFp4E2m1}) {
    maker.add_tensor(std::string(dtype_name(dtype)), shape, dtype, split(shape, 0, 0, 2),
                     split(shape, 1, 2, 2));
  }
  return maker;
}

/// Rank 0 has a tensor of `chunks` rows, rank 2 needs it, rank 1 relays it row by row through two
/// slots.
Plan relay(int32_t chunks) {
  PlanMaker maker(3, 2);
  const Dims shape{chunks, 64};
  const int32_t tensor = maker.add_tensor("relayed", shape, Dtype::kBf16, replicate(shape, 0, 1),
                                          replicate(shape, 2, 1));
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    const Box row{{chunk, 0}, {chunk + 1, 64}};
    const int32_t slot = maker.add_slot(1, tensor, row, chunk % 2 * 128, 128);
    maker.add_transfer(0, 1, 0, chunk, {{tensor, row, Place::kTrain, Place::kStaging, -1, slot}});
    maker.add_transfer(1, 2, 1, chunk, {{tensor, row, Place::kStaging, Place::kGen, slot, -1}});
    maker.add_wait(1, 1, chunk, {0, chunk});                      // because of data
    if (chunk >= 2) maker.add_wait(1, 0, chunk, {1, chunk - 2});  // because of the slot
  }
  return maker.finish();
}

TEST(Replay, RowsToColumnsInEveryWidth) {
  PlanMaker maker = rows_to_columns();
  maker.add_direct_transfers();
  const ReplayReport report = replay_on_host(maker.finish(), kVerified);
  // 384 elements of 64 + 32 + 16 + 8 + 4 bits, each needed by one gen rank.
  EXPECT_EQ(report.bytes_wire, 384 * 124 / 8);
  EXPECT_EQ(report.bytes_copied, 0);
  EXPECT_EQ(report.verified_bytes, 384 * 124 / 8);
  EXPECT_EQ(report.verified_ranks, 2);
  EXPECT_EQ(report.seconds.size(), 2U);
  EXPECT_EQ(report.ranks[3].bytes_received, 384 * 124 / 16);
  EXPECT_EQ(report.ranks[0].bytes_received, 0);
}

TEST(Replay, ColocatedRanksCopyWhatTheyHold) {
  PlanMaker maker(2, 1);
  const Dims shape{4, 6};
  maker.add_tensor("t", shape, Dtype::kFp32, split(shape, 0, 0, 2), split(shape, 1, 0, 2));
  maker.add_tensor("all", shape, Dtype::kInt8, replicate(shape, 0, 2), replicate(shape, 0, 2));
  maker.add_direct_transfers();
  const ReplayReport report = replay_on_host(maker.finish(), kVerified);
  // Of t's 24 elements a half is where it has to be; of `all` every rank has all 24.
  EXPECT_EQ(report.bytes_wire, 12 * 4);
  EXPECT_EQ(report.bytes_copied, 12 * 4 + 2 * 24);
  EXPECT_EQ(report.verified_bytes, 24 * 4 + 2 * 24);
}

TEST(Replay, RelayThroughReusedSlots) {
  const ReplayReport report = replay_on_host(relay(16), kVerified);
  EXPECT_EQ(report.bytes_wire, 2 * 16 * 128);
  EXPECT_EQ(report.ranks[1].staging_bytes, 256);
  EXPECT_EQ(report.staging_bytes, 256);
}

TEST(Replay, FusedTransposedAndSplitShards) {
  PlanMaker maker(3, 1);
  const Dims shape{6, 4};
  // Train: rank 0 holds rows 0-1 and 4-5, rank 1 rows 2-3. Gen: rank 2 holds all of it, stored
  // column by column.
  RankMap train, gen;
  const Shard first = dense_shard({{0, 0}, {2, 4}}, 3), last = dense_shard({{4, 0}, {6, 4}}, 20);
  train.shards = {{0, {first, last}}, {1, {dense_shard({{2, 0}, {4, 4}})}}};
  gen.shards = {{2, {{whole(shape), 5, {1, 7}}}}};
  maker.add_tensor("a", shape, Dtype::kBf16, train, gen);
  maker.add_tensor("b", shape, Dtype::kBf16, train, gen);
  maker.add_direct_transfers();
  Plan plan = maker.finish();
  // One gen buffer for both: b begins 40 elements further on.
  RankMap behind = gen;
  behind.shards[0].second[0].offset += 40;
  plan.maps.push_back(behind);
  plan.tensors[1].gen_map = static_cast<int32_t>(plan.maps.size()) - 1;
  plan.tensors[1].gen_buffer = plan.tensors[0].gen_buffer;
  const ReplayReport report = replay_on_host(plan, kVerified);
  EXPECT_EQ(report.verified_bytes, 2 * 24 * 2);
  // The buffer ends behind b's last element: 45 + 5 * 1 + 3 * 7 = 71, so 72 elements, 144 bytes, in
  // a block of 256.
  EXPECT_EQ(memory_use(plan, 2).buffers, 256);
}

TEST(Replay, AllToAllOf64Ranks) {
  PlanMaker maker(64, 3);
  const Dims shape{128, 192};
  maker.add_tensor("t", shape, Dtype::kBf16, split(shape, 0, 0, 64), split(shape, 1, 0, 64));
  maker.add_direct_transfers();
  const ReplayReport report = replay_on_host(maker.finish(), kVerified);
  EXPECT_EQ(report.bytes_wire + report.bytes_copied, 128 * 192 * 2);
  EXPECT_EQ(report.bytes_copied, 64 * 2 * 3 * 2);
  EXPECT_EQ(report.verified_ranks, 64);
}

TEST(Replay, HundredsOfRanksInOneProcess) {
  PlanMaker maker(512, 1);
  const Dims shape{512, 1024};
  maker.add_tensor("t", shape, Dtype::kFp8E4m3, split(shape, 0, 0, 512), split(shape, 1, 256, 4));
  maker.add_direct_transfers();
  const ReplayReport report = replay_on_host(maker.finish(), kVerified);
  EXPECT_EQ(report.bytes_wire, 512 * 1024 - 4 * 256);
  EXPECT_EQ(report.bytes_copied, 4 * 256);
  EXPECT_EQ(report.verified_ranks, 4);
}

TEST(Replay, FiftyInARow) {
  PlanMaker maker = rows_to_columns();
  maker.add_direct_transfers();
  EXPECT_EQ(replay_on_host(maker.finish(), {50, true, 30, {}}).seconds.size(), 50U);
  EXPECT_EQ(replay_on_host(relay(7), {50, true, 30, {}}).seconds.size(), 50U);
}

TEST(Replay, RankWithoutWorkTakesPart) {
  PlanMaker maker(3, 1);
  const Dims shape{4, 4};
  maker.add_tensor("t", shape, Dtype::kBf16, replicate(shape, 0, 1), replicate(shape, 2, 1));
  maker.add_direct_transfers();
  EXPECT_EQ(replay_on_host(maker.finish(), kVerified).verified_ranks, 1);
}

TEST(Replay, EmptyStepReleasesItsWaiters) {
  Plan plan = relay(3);
  // Rank 1 gets a step without messages that stands between a receive and its forward, on the
  // forward's channel.
  Program& program = plan.programs[1];
  for (Step& step : program.steps) step.id += step.channel == 1 ? 1 : 0;
  for (Step& step : plan.programs[2].steps) step.id += 1;
  for (Wait& wait : program.waits) wait.step += wait.channel == 1 ? 1 : 0;
  const int32_t messages = program.steps[2].last_message;
  const int32_t waits = static_cast<int32_t>(program.waits.size());
  program.waits.push_back({0, 0});
  program.steps.insert(program.steps.begin() + 3,
                       {0, 1, messages, messages, messages, waits, waits + 1});
  EXPECT_EQ(replay_on_host(plan, kVerified).verified_bytes, 3 * 128);
}

TEST(Replay, MissingBytesAreFound) {
  PlanMaker maker = rows_to_columns();
  maker.add_direct_transfers();
  Plan plan = maker.finish();
  // Both ends of the transfer 1 -> 3 lose their last piece, half of the fp4 tensor.
  for (const auto& [rank, peer] : {std::pair(1, 3), std::pair(3, 1)}) {
    for (Message& message : plan.programs[static_cast<size_t>(rank)].messages) {
      if (message.peer == peer) --message.last_piece;
    }
  }
  try {
    replay_on_host(plan, kVerified);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kWork);
    // Rank 3 holds columns 6-11, rank 1 had rows 4-7.
    EXPECT_NE(std::string(error.what()).find("rank 3, tensor fp4_e2m1, element [4, 6, 0]"),
              std::string::npos)
        << error.what();
  }
}

/// What binding (a world of one rank is enough) or replaying says about a plan.
std::string message_of(const Plan& plan, double timeout_s = 30) {
  try {
    replay_on_host(plan, {1, true, timeout_s, {}});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_THAT(text, ::testing::HasSubstr(part));
}

TEST(Bind, RefusesConversion) {
  PlanMaker maker(2, 1);
  const Dims shape{4, 4};
  maker.add_tensor("t", shape, Dtype::kBf16, replicate(shape, 0, 1), replicate(shape, 1, 1));
  maker.add_direct_transfers();
  Plan plan = maker.finish();
  plan.tensors[0].gen_dtype = Dtype::kFp8E4m3;
  HostWorld world(2, 30);
  Backend& backend = world.backend(1);
  try {
    const Executor executor(plan, backend, allocate_buffers(plan, backend));
    FAIL();
  } catch (const Error& error) {
    expect_parts(error.what(),
                 {"rank 1, channel 0, step 0", "tensor t", "wire dtype", "bf16", "fp8_e4m3"});
  }
}

TEST(Bind, RefusesAMissingBuffer) {
  PlanMaker maker(2, 1);
  const Dims shape{4, 4};
  maker.add_tensor("t", shape, Dtype::kBf16, replicate(shape, 0, 1), replicate(shape, 1, 1));
  maker.add_direct_transfers();
  const Plan plan = maker.finish();
  HostWorld world(2, 30);
  Executor::Buffers none;
  none.train = none.gen = {nullptr};
  EXPECT_THROW(Executor(plan, world.backend(0), none), Error);
  EXPECT_THROW(Executor(plan, world.backend(1), none), Error);
}

TEST(Bind, RefusesASlotThatIsTooSmall) {
  Plan plan = relay(2);
  plan.programs[1].slots[1].bytes = 127;
  expect_parts(message_of(plan), {"rank 1, channel 0, step 1", "slot 1", "127"});
}

TEST(Bind, RefusesABoxOutsideOfItsArea) {
  Plan plan = relay(2);
  Program& program = plan.programs[2];
  program.boxes[static_cast<size_t>(program.pieces[1].box)] = {{1, 0}, {3, 64}};
  expect_parts(message_of(plan), {"rank 2, channel 1, step 1", "tensor relayed", "[1:3, 0:64]"});
}

TEST(Bind, RefusesAWaitForAStepThatIsNotThere) {
  Plan plan = relay(2);
  plan.programs[1].waits[0].step = 9;
  expect_parts(message_of(plan), {"rank 1", "channel 0, step 9"});
}

TEST(Bind, RefusesAPeerOutsideOfTheWorld) {
  Plan plan = relay(2);
  plan.programs[0].messages[0].peer = 3;
  expect_parts(message_of(plan), {"rank 0, channel 0, step 0", "peer", "3"});
}

TEST(Bind, RefusesStepsOutOfOrder) {
  Plan plan = relay(2);
  std::swap(plan.programs[0].steps[0], plan.programs[0].steps[1]);
  expect_parts(message_of(plan), {"rank 0, channel 0, step 0", "steps by (channel, id)"});
}

TEST(Replay, WaitsInACircleAreNamed) {
  Plan plan = relay(2);
  Program& program = plan.programs[1];
  // Step 0 of channel 0 waits for step 0 of channel 1, which waits for it.
  Step& step = program.steps[0];
  step.first_wait = static_cast<int32_t>(program.waits.size());
  program.waits.push_back({1, 0});
  step.last_wait = static_cast<int32_t>(program.waits.size());
  expect_parts(message_of(plan), {"rank 1, channel 0, step 0", "wait"});
}

TEST(Replay, LostReceiveTimesOutAndNamesTheRanks) {
  Plan plan = relay(4);
  // Rank 2 leaves out its last receive: rank 1 can never end step 3 of channel 1.
  Program& program = plan.programs[2];
  program.steps.pop_back();
  expect_parts(message_of(plan, 0.2),
               {"rank 1: no progress for 0.2 s", "channel 1, step 3", "for rank 2 to receive"});
}

TEST(Replay, LostSendTimesOutAndNamesTheRanks) {
  Plan plan = relay(4);
  plan.programs[1].steps.pop_back();
  expect_parts(message_of(plan, 0.2),
               {"rank 2: no progress for 0.2 s", "channel 1, step 3", "for data from rank 1"});
}

TEST(Replay, EndsOfUnequalSizeAreNamed) {
  PlanMaker maker = rows_to_columns();
  maker.add_direct_transfers();
  Plan plan = maker.finish();
  for (Message& message : plan.programs[3].messages) {
    if (message.peer == 1) --message.last_piece;
  }
  expect_parts(message_of(plan), {"rank 3, channel 0, step 0", "rank 1 sends", "bytes"});
}

TEST(Replay, TooBigForTheMemoryIsRefusedBeforeAnythingRuns) {
  PlanMaker maker(2, 1);
  const Dims shape{int64_t{1} << 24, int64_t{1} << 24};  // 512 TiB
  maker.add_tensor("t", shape, Dtype::kBf16, replicate(shape, 0, 1), replicate(shape, 1, 1));
  maker.add_direct_transfers();
  try {
    replay_on_host(maker.finish(), kVerified);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    expect_parts(error.what(), {"memory", "needed", "available"});
  }
}

// ---------------------------------------------------------------------------------------- hooks

/// What happened on the ranks, in order. Ranks are threads.
class Journal {
 public:
  void add(int32_t rank, const std::string& what) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(std::to_string(rank) + " " + what);
  }
  std::vector<std::string> of(int32_t rank) const {
    std::vector<std::string> some;
    for (const std::string& line : lines_) {
      if (line.starts_with(std::to_string(rank) + " ")) some.push_back(line.substr(2));
    }
    return some;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

/// One rank's part of a refit of its own buffers, with hooks that write into the journal.
struct Engine {
  Executor::Buffers buffers;
  Weights weights;

  void refit(const Plan& plan, Backend& backend, Journal& journal, bool broken = false) {
    const int32_t rank = backend.rank();
    if (buffers.gen.empty()) buffers = allocate_buffers(plan, backend);
    Hooks hooks;
    hooks.before_write = [&journal, rank] { journal.add(rank, "before_write"); };
    hooks.finalize = [&, rank](std::span<const int32_t> tensors) {
      if (broken) throw std::runtime_error("no room for the fused weights");
      for (const int32_t t : tensors) journal.add(rank, plan.tensors[static_cast<size_t>(t)].name);
    };
    hooks.after_commit = [&journal, rank](int64_t version) {
      journal.add(rank, "version " + std::to_string(version));
    };
    Executor executor(plan, backend, buffers, hooks, &weights);
    executor.run();
  }
};

/// Rank 0 trains; ranks 1 and 2 each have half of `a`, rank 2 alone has `b`.
Plan one_to_two() {
  PlanMaker maker(3, 1);
  const Dims shape{4, 4};
  maker.add_tensor("a", shape, Dtype::kBf16, replicate(shape, 0, 1), split(shape, 0, 1, 2));
  maker.add_tensor("b", shape, Dtype::kBf16, replicate(shape, 0, 1), replicate(shape, 2, 1));
  maker.add_direct_transfers();
  return maker.finish();
}

TEST(Hooks, RunOnceOnReceiversInOrder) {
  const Plan plan = one_to_two();
  Journal journal;
  HostWorld world(3, 30);
  world.run([&](Backend& backend) {
    Engine engine;
    engine.refit(plan, backend, journal);
    engine.refit(plan, backend, journal);
    EXPECT_EQ(engine.weights.version, 2);
    EXPECT_FALSE(engine.weights.torn);
  });
  using Lines = std::vector<std::string>;
  EXPECT_EQ(journal.of(0), Lines{});  // receives nothing
  EXPECT_EQ(journal.of(1),
            (Lines{"before_write", "a", "version 1", "before_write", "a", "version 2"}));
  EXPECT_EQ(journal.of(2),
            (Lines{"before_write", "a", "b", "version 1", "before_write", "a", "b", "version 2"}));
}

TEST(Hooks, OneFinalizeFailsNobodyCommitsAndARetryDoes) {
  const Plan plan = one_to_two();
  Journal journal;
  std::vector<Engine> engines(3);
  const auto attempt = [&](int32_t broken) {
    HostWorld world(3, 30);
    for (Engine& engine : engines) engine.buffers = {};  // memory belongs to the world
    world.run([&](Backend& backend) {
      const auto rank = static_cast<size_t>(backend.rank());
      engines[rank].refit(plan, backend, journal, backend.rank() == broken);
    });
  };
  attempt(-1);
  try {
    attempt(2);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kWork);
    expect_parts(error.what(), {"rank 2, hook finalize, nothing is committed", "no room"});
  }
  EXPECT_EQ(engines[0].weights.version, 1);
  EXPECT_FALSE(engines[0].weights.torn);  // holds nothing that could be torn
  for (const size_t rank : {1U, 2U}) {
    EXPECT_EQ(engines[rank].weights.version, 1) << "rank " << rank;
    EXPECT_TRUE(engines[rank].weights.torn) << "rank " << rank;
  }
  attempt(-1);
  for (const Engine& engine : engines) {
    EXPECT_EQ(engine.weights.version, 2);
    EXPECT_FALSE(engine.weights.torn);
  }
}

TEST(Hooks, StepTimesAreInOrder) {
  const Plan plan = relay(4);
  HostWorld world(3, 30);
  world.run([&](Backend& backend) {
    const Executor::Buffers buffers = allocate_buffers(plan, backend);
    Executor executor(plan, backend, buffers);
    const ReplayTimes times = executor.run();
    const auto steps = executor.step_times();
    ASSERT_EQ(steps.size(), plan.programs[static_cast<size_t>(backend.rank())].steps.size());
    for (const StepTimes& step : steps) {
      EXPECT_LE(0, step.begin_s);
      EXPECT_LE(step.begin_s, step.end_s);
      EXPECT_LE(step.end_s, times.refit_s);
    }
    if (backend.rank() != 1) return;
    for (size_t chunk = 0; chunk < 4; ++chunk) {  // a forward begins when its chunk is there
      EXPECT_LE(steps[chunk].end_s, steps[4 + chunk].begin_s);
    }
  });
}

TEST(Median, OddAndEven) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(median({7}), 7);
}

}  // namespace
}  // namespace refit
