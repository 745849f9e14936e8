#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "sim/simulator/tournament.h"

namespace refit {

// Max-min fair rates of flows that share resources, kept up to date while flows come and go. Knows
// nothing of networks.
//
// Problem. Resource r has a capacity C_r > 0; flow f crosses a set of resources and may have a cap
// of its own, K_f. Wanted are rates x_f with
//
//     sum of x_f over the flows on r  <=  C_r  for each r,      x_f <= K_f  for each f,      (1)
//
// in which no flow can gain without taking from one that has no more than it. These rates exist,
// are unique, and are known by a certificate: each flow either runs at its own cap or crosses a
// *bottleneck*: a resource that is full and on which no flow is faster (Bertsekas & Gallager, Data
// Networks, 2nd ed., section 6.5.2).
//
// Example: A = {f, g} with C = 10, B = {g, h} with C = 4. B is the tighter: g = h = 2; what g
// leaves of A is f's: f = 8.
//
// Levels. The textbook's progressive filling lifts all flows together and freezes those of each
// resource as it fills. The height at which r fills is its level v_r, infinite when it never does.
// Levels hold the whole solution,
//
//     x_f = min(K_f, min of v_r over the resources of f),                                    (2)
//
// and each is a function of the others: with c_f = min(K_f, min of v_q over the *other* resources q
// of f), what f could do if r did not exist,
//
//     v_r = the least v with  sum of min(v, c_f) over the flows on r  =  C_r,                (3)
//           infinite if  sum of c_f  <  C_r.
//
// Any solution of (3) yields the certificate: a resource with a finite level is full, and its
// fastest flows run at that level. It is their bottleneck: the resource that is the minimum in (2).
// Bottlenecks change less often than rates, so they are what is kept by flow.
//
// Algorithm. Resources whose flows have changed are dirty. The dirty resource of the lowest level
// is solved by (3); when its level moves from a to b, then a flow with c_f > min(a, b), and no
// other, may look different to its other resources: they become dirty. This ends when nothing is
// dirty. It is progressive filling, started again at the level that an event disturbs and following
// only what the event really changes: in a symmetric pattern the end of one flow touches two
// resources.
//
// Why it ends: v_r >= C_r / |r| whatever the others say, so the lowest level is right once and for
// all as soon as its resources have been visited; then the next lowest, given the first; and so on.
//
// Refill. In dense traffic one flow moves most levels, each of them several times as the news comes
// in. So when visits have looked at more than a quarter of all there is, everything is filled again
// from 0, in ascending order of levels: the resource with the lowest (C_r - what is frozen) /
// (number of flows that are not) is next, and its flows freeze; each flow is looked at once from
// each side. While that goes on happening solves start with a refill, and try to be local once in a
// while.
//
// Slack. Of a resource that is not full, C_r - sum of c_f is kept instead of visiting it: it
// becomes dirty when this runs out, so ample resources with many flows cost O(1) a change.
//
// Rounding. Levels, rates and fullness are compared with a relative tolerance of 1e-12; a level
// closer than that to the one it would replace is no change, so rounding cannot travel. Each level
// is computed from (3) afresh, so errors do not add up. Same calls, same bits.
//
// Cost. A visit of r takes O(|r| * width), with Newton's method on (3), which is concave, starting
// at the old level. The number of visits is about the number of levels that change. A refill takes
// O((flows + resources) * width), plus the queue of resources.
//
// SimGrid's LMM (src/kernel/lmm) solves the same system by filling the whole connected component
// again; it has weights and non-shared ("fatpipe") resources, which we do not need.
class MaxMin {
 public:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  static constexpr double kTolerance = 1e-12;

  /// `width`: the most resources that a flow may cross. `patience`: the part of all flows and
  /// resources that visits may look at before everything is filled again; the solution is the same.
  MaxMin(std::vector<double> capacity, int32_t width, double patience = kPatience);
  static constexpr double kPatience = 1.5;

