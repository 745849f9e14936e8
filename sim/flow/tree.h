#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/flow/multicast.h"

namespace refit {

/// Prices of links, and what ports cost with them.
class PortPrices {
 public:
  explicit PortPrices(const HopGraph& graph);

  void set(int32_t link, double price);  // O(ports that have the link)
  double of(int32_t link) const { return price_[static_cast<size_t>(link)]; }
  double out(int32_t port) const { return out_[static_cast<size_t>(port)]; }
  double in(int32_t port) const { return in_[static_cast<size_t>(port)]; }
  double way(int32_t from_site, int32_t to_site) const;  // infinite when not open
  double hop(const PortHop& hop) const;
  double hops(std::span<const PortHop> hops) const;

 private:
  const HopGraph& graph_;
  std::vector<double> price_;     // by link
  std::vector<double> out_, in_;  // by port
  std::vector<std::vector<int32_t>> ports_of_link_;
};

/// Finds cheap trees (multicast.h). Domains with holders come first, then the others, the one that
/// is the best to go on from before the rest; each is entered at the GPU where entry and fan-out
/// together are cheapest, or a needer at its own NIC where that is cheaper than NVLink. A holder's
/// or needer's peer relays where that is cheaper. At the end every GPU is moved to its cheapest
/// sender. Not always the cheapest tree of all: tests compare with brute force.
///
/// O(GPUs in the domains of holders and needers), times the sites of the network where its ways
/// bind.
class TreeFinder {
 public:
  /// `any_hubs`: let GPUs of domains that neither hold nor need relay, too: O(GPUs) a tree.
  TreeFinder(const HopGraph& graph, const PortPrices& prices, bool any_hubs);

  /// Hops from parents to children. False when some needer cannot be reached.
  bool find(const Multicast& item, std::vector<PortHop>& hops);

  /// GPUs looked at so far.
  int64_t work() const { return work_; }

 private:
  /// The cheapest way to have the data leave for a site: out of a port, whose GPU has it, or gets
  /// it by the hop `relay` first.
  struct Offer {
    double cost = 0;
    int32_t port = -1;
    PortHop relay;
  };
  struct SiteOffers {
    Offer best, second;  // of different GPUs; port -1: none
    bool touched = false;
  };
  struct Reach {
    double cost = 0;
    int32_t port = -1;  // at which it receives
    Offer offer;
  };

  void reset(const Multicast& item);
  void join(int32_t gpu);
  void add_offer(const Offer& offer);
  void offer_relays(int32_t domain);
  Reach reach(int32_t gpu, bool local = false) const;  // local: from its own domain
  bool attach(int32_t gpu, const Reach& reach);
  bool attach_all(std::span<const int32_t> needers);
  struct Entry {
    Reach reach;
    int32_t gpu = -1;
    double score = 0;
  };
  Entry best_entry(int32_t domain, std::span<const int32_t> needers) const;
  double way_on(int32_t domain, std::span<const int32_t> needers) const;
  void move_all(const Multicast& item);
  void offer_tree(const Multicast& item, bool holders_only, bool relays);
  void try_hubs(const Multicast& item, std::vector<PortHop>& hops);
  /// What a GPU of the tree pays now, less what receiving at the site costs.
  struct Paid {
    int32_t gpu = -1, site = -1;
    double cost = 0;
  };
  bool add_hub(const Multicast& item);
  double saved_by(int32_t hub, int32_t feeder, std::span<const Paid> paid) const;
  bool is_below(int32_t gpu, int32_t above) const;
  void write(std::vector<PortHop>& hops);
  double local_cost(int32_t gpu, bool out) const;
  int32_t gpu_of(int32_t port) const { return graph_.ports[static_cast<size_t>(port)].gpu; }

  const HopGraph& graph_;
  const PortPrices& prices_;
  const bool any_hubs_;
  int64_t work_ = 0;
  uint32_t round_ = 0;
  std::vector<uint32_t> joined_, needed_;  // by GPU: round in which it is on the tree, a needer
  std::vector<PortHop> in_hop_;            // by GPU; from -1: a holder
  std::vector<int32_t> nodes_;             // GPUs that were entered, in order
  std::vector<SiteOffers> offers_;         // by site
  std::vector<int32_t> touched_;           // sites with offers
};

}  // namespace refit
