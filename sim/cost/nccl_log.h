#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace refit {

enum class NcclTest : uint8_t { kSendRecv, kAllToAll, kAllGather, kBroadcast };

/// "sendrecv", "alltoall", "all_gather", "broadcast", as in the names of the programs.
const char* test_name(NcclTest test);

/// What nccl-tests printed: who took part, and a time for each size.
struct NcclLog {
  struct Row {
    int line = 0;
    int64_t bytes = 0;   // as the program counts them, see calibrate.h
    double seconds = 0;  // out of place
  };
  std::string name;  // file
  NcclTest test = NcclTest::kSendRecv;
  std::vector<std::string> hosts;  // by rank
  std::vector<Row> rows;
};

/// Reads the output of one run of one of the four programs, of any version that has a line of
/// column names. Which program it was says the log ("# Collective test starting: alltoall_perf", or
/// a command line in it), else the file's name. Lines of others in between (mpirun, NCCL's own) are
/// skipped unless they begin like a row. Fails, with file and line, on rows that do not fit the
/// columns or themselves (bandwidth against size and time), on wrong data (#wrong), on CPU times,
/// and on a log without ranks, rows or the closing average.
NcclLog parse_nccl_log(std::string_view text, const std::string& name);

}  // namespace refit
