#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <string>

#include "sim/cost/nccl_log.h"

namespace refit {

/// A log as nccl-tests prints it, of made-up times.
struct NcclText {
  NcclTest test = NcclTest::kSendRecv;
  int32_t hosts = 1, per_host = 8;
  int64_t least = 1024, most = int64_t{1} << 30;  // sizes, in powers of 4
  std::function<double(int64_t, int)> seconds;    // of a size, and of the row's number

  std::string write() const {
    const int32_t ranks = hosts * per_host;
    std::string text = fmt::format(
        "# Collective test starting: {}_perf\n"
        "# nThread 1 nGpus 1 minBytes {} maxBytes {} step: 4(factor) warmup iters: 5 iters: 20 agg "
        "iters: 1 validation: 1 graph: 0\n#\n# Using devices\n",
        test_name(test), least, most);
    for (int32_t rank = 0; rank < ranks; ++rank) {
      text += fmt::format(
          "#  Rank {:2} Group  0 Pid {:6} on     node{} device {:2} [0x{:02x}] NVIDIA H100 80GB "
          "HBM3\n",
          rank, 4000 + rank, rank / per_host, rank % per_host, 16 * rank);
    }
    text +=
        "NCCL version 2.27.3+cuda12.9\n#\n"
        "#                                                              out-of-place             "
        "          in-place          \n"
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     "
        "time   algbw   busbw #wrong\n"
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            "
        "(us)  (GB/s)  (GB/s)       \n";
    int row = 0;
    for (int64_t size = least; size <= most; size *= 4, ++row) {
      const double us = seconds(size, row) * 1e6;
      const double algbw = static_cast<double>(size) / us * 1e-3;
      text += fmt::format(
          "{:12}  {:12}     float    none      -1  {:7.2f}  {:6.2f}  {:6.2f}      0  {:7.2f}  "
          "{:6.2f}  {:6.2f}    N/A\n",
          size, size / 4, us, algbw, algbw, us, algbw, algbw);
    }
    text += "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 101.123 \n#\n";
    return text;
  }
};

}  // namespace refit
