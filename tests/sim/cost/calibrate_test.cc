#include "sim/cost/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.h"
#include "sim/cost/nnls.h"
#include "tests/refused.h"
#include "tests/sim/cost/nccl_text.h"

namespace refit {
namespace {

using ::testing::HasSubstr;

// What the logs below are made from. A DGX H100 has 450 GB/s of NVLink and 50 GB/s a NIC; latencies
// of a path are 0.6 us and 2 us.
constexpr double kNvlinkRate = 360e9, kNetRate = 48e9;
constexpr double kNvlinkStart = 6e-6, kNetStart = 25e-6, kRingStart = 40e-6;

/// Time of a test by the equations of calibrate.h, worked out for 8 ranks on one host and 16 on
/// two.
double true_seconds(NcclTest test, int32_t hosts, int64_t size) {
  const auto s = static_cast<double>(size);
  const bool net = hosts == 2;
  const double start = net ? 2e-6 + kNetStart : 0.6e-6 + kNvlinkStart;
  switch (test) {
    case NcclTest::kSendRecv:
      return start + (net ? s / kNetRate : s / kNvlinkRate);
    case NcclTest::kAllToAll:  // 8 of 16 peers are on the other host, 7 of 8 on one's own
      return start + (net ? s * 8 / 16 / kNetRate : s * 7 / 8 / kNvlinkRate);
    case NcclTest::kAllGather:
      return 0.6e-6 + kRingStart + s * 7 / 8 / kNvlinkRate;
    case NcclTest::kBroadcast:
      return 0.6e-6 + kRingStart + s / kNvlinkRate;
  }
  return 0;
}

struct Run {
  NcclTest test;
  int32_t hosts;
};

const std::vector<Run> kAllRuns = {{NcclTest::kSendRecv, 1},  {NcclTest::kAllToAll, 1},
                                   {NcclTest::kAllGather, 1}, {NcclTest::kBroadcast, 1},
                                   {NcclTest::kSendRecv, 2},  {NcclTest::kAllToAll, 2}};

/// Samples of logs of `runs`, each time multiplied by `factor` (log, row).
std::vector<Sample> sample(const std::vector<Run>& runs,
                           const std::function<double(int32_t, int)>& factor) {
  const FabricSource fabric = load_fabric_source("dgx-h100");
  std::vector<Sample> samples;
  for (int32_t i = 0; i < static_cast<int32_t>(runs.size()); ++i) {
    const Run& one = runs[static_cast<size_t>(i)];
    const NcclText text{
        .test = one.test, .hosts = one.hosts, .per_host = 8, .seconds = [&](int64_t size, int row) {
          return true_seconds(one.test, one.hosts, size) * factor(i, row);
        }};
    const NcclLog log = parse_nccl_log(text.write(), fmt::format("{}.log", i));
    for (Sample& s : log_samples(log, i, fabric)) samples.push_back(std::move(s));
  }
  return samples;
}

CostModel base() { return parse_cost(load_cost_source("nccl-h100")); }

void expect_true(const Calibration& result, double tolerance) {
  const CostModel& cost = result.cost;
  EXPECT_NEAR(cost.nvlink.efficiency * 450e9 / kNvlinkRate, 1, tolerance);
  EXPECT_NEAR(cost.net.efficiency * 50e9 / kNetRate, 1, tolerance);
  EXPECT_NEAR((cost.nvlink.step_start + cost.nvlink.message_start) / kNvlinkStart, 1,
              2 * tolerance);
  EXPECT_NEAR((cost.net.step_start + cost.net.message_start) / kNetStart, 1, 2 * tolerance);
}

TEST(Nnls, WithoutBoundsItIsLeastSquares) {
  // x + y = 3, x = 1, y = 2.
  const std::vector<double> b = {3, 1, 2};
  const std::vector<double> x = solve_nnls({{1, 1}, {1, 0}, {0, 1}}, b);
  EXPECT_NEAR(x[0], 1, 1e-12);
  EXPECT_NEAR(x[1], 2, 1e-12);
}

TEST(Nnls, WhatWouldBeNegativeIsZero) {
  // x = 1, x + y = 0 has (1, -1); with y = 0 the best x is 1/2.
  const std::vector<double> b = {1, 0};
  const std::vector<double> x = solve_nnls({{1, 0}, {1, 1}}, b);
  EXPECT_NEAR(x[0], 0.5, 1e-12);
  EXPECT_EQ(x[1], 0);
}

TEST(Nnls, RandomSystemsSatisfyTheConditions) {
  // Karush-Kuhn-Tucker: the gradient is 0 where x > 0 and not positive where x = 0.
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> draw(-1, 1);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<std::vector<double>> rows(12, std::vector<double>(5));
    std::vector<double> b(12);
    for (size_t r = 0; r < rows.size(); ++r) {
      for (double& value : rows[r]) value = draw(random);
      b[r] = draw(random);
    }
    const std::vector<double> x = solve_nnls(rows, b);
    for (size_t c = 0; c < 5; ++c) {
      double gradient = 0;
      for (size_t r = 0; r < rows.size(); ++r) {
        double rest = b[r];
        for (size_t k = 0; k < 5; ++k) rest -= rows[r][k] * x[k];
        gradient += rows[r][c] * rest;
      }
      EXPECT_GE(x[c], 0);
      EXPECT_LE(gradient, 1e-9);
      EXPECT_NEAR(x[c] > 0 ? gradient : 0, 0, 1e-9);
    }
  }
}

TEST(Calibrate, KnownConstantsComeBack) {
  const Calibration result =
      calibrate(sample(kAllRuns, [](int32_t, int) { return 1; }), base(), "mine");
  expect_true(result, 0.002);  // times have two decimals
  EXPECT_TRUE(result.outliers.empty());
  EXPECT_TRUE(result.nvlink_rate && result.nvlink_start && result.net_rate && result.net_start);
  EXPECT_EQ(result.cost.name, "mine");
  EXPECT_EQ(result.cost.memory_rate, base().memory_rate);
  ASSERT_EQ(result.files.size(), 6u);
  for (const FitQuality& file : result.files) EXPECT_LT(file.rms, 0.002);
}

TEST(Calibrate, NoiseAveragesOut) {
  std::mt19937_64 random(2);
  std::normal_distribution<double> noise(1, 0.03);
  const Calibration result =
      calibrate(sample(kAllRuns, [&](int32_t, int) { return noise(random); }), base(), "mine");
  expect_true(result, 0.03);
  EXPECT_NEAR(result.classes[0].rms, 0.03, 0.015);
}

TEST(Calibrate, OutliersAreNamedAndDoNotCount) {
  // Row 3 (64 KiB) of log 0 and row 8 (64 MiB) of log 4 took five times as long, row 9 of log 5 a
  // fifth. Rows begin in line 18 with 8 ranks, in line 26 with 16.
  const Calibration result = calibrate(sample(kAllRuns,
                                              [](int32_t log, int row) {
                                                if (log == 0 && row == 3) return 5.0;
                                                if (log == 4 && row == 8) return 5.0;
                                                if (log == 5 && row == 9) return 0.2;
                                                return 1.0;
                                              }),
                                       base(), "mine");
  expect_true(result, 0.002);
  std::vector<std::string> places;
  for (const Outlier& outlier : result.outliers) places.push_back(outlier.sample.place);
  EXPECT_THAT(places, ::testing::ElementsAre("0.log:21", "4.log:34", "5.log:35"));
  EXPECT_EQ(result.outliers[0].sample.what, "sendrecv of 8 ranks, 65.5 kB");
  EXPECT_EQ(result.files[0].outliers, 1);
}

TEST(Calibrate, WhatNobodyMeasuredIsKept) {
  const Calibration result = calibrate(
      sample({{NcclTest::kAllGather, 1}}, [](int32_t, int) { return 1; }), base(), "mine");
  EXPECT_NEAR(result.cost.nvlink.efficiency * 450e9 / kNvlinkRate, 1, 0.002);
  EXPECT_EQ(result.cost.nvlink.step_start, base().nvlink.step_start);
  EXPECT_EQ(result.cost.net.efficiency, base().net.efficiency);
  EXPECT_FALSE(result.nvlink_start || result.net_rate || result.net_start);
}

TEST(Calibrate, TheFileReadsBack) {
  const Calibration result =
      calibrate(sample(kAllRuns, [](int32_t, int) { return 1; }), base(), "mine");
  const std::string text = print_calibration(result, base());
  const CostModel read = parse_cost({text, "mine.yaml"});
  EXPECT_EQ(read.name, "mine");
  EXPECT_NEAR(read.nvlink.efficiency, result.cost.nvlink.efficiency, 1e-6);
  EXPECT_NEAR(read.net.step_start, result.cost.net.step_start, 1e-10);
  EXPECT_NEAR(read.net.message_start, result.cost.net.message_start, 1e-10);
  EXPECT_NEAR(read.memory_rate / result.cost.memory_rate, 1, 1e-6);
  EXPECT_EQ(read.nccl.channels, 0);  // their effect is in the measurements
  EXPECT_THAT(text, HasSubstr("kept from nccl-h100"));
  EXPECT_THAT(text, HasSubstr("fit of "));
  EXPECT_THAT(text, HasSubstr("# 0.log: 11 points, 0 outliers"));
}

TEST(Calibrate, SmallStartUpsLeaveNothingForTheStep) {
  // The measured start-up is below the base's message_start of 1 us.
  const Calibration result =
      calibrate(sample({{NcclTest::kSendRecv, 2}},
                       [](int32_t, int row) {
                         const double size = 1024 * std::pow(4, row);
                         return (2.5e-6 + size / kNetRate) /
                                true_seconds(NcclTest::kSendRecv, 2, static_cast<int64_t>(size));
                       }),
                base(), "mine");
  EXPECT_NEAR(result.cost.net.message_start, 0.5e-6, 0.02e-6);
  EXPECT_EQ(result.cost.net.step_start, 0);
}

TEST(Calibrate, AnAmbiguousLogTellsNothing) {
  // A ring through two hosts: 15/16 S at 450 GB/s or at 8 x 50 GB/s.
  const NcclText text{
      .test = NcclTest::kAllGather, .hosts = 2, .per_host = 8, .seconds = [](int64_t size, int) {
        return 1e-4 + static_cast<double>(size) / 3e11;
      }};
  std::vector<std::string> skipped;
  EXPECT_TRUE(log_samples(parse_nccl_log(text.write(), "ring.log"), 0,
                          load_fabric_source("dgx-h100"), &skipped)
                  .empty());
  ASSERT_EQ(skipped.size(), 1u);
  EXPECT_THAT(skipped[0], HasSubstr("ring.log"));
  EXPECT_THROW(calibrate({}, base(), "mine"), Error);
}

TEST(Calibrate, FabricsThatDoNotFitAreRefused) {
  const FabricSource h100 = load_fabric_source("dgx-h100");
  const auto message = [&](const NcclText& text) {
    return error_of([&] {
      const std::vector<Sample> samples =
          log_samples(parse_nccl_log(text.write(), "x.log"), 0, h100);
      calibrate(samples, base(), "mine");
    });
  };
  NcclText text{
      .seconds = [](int64_t size, int) { return 1e-5 + static_cast<double>(size) / 4e11; }};
  EXPECT_EQ(message(text), "");
  text.per_host = 9;
  EXPECT_THAT(message(text), HasSubstr("x.log: found 9 ranks on a host"));
  text.per_host = 8;
  text.seconds = [](int64_t size, int) { return 1e-5 + static_cast<double>(size) / 9e11; };
  EXPECT_THAT(message(text), HasSubstr("900 GB/s, expected at most the fabric's nominal 450 GB/s"));
  text.seconds = [](int64_t, int) { return 1e-4; };
  EXPECT_THAT(message(text), HasSubstr("times that do not grow"));
  text.seconds = [](int64_t size, int) { return 1e-5 + static_cast<double>(size) / 4e11; };
  text.most = 4096;
  EXPECT_THAT(message(text), HasSubstr("found 2 points"));
}

TEST(Calibrate, HostsInDisorderAreRefused) {
  NcclText text{.hosts = 2, .per_host = 2, .seconds = [](int64_t, int) { return 1e-3; }};
  const auto parse = [&](const std::string& from, const std::string& to) {
    std::string log = text.write();
    log.replace(log.find(from), from.size(), to);
    return log_samples(parse_nccl_log(log, "x.log"), 0, load_fabric_source("dgx-h100"));
  };
  EXPECT_THROW(parse("node1 device  1", "node0 device  1"), Error);  // 3 and 1 ranks
  EXPECT_THROW(parse("node0 device  1", "node1 device  1"), Error);
}

/// Two ranks on two nodes and one more beside the first: 0 to 8 by network, 0 to 1 by NVLink.
Plan exec_plan() {
  Plan plan;
  plan.channels.resize(2);
  plan.ranks.resize(3);
  for (const auto& [rank, gpu] : {std::pair(0, 0), {1, 1}, {2, 8}})
    plan.ranks[static_cast<size_t>(rank)].gpu = gpu;
  PlanTensor tensor{.name = "w",
                    .shape = Dims{1 << 30},
                    .train_dtype = Dtype::kUint8,
                    .gen_dtype = Dtype::kUint8,
                    .train_map = 0,
                    .gen_map = 0};
  plan.tensors.push_back(tensor);
  plan.maps.resize(1);
  plan.programs.resize(3);
  for (int32_t rank = 0; rank < 3; ++rank)
    plan.maps[0].shards.push_back({rank, {{whole(tensor.shape), 0, Dims{1}}}});
  const auto message = [&](int32_t rank, int32_t peer, int32_t channel, int32_t id, int64_t bytes,
                           bool sends) {
    Program& program = plan.programs[static_cast<size_t>(rank)];
    const auto at = static_cast<int32_t>(program.messages.size());
    program.boxes.push_back({Dims{0}, Dims{bytes}});
    program.pieces.push_back(
        {.tensor = 0, .box = at, .area = 0, .place = Place::kTrain, .wire = Dtype::kUint8});
    program.messages.push_back({.peer = peer, .first_piece = at, .last_piece = at + 1});
    program.steps.push_back({.id = id,
                             .channel = channel,
                             .first_send = at,
                             .first_recv = sends ? at + 1 : at,
                             .last_message = at + 1,
                             .first_wait = 0,
                             .last_wait = 0});
  };
  for (int32_t step = 0; step < 6; ++step) {
    const int64_t bytes = int64_t{1} << (10 + 4 * step);
    message(0, 1, 0, step, bytes, true);
    message(1, 0, 0, step, bytes, false);
  }
  for (int32_t step = 0; step < 6; ++step) {
    const int64_t bytes = int64_t{1} << (10 + 4 * step);
    message(0, 2, 1, step, bytes, true);
    message(2, 0, 1, step, bytes, false);
  }
  return plan;
}

/// What refit-exec reports: the steps of each rank.
struct StepTime {
  int32_t rank, channel, step;
  double begin_s, end_s;
};

std::string report(const std::vector<StepTime>& times) {
  std::string json =
      "{\"context\": {\"backend\": \"mpi\"},\n\"step_fields\": [\"channel\", \"step\", "
      "\"begin_s\", "
      "\"end_s\", \"sends\"],\n\"ranks\": [";
  for (int32_t rank = 0; rank < 3; ++rank) {
    json +=
        fmt::format("{}{{\"rank\": {}, \"seconds\": 1, \"steps\": [", rank > 0 ? "," : "", rank);
    const char* comma = "";
    for (const StepTime& time : times) {
      if (time.rank != rank) continue;
      json += fmt::format("{}\n[{}, {}, {}, {}, 1]", comma, time.channel, time.step, time.begin_s,
                          time.end_s);
      comma = ",";
    }
    json += "]}";
  }
  return json + "]}";
}

TEST(Calibrate, StepsOfARefit) {
  // Both ends begin apart; the later one counts. NVLink and NIC do not disturb each other.
  std::vector<StepTime> times;
  double now = 0;
  for (int32_t step = 0; step < 6; ++step, now += 1) {
    const auto size = static_cast<double>(int64_t{1} << (10 + 4 * step));
    const double nvlink = 0.6e-6 + kNvlinkStart + size / kNvlinkRate;
    const double net = 2e-6 + kNetStart + size / kNetRate;
    times.push_back({0, 0, step, now, now + 1e-3 + nvlink});
    times.push_back({1, 0, step, now + 1e-3, now + 1e-3 + nvlink});
    times.push_back({0, 1, step, now + 2e-3, now + 2e-3 + net});
    times.push_back({2, 1, step, now, now + 2e-3 + net});
  }
  const std::vector<Sample> samples = exec_samples(report(times), "run.json", exec_plan(),
                                                   make_fabric(load_fabric_source("dgx-h100"), 2));
  EXPECT_EQ(samples.size(), 12u);
  expect_true(calibrate(samples, base(), "mine"), 1e-6);
}

TEST(Calibrate, TransfersThatShareALinkDoNotCount) {
  // Steps 0 and 1 of channel 0 overlap on the NVLink port of rank 0; step 2 is alone.
  const std::vector<Sample> samples =
      exec_samples(report({{0, 0, 0, 0, 2},
                           {1, 0, 0, 0, 2},
                           {0, 0, 1, 1, 3},
                           {1, 0, 1, 1, 3},
                           {0, 0, 2, 3, 4},
                           {1, 0, 2, 3.5, 4}}),
                   "run.json", exec_plan(), make_fabric(load_fabric_source("dgx-h100"), 2));
  ASSERT_EQ(samples.size(), 1u);
  EXPECT_EQ(samples[0].place, "run.json:6");  // the third step of rank 0, which begins in line 3
  EXPECT_DOUBLE_EQ(samples[0].seconds, 0.5 - 0.6e-6);
  EXPECT_EQ(samples[0].bytes, 1 << 18);
}

TEST(Calibrate, BadStepsAreRefused) {
  const Plan plan = exec_plan();
  const Fabric fabric = make_fabric(load_fabric_source("dgx-h100"), 2);
  const std::string fields =
      R"({"step_fields": ["channel", "step", "begin_s", "end_s"], "ranks": )";
  for (const auto& [json, message] : std::vector<std::pair<std::string, std::string>>{
           {R"({"ranks": []})", "step_fields"},
           {R"({"step_fields": ["channel", "step", "begin_s"], "ranks": []})", "end_s"},
           {fields + "[]}", "no transfer"},
           {fields + R"([{"rank": 3, "steps": []}]})", "rank"},
           {fields + R"([{"rank": 0, "steps": [[0, 9, 0, 1]]}]})", "step 9"},
           {fields + R"([{"rank": 0, "steps": [[0, 0, 2, 1]]}]})", "before"},
           {fields + R"([{"rank": 0, "steps": [[0, 0, 2]]}]})", "found 3 values"},
           {fields + R"([{"rank": 0, "steps": [[0, 0, 0, 1], [0, 0, 0, 1]]}]})", "already there"},
           {R"({"step_fields": [)", "run.json"}}) {
    SCOPED_TRACE(json);
    expect_refused([&, &text = json] { exec_samples(text, "run.json", plan, fabric); },
                   {"run.json", message});
  }
}

}  // namespace
}  // namespace refit
