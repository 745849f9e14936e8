#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plans/plan.h"
#include "sim/cost/cost_model.h"
#include "sim/cost/nccl_log.h"
#include "sim/fabric/fabric.h"

namespace refit {

// From measured times to a cost model. Each measurement is one equation
//
//     t - l  =  s + b r                                                                      (1)
//
// with the time t, the latency l of the path, the bytes b that the fullest port has to pass, and
// two unknowns: the start-up s = step_start + message_start and the time of a byte r = 1 / rate.
// Start-up and rate belong to the class of links (NVLink, network) whose ports take longer at
// nominal rates; where both take about the same (within 25 %), an equation speaks of neither and is
// left out.
//
// With n ranks of equally many on each host, D of them in an NVLink domain (hosts fill domains in
// order), q that share a NIC, and S the size that the log gives:
//
//     sendrecv     to the next rank               b = S;  network if D < n, else NVLink
//     alltoall     S / n to each rank             NVLink (D-1) S / n;  network q (n-D) S / n
//     all_gather   a ring through all ranks       NVLink (n-1) S / n;  network that / NICs of a
//                  host
//     broadcast    a chain through all ranks      NVLink S;            network S / NICs of a host
//
// With several NICs a GPU the network's b is divided by their number. A collective has a start-up
// of its own in each log, for it takes many hops; it says nothing of s.
//
// Fit. The squares of *relative* residuals are minimised over non-negative unknowns (nnls.h), for
// times span five orders of magnitude. What the fit rests on is chosen first: with weights that
// turn squares into absolute values (which a few wild points cannot move) the residuals are found;
// a point is an outlier when its residual is above 10 % and above four times the spread of all
// (1.4826 x the median of absolute residuals, a standard deviation if they are normal). Outliers
// are named and do not take part in the final fit.
//
// What no equation speaks of is kept from a base model, as is message_start, which a single message
// cannot tell from step_start. The rules of NCCL's channels (nccl.h) are left out of the new model:
// what they do is in the measured times.

/// One measurement, as equation (1) needs it.
struct Sample {
  std::string place;                  // "file:line"
  std::string what;                   // "sendrecv of 8 ranks, 64 MiB"
  LinkKind kind = LinkKind::kNvlink;  // kNvlink or kNic
  int32_t collective = -1;            // number of the log if it has a start-up of its own
  double bytes = 0;
  double seconds = 0;  // t - l
  double nominal = 0;  // bytes/s of a port
};

/// Equations of a log. `skipped`, when given, receives why rows were left out. Fails when the ranks
/// of the log do not fit the fabric.
std::vector<Sample> log_samples(const NcclLog& log, int32_t number, const FabricSource& fabric,
                                std::vector<std::string>* skipped = nullptr);

/// Equations of `refit-exec --json` (docs/executor.md): the steps of its ranks, with the columns
/// "channel", "step", "begin_s" and "end_s" of "step_fields", on one clock; all else is ignored. A
/// transfer counts when it is the only message of its step at both ends, is not packed, and nothing
/// else used its links meanwhile:
///
///     t = end - max of the two begins.
///
/// `plan` is the one that was run.
std::vector<Sample> exec_samples(std::string_view json, const std::string& name, const Plan& plan,
                                 const Fabric& fabric);

struct Outlier {
  Sample sample;
  double fitted = 0;  // seconds
};

/// The fit of one class of links; of one log for residuals.
struct FitQuality {
  std::string name;
  int64_t points = 0, outliers = 0;
  double rms = 0;    // of relative residuals, outliers aside
  double worst = 0;  // the largest of them, with its sign: (fitted - measured) / measured
};

struct Calibration {
  CostModel cost;
  bool nvlink_rate = false, nvlink_start = false, net_rate = false, net_start = false;  // fitted
  std::vector<FitQuality> classes, files;
  std::vector<Outlier> outliers;
};

/// Fails without samples, when a fitted rate exceeds the nominal one by more than 2 % (the wrong
/// fabric), or when too few points are left to fit.
Calibration calibrate(std::span<const Sample> samples, const CostModel& base,
                      const std::string& name);

/// The cost model file: every constant with the fit or the model that it comes from.
std::string print_calibration(const Calibration& calibration, const CostModel& base);

}  // namespace refit
