#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/flow/hop_graph.h"

namespace refit {

// The best time of a multicast, whatever its routes: a linear program, its dual, and how both are
// solved. Bytes, seconds, bytes/s.
//
// Program. Class b has w_b bytes, held by the GPUs S_b and needed by the GPUs D_b. A *tree* brings
// them from S_b to all of D_b: hops from GPU to GPU, each GPU on it is entered once, and any GPU
// may relay. Switches do not copy, so that a link carries a tree's bytes once for each hop over it:
// m(t, e) times. With x_bt bytes of class b on tree t,
//
//     min T    with    sum_t x_bt >= w_b  for every b,    sum_bt m(t, e) x_bt <= T c_e  for every
//     link e,    x >= 0.
//
// Any schedule is such an x, with its loads over its time; so no schedule takes less than T.
//
// Dual. Give every link a price l_e >= 0 (seconds a byte). With L_b(l) the price of the cheapest
// tree,
//
//     T >= sum_b w_b L_b(l) / sum_e c_e l_e                                                   (1)
//
// for any prices: the price bound. Prices that make it largest make it equal to T. A cut is the
// special case of l_e = 1 on the links of the cut and 0 elsewhere. Scaled so that
// sum_e c_e l_e = 1, the bound is sum_b w_b L_b, and c_e l_e is the *share* of link e: a link that
// is 1 % faster shortens the bound by that part of 1 %.
//
// Tree oracle. Both need cheapest trees. Prices separate: a hop pays at its sender's port, at its
// receiver's port, and between switches (hop_graph.h). So an NVLink domain is entered where its
// entry and the fan-out from there are cheapest, a GPU receives from the cheapest port that has the
// data, and a relay is worth its own entry if enough hops leave from it (cheapest_tree). What (1)
// needs is an under-estimate of L_b that is *proven*, whatever the prices (tree_bound.h).
//
// Prices by multiplicative weights (Plotkin, Shmoys & Tardos 1995; Garg & Konemann 1998; Blink,
// MLSys 2020, packs trees like this): l_e = exp(k load_e / T) / c_e. Each class in turn moves bytes
// from its dearest tree to the cheapest one, by as much as levels the two; then k grows. At the end
// loads are level where they bind, x is a fractional routing with T a bit above the optimum, and
// the prices give a bound a bit below it.
//
// Symmetry. What is equal under a symmetry of the problem may have equal prices, since (1) is
// concave in l: prices are also tried averaged over links that colour refinement cannot tell apart.

/// Bytes that some GPUs hold and others need. Ascending; needers that hold them are not counted.
struct Multicast {
  std::vector<int32_t> holders, needers;
  double bytes = 0;
};

/// Part of a class on one tree.
struct TreeShare {
  int32_t item = -1;
  double bytes = 0;
  std::vector<PortHop> hops;  // parents before children
};

/// A fractional routing, and prices that prove how good it is.
struct FluidRouting {
  double seconds = 0;  // load of the fullest link
  double bound = 0;    // (1) with `prices`, rounded down
  std::vector<TreeShare> shares;
  std::vector<double> loads;   // by link, bytes
  std::vector<double> prices;  // by link, with sum c_e l_e = 1; empty when bound is 0
};

struct FluidOptions {
  double gap = 1e-3;          // ends when seconds / bound - 1 is at most that,
  double at_least = 0;        // or seconds / at_least - 1: a bound that is known already
  int64_t work = 60'000'000;  // or after so many hops of trees looked at
};

/// Solves the program to the gap, as far as the work allows. Deterministic. `seconds` is infinite
/// when some needer cannot be reached.
FluidRouting route_fluid(const HopGraph& graph, std::span<const Multicast> items,
                         const FluidOptions& options = {});

/// (1), rounded down; 0 when no link has a price. O(sum over classes of the GPUs in the domains
/// that they touch).
double price_bound(const HopGraph& graph, std::span<const Multicast> items,
                   std::span<const double> prices);

}  // namespace refit
