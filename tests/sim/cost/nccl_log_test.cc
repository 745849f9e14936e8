#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/refused.h"
#include "tests/sim/cost/nccl_text.h"

namespace refit {
namespace {

NcclText two_hosts() {
  return {.test = NcclTest::kAllToAll,
          .hosts = 2,
          .per_host = 2,
          .least = 1024,
          .most = 65536,
          .seconds = [](int64_t size, int) { return 20e-6 + static_cast<double>(size) / 1e9; }};
}

TEST(NcclLog, RanksAndRows) {
  const NcclLog log = parse_nccl_log(two_hosts().write(), "a.log");
  EXPECT_EQ(log.test, NcclTest::kAllToAll);
  EXPECT_EQ(log.hosts, (std::vector<std::string>{"node0", "node0", "node1", "node1"}));
  ASSERT_EQ(log.rows.size(), 4u);  // 1, 4, 16, 64 KiB
  EXPECT_EQ(log.rows[1].bytes, 4096);
  EXPECT_NEAR(log.rows[1].seconds, 24.1e-6, 0.01e-6);  // 20 us + 4.096 us, two decimals
  EXPECT_EQ(log.rows[0].line, 14);                     // after 4 lines, 4 ranks, 5 lines
}

// Versions before 2022 had neither redop nor Group, and "error" for "#wrong"; the test is named on
// the command line only.
TEST(NcclLog, OldVersions) {
  const NcclLog log = parse_nccl_log(
      "mpirun -np 2 ./build/broadcast_perf -b 8M -e 16M -f 2\n"
      "# nThread 1 nGpus 1 minBytes 8388608 maxBytes 16777216 step: 2(factor) warmup iters: 5\n"
      "#   Rank  0 Pid  14926 on gpu-1 device  0 [0x00] Tesla V100-PCIE-16GB\n"
      "#   Rank  1 Pid   9210 on gpu-5 device  0 [0x00] Tesla V100-PCIE-16GB\n"
      "gpu-1:14926:14926 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]\n"
      "#       size         count    type    root     time   algbw   busbw  error     time   algbw"
      "   busbw  error\n"
      "     8388608       2097152   float       0   1000.0    8.39    8.39  0e+00   1000.0    8.39 "
      " "
      "  8.39  0e+00\n"
      "    16777216       4194304   float       0   2000.0    8.39    8.39  0e+00   1000.0   16.78 "
      " "
      " 16.78  0e+00\n"
      "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 8.39\n",
      "x.log");
  EXPECT_EQ(log.test, NcclTest::kBroadcast);
  ASSERT_EQ(log.rows.size(), 2u);
  EXPECT_DOUBLE_EQ(log.rows[1].seconds, 2e-3);
}

TEST(NcclLog, TheFileMayNameTheTest) {
  std::string text = two_hosts().write();
  text.erase(0, text.find('\n') + 1);
  EXPECT_EQ(parse_nccl_log(text, "logs/all_gather-16.txt").test, NcclTest::kAllGather);
}

struct Broken {
  const char* name;
  const char* old_text;
  const char* new_text;
  const char* message;
};

class BrokenLog : public ::testing::TestWithParam<Broken> {};

TEST_P(BrokenLog, IsRefused) {
  const std::string text =
      with_change(two_hosts().write(), GetParam().old_text, GetParam().new_text);
  expect_refused([&] { parse_nccl_log(text, "x.log"); }, {"x.log", GetParam().message});
}

INSTANTIATE_TEST_SUITE_P(
    NcclLog, BrokenLog,
    ::testing::Values(
        Broken{"OtherTest", "alltoall_perf", "all_reduce_perf", "x.log:1: found all_reduce"},
        Broken{"NoTest", "alltoall_perf", "", "no name of a test"},
        Broken{"RankMissing", "#  Rank  1 ", "#  Rank  7 ", "x.log:6: found rank 7"},
        Broken{"RankNotANumber", "#  Rank  1 ", "#  Rank  x ", "x.log:6"},
        Broken{"NoHost", " on     node1 device", " of     node1 device", "no host"},
        Broken{"NoColumns", "#       size ", "#      sizes ", "x.log:14: found a row"},
        Broken{"NoTime", "     time   algbw   busbw #wrong     time",
               "     tame   algbw   busbw #wrong     tame", "no column 'time'"},
        Broken{"TimeOfTheCpu", "    root     time", "    root  cputime", "cputime"},
        Broken{"ColumnTooMany", "  1024 ", "  1024 1 ", "x.log:14: found 14 columns, expected 13"},
        Broken{"TimeNotANumber", "  21.02 ", "  21.0x ", "x.log:14"},
        Broken{"TimeNegative", "  21.02 ", " -21.02 ", "x.log:14"},
        Broken{"TimeZero", "  21.02 ", "   0.00 ", "no time"},
        Broken{"TimeInfinite", "  21.02 ", "    inf ", "x.log:14"},
        Broken{"TimeAgainstBandwidth", "  21.02 ", "  41.02 ", "x.log:14: found algbw 0.05"},
        Broken{"WrongData", "      0 ", "      3 ", "3 wrong values"},
        Broken{"OutOfBounds", "0 OK", "7 FAILED", "within bounds"},
        Broken{"Truncated", "# Avg bus", "# A", "complete log"}),
    [](const auto& broken) { return broken.param.name; });

TEST(NcclLog, WithoutRowsOrRanks) {
  EXPECT_THROW(parse_nccl_log("", "sendrecv.log"), Error);
  NcclText text = two_hosts();
  text.least = 65537;
  text.most = 1;
  EXPECT_THROW(parse_nccl_log(text.write(), "x.log"), Error);
}

}  // namespace
}  // namespace refit