  /// `resources` are distinct; with none, the flow runs at its cap. Ids are dense: that of a
  /// removed flow is given out again. The rate is 0 until the next solve.
  int32_t add_flow(std::span<const int32_t> resources, double cap = kInfinity);
  void remove_flow(int32_t flow);

  /// Brings all rates up to date. Returns the flows whose bottleneck has changed, new ones
  /// included; valid until the next call. Other flows follow the level of theirs.
  std::span<const int32_t> solve();
  /// The resources whose level has changed in the last solve.
  std::span<const int32_t> moved() const { return moved_list_; }

  /// The resource at whose level the flow runs, or kOwnCap, or, before it is solved, kUnknown.
  int32_t bottleneck(int32_t flow) const { return bottleneck_[static_cast<size_t>(flow)]; }
  static constexpr int32_t kOwnCap = -1, kUnknown = -2;

  double rate(int32_t flow) const;
  /// As given, then padding up to the width; of a removed flow, until its id is given out again.
  std::span<const int32_t> resources_of(int32_t flow) const;
  double level(int32_t resource) const { return level_[static_cast<size_t>(resource)]; }
  /// Ids are below this.
  int32_t flow_bound() const { return static_cast<int32_t>(cap_.size()); }
  /// How often (3) has been solved.
  int64_t visits() const { return visits_; }

 private:
  /// The flows on a resource, with all that a visit asks of them side by side: caps, and width - 1
  /// other resources each.
  struct Members {
    std::vector<int32_t> flow, others;
    std::vector<double> cap;
  };

  std::span<const int32_t> others_of(const Members& members, size_t i) const {
    return {members.others.data() + i * (width_ - 1), width_ - 1};
  }
  double limit_of(const Members& members, size_t i) const;
  void mark(int32_t resource);
  double solve_level(int32_t resource);
  void visit(int32_t resource);
  void assign(int32_t flow, int32_t bottleneck);
  void find_bottleneck(int32_t flow);
  bool solve_locally();
  void refill();
  size_t freeze_capped(int32_t resource, double level);
  void freeze(int32_t resource, double level);
  template <typename Count>
  void freeze_flows(int32_t resource, double level, Count count);
  void set_level(int32_t resource, double level);

  size_t width_;
  double patience_;
  // By resource; one more stands at the end, never full, to pad the lists of flows to equal width.
  std::vector<double> capacity_, level_, slack_;
  std::vector<Members> members_;
  std::vector<uint8_t> dirty_, moved_;
  // By flow, and by flow and place in its list: the resource, and where the flow stands in that
  // resource's list.
  std::vector<double> cap_;
  std::vector<int32_t> bottleneck_;
  std::vector<uint8_t> live_, changing_;
  std::vector<int32_t> crossing_, position_;
  std::vector<int32_t> free_, fresh_;

  std::vector<std::pair<double, int32_t>> queue_;  // heap of the dirty, lowest level first
  std::vector<double> limit_;                      // c_f of the resource being visited
  std::vector<int32_t> moved_list_, changed_;
  int64_t visits_ = 0;

  int64_t entries_ = 0;   // flows times the resources that each crosses
  bool crowded_ = false;  // the last attempt to solve locally went too far
  int32_t refills_ = 0;   // since then

  /// A resource while everything is filled again.
  struct Filling {
    double frozen = 0;  // sum of the rates that are
    double last = 0;    // the last of them, and so the largest
    int32_t open = 0;   // flows that are not frozen
    bool full = false;
    bool capped = false;  // some flow on it has a cap of its own; kept from one refill to the next
  };
  double lift_of(size_t resource) const {
    const Filling& filling = filling_[resource];
    return (capacity_[resource] - filling.frozen) / filling.open;
  }
  std::vector<Filling> filling_;
  std::vector<int32_t> in_use_;         // resources with flows
  Tournament turns_;                    // of those
  std::vector<int64_t> frozen_by_cap_;  // by flow: the refill in which its own cap froze it
  int64_t refill_count_ = 0;
};

}  // namespace refit
