#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "sim/flow/multicast.h"
#include "sim/flow/tree.h"

namespace refit {

/// Under-estimates of the price of the cheapest tree, proven for any prices.
///
/// Take any tree from S to D. Let each GPU u on it that is in neither (a *relay*) share out e_u, an
/// under-estimate of what the hop into it pays, over the hops that leave it. They are at most |D|,
/// for each leads to a needer of its own; so a hop out of u may be counted e_u / |D| dearer, as the
/// hop into u has paid e_u. Let, for every GPU that is not a holder,
///
///     e_u = the least that a hop into u can count: out of a holder, out of a needer, or out of any
///           other GPU with its share.
///
/// Then the tree costs at least the sum of e over D, and for every GPU on it what the hop into it
/// counts more than e: its *excess*, never negative. Into some sets a hop has to lead from outside,
/// which gives some GPU in it an excess:
///
///     a domain with needers and without holders         from other domains,
///     the GPUs of a domain with holders that hold not   from holders, or other domains,
///     all domains without holders together,             from those with holders,
///     where one of them has needers
///     all GPUs that hold not                            from holders.
///
/// The sets of the first two kinds are disjoint, so their least excesses add up. Of the others only
/// counts what goes beyond those of the domain in which it is, and of the last, when the hop from a
/// holder leads to a domain without holders, what goes beyond that of the third.
///
/// e is found by iteration from below: each round of it is an under-estimate already. Only for GPUs
/// that are near, that is in domains with holders or needers; others have the first round, which is
/// the same for all classes. In small problems all are near.
class TreeBound {
 public:
  /// Uses the prices as they are now.
  TreeBound(const HopGraph& graph, const PortPrices& prices, const GpuGroups& groups,
            bool all_near);

  double least(const Multicast& item);

 private:
  /// The cheapest senders: the best, the best of another GPU, the best of another domain.
  struct Sender {
    double cost = std::numeric_limits<double>::infinity();
    int32_t gpu = -1, domain = -1;
  };
  struct Senders {
    Sender best, second, other;
    void add(const Sender& sender);
    void add(const Senders& senders, double way);
    double without_gpu(int32_t gpu) const { return best.gpu == gpu ? second.cost : best.cost; }
    double without_domain(int32_t domain) const {
      return best.domain == domain ? other.cost : best.cost;
    }
  };
  /// Senders of a class: at the site where they send, and as they arrive at a site.
  struct Table {
    std::vector<Senders> sent, arrived;     // by site
    std::vector<uint32_t> sent_time, time;  // by site: of the last change
    std::vector<int32_t> touched;           // sites
    uint32_t now = 0;
  };
  /// A domain's best relay as it arrives at a site; and the best entry to a site's GPUs.
  using DomainCost = std::pair<double, int32_t>;

  void make_far();
  void clear(Table& table) const;
  void send(Table& table, int32_t gpu, double share) const;
  const Senders& arrive(Table& table, int32_t site) const;
  double far(int32_t site) const;
  double far_entry(Table& table) const;
  void find_near(const Multicast& item);
  void iterate(const Multicast& item);
  template <typename Visit>
  void for_each_in(int32_t gpu, Visit visit) const;  // (price, site) of its receiving ports
  bool is_needed(int32_t gpu) const { return needed_[static_cast<size_t>(gpu)] == round_; }
  bool is_held(int32_t gpu) const { return held_[static_cast<size_t>(gpu)] == round_; }
  bool has(const std::vector<uint32_t>& rounds, int32_t domain) const {
    return rounds[static_cast<size_t>(domain)] == round_;
  }

  const HopGraph& graph_;
  const PortPrices& prices_;
  const GpuGroups& groups_;  // the domains above
  const bool all_near_;
  std::vector<double> first_;  // e after the first round, by GPU
  // By ceil(log2 |D|) and site: the domains' relays as they arrive, cheapest first.
  std::vector<std::vector<std::vector<DomainCost>>> far_;
  // By site of the network: domains by the least in-price of their GPUs there less their e.
  std::vector<std::vector<DomainCost>> far_entries_;
  uint32_t round_ = 0;
  size_t level_ = 0;                                   // of far_
  std::vector<uint32_t> needed_, held_;                // by GPU: round
  std::vector<uint32_t> needing_, holding_, is_near_;  // by domain: round
  std::vector<int32_t> near_;                          // domains
  std::vector<double> least_;                          // e, by GPU, of those that are near
  mutable Table any_, holders_, origins_;
};

}  // namespace refit
