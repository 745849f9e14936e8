#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "sim/simulator/maxmin.h"

namespace refit {

// Amounts that flow in time at max-min fair rates.
//
// Clocks. All flows with one bottleneck run at the same rate, its level. So each bottleneck has a
// clock that counts what a flow that has always been there would have passed, and a flow that joins
// it when it shows `passed` ends when it shows
//
//     mark = passed + amount left.
//
// A new level changes the pace of a clock and not its marks: what an event costs depends on the
// levels that it changes and the flows that get another bottleneck, not on all the flows whose rate
// it changes. Flows that run at a cap of their own share a clock for each value of cap.
//
// Usage, in a loop over events with `now` never falling: finish() what ends at `now`, start() what
// begins, then settle(). The next end is found through the least mark of each clock and the least
// end of every block of 64 clocks: many change at a time, and a rescan of the blocks they are in
// costs less than that many moves in a heap.
//
// Batching. With an error e > 0 a flow may end once (1 - e) of its amount have passed, and has to
// once (1 + e) have. Time goes on to the first moment at which some flow has to end, and all that
// may end then do so together; rates are solved once for them. So all that happens is exact for
// amounts that differ from the given ones by at most the part e, each on its own. How far times
// differ follows from that, see simulator.h.
class Fluid {
 public:
  /// Ends this close to each other, relative to the time since 0, are one event: rounding must not
  /// split what is simultaneous.
  static constexpr double kSimultaneous = 1e-12;

  /// `error`: 0 (exact) or more, below 1.
  Fluid(const std::vector<double>& capacity, int32_t width, double error = 0);

  /// Begins to move `amount` > 0 through the resources, at most at `cap`, from the next settle on.
  /// Ids are dense, and reused after the end.
  int32_t start(double amount, std::span<const int32_t> resources, double cap);

  /// Brings rates and ends up to date after starts and finishes.
  void settle(double now);

  /// When the next flow has to end; infinite when nothing flows. As of the last settle.
  double next_end() const { return must_.least; }

  /// Removes the flows that may end at `now` and appends them to `ended`, ascending. The next call
  /// is for settle or start.
  void finish(double now, std::vector<int32_t>& ended);

  int64_t visits() const { return rates_.visits(); }

  /// What set the rate of a flow for longest: a resource, or MaxMin::kOwnCap; and for how long.
  struct Holder {
    int32_t resource = MaxMin::kOwnCap;
    double seconds = 0;
  };
  /// From now on holders are recorded.
  void record_holders() { recording_ = true; }
  /// Of a flow that has ended, until the next start.
  Holder holder(int32_t flow) const;

 private:
  struct Mark {
    double at = 0;  // on the clock
    int32_t flow = -1;
    uint32_t stay = 0;  // of the flow, to tell a mark that it has left behind
    bool operator>(const Mark& other) const { return at > other.at; }
  };
  struct Clock {
    double pace = 0, passed = 0, since = 0;  // passed: at `since`
    std::vector<Mark> must, may;  // heaps: when flows have to end, and may (if error > 0)

    double passed_at(double now) const;
    double time_of(double mark) const { return since + (mark - passed) / pace; }
    void set_pace(double now, double to);
  };

  struct Flow {
    double mark = 0;   // on its clock
    double left = 0;   // when it came there: what is left until it has to end,
    double spare = 0;  // and what of that need not pass
    int32_t clock = -1;
    uint32_t stay = 0;  // how often it has left a clock
  };
  /// By clock, the first end there; by block of clocks, and of all, the least.
  struct Ends {
    std::vector<double> clock, block;
    double least = MaxMin::kInfinity;
  };

  Flow& at(int32_t flow) { return flows_[static_cast<size_t>(flow)]; }
  void add_clocks(size_t count);
  std::vector<Mark>& may_of(Clock& clock) const { return error_ > 0 ? clock.may : clock.must; }
  Ends& may() { return error_ > 0 ? may_ : must_; }
  int32_t clock_of(int32_t flow);
  void record(double now, int32_t flow, int32_t clock);
  void leave(double now, int32_t flow);
  void join(double now, int32_t flow);
  void touch(int32_t clock);
  void refresh_touched();
  double first_end(const Clock& clock, std::vector<Mark>& heap) const;

  double error_;
  MaxMin rates_;
  std::vector<Clock> clocks_;  // by resource, then by value of cap
  std::map<double, int32_t> cap_clock_;
  std::vector<Flow> flows_;
  // Holders, while recording. By flow: when it came to its clock; by flow and place among its
  // resources, the cap last: for how long it was held there.
  bool recording_ = false;
  const size_t resources_, width_;
  std::vector<double> came_, held_;
  Ends must_, may_;  // when a flow has to end, and when one may (if error > 0)
  std::vector<uint8_t> touched_, stale_;
  std::vector<int32_t> touched_list_;
  std::vector<size_t> stale_list_;
};

}  // namespace refit
