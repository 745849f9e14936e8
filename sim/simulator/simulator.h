#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plans/plan.h"
#include "sim/cost/cost_model.h"
#include "sim/fabric/fabric.h"

namespace refit {

// Flow-level simulation of a plan: the per-rank programs that the executor replays, in continuous
// time, with rates in place of packets. It predicts the refit time and knows nothing of how the
// plan was found.
//
// Notation. Step s of rank r on channel c; b(s), e(s): when it begins and ends; seconds from the
// barrier. a = step_start, m = message_start and K = flow_rate of the lane, which is `nvlink` where
// both GPUs are in one NVLink domain, else `net`; a step that has messages of both pays the larger
// a. l = sum of the latencies of a route's links; k = copy_start.
//
// Begin. A step begins when the step before it on its channel and all that it waits for have ended:
//
//     b(s) = max of e(p) over these steps p; 0 when there are none.
//
// Packing. If sends of s need packing (plans/plan.h), one job packs them all, P bytes:
//
//     p(s) = b(s) + k + flow(P, memory of the GPU),  else  p(s) = b(s).
//
// Ready. Start-up and packing overlap:
//
//     y(s) = max(b(s) + a, p(s)).
//
// Transfer. A rendezvous of step s at the sender and step s' at the receiver:
//
//     first byte flows at  max(y(s), y(s')) + m + l,
//     last one arrives     flow(bytes, links of the route and both GPUs, at most K)  later.
//
// Start-ups occupy the lane, that is the step, and never a link: other lanes use it meanwhile.
//
// Unpacking. When all receives of s have arrived, one job unpacks those that need it, U bytes,
// in k + flow(U, memory). Copies. Messages to oneself, Q bytes together, take k + flow(Q, memory)
// from b(s), without the start-up of a lane.
//
// End. e(s) = when all its transfers (at either end), unpacking and copies have ended. Sends are
// not eager.
//
//   refit_s = max of e(s) over all steps.
//
// flow(n, resources) is the time in which n bytes pass when all that flows at the same time shares
// each resource max-min fairly (maxmin.h). Resources: each link at its achievable rate
// (link_rates); each GPU as sender and as receiver when gpu_rate > 0; each GPU's memory when
// memory_rate > 0, otherwise it is infinitely fast. Ranks that share a GPU exchange through its
// memory. A message between GPUs of several NICs flows in equal parts, each over another NIC
// (count_ways), and has arrived when all have; K is shared out as well.
//
// What is not modelled: packets, congestion control, link-level retries, the time that NCCL takes
// per chunk beyond the constants above, contention of packing with wires for memory, host-side
// work.
//
// Error. With an error e > 0 flows that end at nearly the same time end together, and rates are
// solved once for all of them (fluid.h). The result is exact for a plan in which each n of each
// flow above is multiplied by a factor of its own in [1 - e, 1 + e]. Hence, wherever more bytes
// never make anything end earlier, every time of it, the refit time included, is within the part e
// of the exact one: all n times 1 - e (1 + e) would take 1 - e (1 + e) as long, or less far off
// with start-ups. That is so on a shared link or along a relay, not always in a network: what ends
// later may have let something else pass, and what is left over for others then has no bound in e.
// On random traffic refit times differ by less than e when all flows begin at once, and by several
// e when few run at a time and their order changes (tests/bench).
//
// Cost: O(log n) per event for n pending, plus solving the rates once for each instant at which
// flows begin or end.

/// When one transfer ran. Seconds from the barrier. A local copy has from == to.
struct TimelineEntry {
  int32_t from = -1, to = -1, channel = 0, step = 0;
  int64_t bytes = 0;
  double posted = 0;  // both ends had reached it
  double start = 0;   // start-up over, the first byte flows
  double end = 0;     // the last byte has arrived
  bool operator==(const TimelineEntry&) const = default;
};

/// What a plan does on a fabric.
struct Timeline {
  double refit_s = 0;
  std::vector<double> rank_end;     // by rank: its last byte is in place
  std::vector<double> link_bytes;   // by link of the fabric
  std::vector<double> link_busy_s;  // by link: seconds in which it carried something
  int32_t bottleneck = -1;          // link of the highest bytes / rate; -1: nothing crossed a link
  double bottleneck_use = 0;        // its bytes / (rate x refit_s)
  // Split of the refit time of the rank that ends last. An instant counts as the first that
  // applies: bytes flow over wires, in or out, on any of its channels; bytes flow through its
  // memory (packing, copies); a start-up runs; it waits for others.
  double wire_s = 0, staging_s = 0, launch_s = 0, wait_s = 0;
  std::vector<TimelineEntry> entries;  // only when asked for; ordered by (start, from, to)
  int64_t events = 0;
  bool operator==(const Timeline&) const = default;
};

/// A rank that lags behind: the NVLink port and own NICs of its GPU (for whom else they serve,
/// too), its GPU as sender and receiver and its memory run at `speed` times their rate. Start-ups
/// take as long as ever.
struct Straggler {
  int32_t rank = -1;
  double speed = 1;  // above 0, at most 1
  bool operator==(const Straggler&) const = default;
};

struct SimulateOptions {
  bool entries = false;
  double error = 0;  // 0: exact; below 1
  std::vector<Straggler> stragglers = {};
};

/// Deterministic: same input, same result bits. The plan has to pass `check`. Fails when a rank has
/// no GPU of the fabric or there is no path. An Error (kWork) ends a plan that would hang, and
/// names a stuck step and what it waits for; and one that needs a link that is down (rate 0), and
/// names transfer and link.
Timeline simulate(const Plan& plan, const Fabric& fabric, const CostModel& cost,
                  const SimulateOptions& options = {});

}  // namespace refit
