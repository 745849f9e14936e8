#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "sim/flow/multicast.h"
#include "sim/flow/tree.h"

namespace refit {

/// Under-estimates of the price of the cheapest tree, proven for any prices.
///
/// Take any tree from S to D, and let each GPU u on it that is in neither (a *relay*) share out
/// e_u, the least that a hop into u can cost, over the hops that leave it. They are at most |D|,
/// for each leads to a needer of its own; so a hop out of u then pays e_u / |D| more at least, and
/// the hop into u has paid e_u. With
///
///     base(g) = the least that a hop into g can cost, out of a holder, out of a needer, or with
///               its share out of any other GPU;  for relays e_g,
///
/// the tree costs at least sum over D of base, and for every other GPU on it what the hop into it
/// costs more than base: its *excess*, never negative. Into some sets a hop has to lead from
/// outside, which gives some GPU in it an excess:
///
///     a domain with needers and without holders         from other domains,
///     the GPUs of a domain with holders that hold not   from holders, or other domains,
///     all domains of the first kind together            from the others.
///
/// The sets of the first two kinds are disjoint, so their least excesses add up; of the third only
/// what goes beyond that of the domain it is in.
class TreeBound {
 public:
  /// Uses the prices as they are now.
  TreeBound(const HopGraph& graph, const PortPrices& prices);

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
    std::vector<Senders> sent, arrived;      // by site
    std::vector<uint32_t> sent_round, round;  // by site
    std::vector<int32_t> touched;
  };
  void send(Table& table, int32_t gpu);
  const Senders& arrive(Table& table, int32_t site);
  const Senders& relays(int32_t site) const { return (*relays_)[static_cast<size_t>(site)]; }

  template <typename Visit>
  void for_each_receiving(int32_t gpu, Visit visit) const;
  double base(int32_t gpu);
  double from_outside(int32_t site, int32_t domain);
  double from_origin(int32_t site);
  bool is_needed(int32_t gpu) const { return needed_[static_cast<size_t>(gpu)] == round_; }

  const HopGraph& graph_;
  const PortPrices& prices_;
  std::vector<double> relay_base_;                  // e_g, by GPU
  std::vector<std::vector<Senders>> relay_tables_;  // by ceil(log2 |D|); then by site, as arriving
  // By domain: for each site, the least in-price of a GPU there less its e_g.
  std::vector<std::vector<std::pair<int32_t, double>>> relay_entries_;
  const std::vector<Senders>* relays_ = nullptr;
  uint32_t round_ = 0;
  std::vector<uint32_t> needed_, holding_, entered_;  // rounds; by GPU, by domain, by domain
  std::vector<uint32_t> held_;                        // by GPU
  Table any_, holders_, origins_;
  std::vector<double> base_;  // by needer
};

}  // namespace refit
