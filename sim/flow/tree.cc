#include "sim/flow/tree.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace refit {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kMostHubs = 3;
constexpr double kCheaper = 1 - 1e-9;  // what counts as cheaper when a tree is improved

size_t at(int32_t index) { return static_cast<size_t>(index); }

}  // namespace

PortPrices::PortPrices(const HopGraph& graph)
    : graph_(graph),
      price_(graph.rates.size(), 0),
      out_(graph.ports.size(), 0),
      in_(graph.ports.size(), 0),
      ports_of_link_(graph.rates.size()) {
  for (size_t p = 0; p < graph.ports.size(); ++p)
    for (const auto* links : {&graph.ports[p].out, &graph.ports[p].in})
      for (const int32_t link : *links) ports_of_link_[at(link)].push_back(static_cast<int32_t>(p));
}

void PortPrices::set(int32_t link, double price) {
  price_[at(link)] = price;
  const auto sum = [&](const std::vector<int32_t>& links) {
    double total = 0;
    for (const int32_t id : links) total += price_[at(id)];
    return total;
  };
  for (const int32_t port : ports_of_link_[at(link)]) {
    out_[at(port)] = sum(graph_.ports[at(port)].out);
    in_[at(port)] = sum(graph_.ports[at(port)].in);
  }
}

double PortPrices::way(int32_t from_site, int32_t to_site) const {
  if (from_site == to_site) return 0;
  const SiteWay& way = graph_.way(from_site, to_site);
  if (!way.open) return kInfinity;
  double total = 0;
  for (const int32_t link : way.links) total += price_[at(link)];
  return total;
}

double PortPrices::hop(const PortHop& hop) const {
  return out(hop.from) + way(graph_.ports[at(hop.from)].site, graph_.ports[at(hop.to)].site) +
         in(hop.to);
}

double PortPrices::hops(std::span<const PortHop> hops) const {
  double total = 0;
  for (const PortHop& item : hops) total += hop(item);
  return total;
}

TreeFinder::TreeFinder(const HopGraph& graph, const PortPrices& prices, bool any_hubs)
    : graph_(graph),
      prices_(prices),
      any_hubs_(any_hubs),
      joined_(graph.domains.of.size(), 0),
      needed_(graph.domains.of.size(), 0),
      in_hop_(graph.domains.of.size()),
      offers_(graph.plane.size()) {}

void TreeFinder::reset(const Multicast& item) {
  ++round_;
  nodes_.clear();
  for (const int32_t site : touched_) offers_[at(site)] = {};
  touched_.clear();
  for (const int32_t gpu : item.needers) needed_[at(gpu)] = round_;
}

void TreeFinder::add_offer(const Offer& offer) {
  const int32_t site = graph_.ports[at(offer.port)].site;
  SiteOffers& offers = offers_[at(site)];
  if (!offers.touched) {
    offers.touched = true;
    touched_.push_back(site);
  }
  Offer& best = offers.best;
  Offer& second = offers.second;
  if (best.port >= 0 && gpu_of(best.port) == gpu_of(offer.port)) {
    if (offer.cost < best.cost) best = offer;
  } else if (best.port < 0 || offer.cost < best.cost) {
    second = best;
    best = offer;
  } else if (second.port < 0 || offer.cost < second.cost) {
    second = offer;
  }
}

/// The GPU has the data from now on.
void TreeFinder::join(int32_t gpu) {
  joined_[at(gpu)] = round_;
  for (int32_t p = graph_.first_port[at(gpu)]; p < graph_.first_port[at(gpu) + 1]; ++p)
    if (graph_.ports[at(p)].sends) add_offer({prices_.out(p), p, {}});
}

/// What the other GPUs of the domain could pass on.
void TreeFinder::offer_relays(int32_t domain) {
  std::vector<Offer> relays;
  for (const int32_t gpu : graph_.domains.members[at(domain)]) {
    ++work_;
    if (joined_[at(gpu)] == round_) continue;
    const Reach way = reach(gpu, true);
    if (way.port < 0 || way.offer.relay.from >= 0) continue;
    for (int32_t p = graph_.first_port[at(gpu)]; p < graph_.first_port[at(gpu) + 1]; ++p) {
      const GpuPort& port = graph_.ports[at(p)];
      if (port.sends && graph_.kind[at(port.site)] != SiteKind::kNvswitch)
        relays.push_back({way.cost + prices_.out(p), p, {way.offer.port, way.port}});
    }
  }
  for (const Offer& offer : relays) add_offer(offer);
}

TreeFinder::Reach TreeFinder::reach(int32_t gpu, bool local) const {
  Reach best;
  best.cost = kInfinity;
  const auto consider = [&](const Offer& offer, double way, int32_t port) {
    if (offer.port < 0 || gpu_of(offer.port) == gpu) return false;
    const double cost = offer.cost + way + prices_.in(port);
    if (cost < best.cost) best = {cost, port, offer};
    return true;
  };
  const auto from = [&](int32_t site, double way, int32_t port) {
    const SiteOffers& offers = offers_[at(site)];
    if (!consider(offers.best, way, port)) consider(offers.second, way, port);
  };
  for (int32_t p = graph_.first_port[at(gpu)]; p < graph_.first_port[at(gpu) + 1]; ++p) {
    const GpuPort& port = graph_.ports[at(p)];
    if (!port.receives || (local && !graph_.is_local(port.site))) continue;
    const int32_t plane = graph_.plane[at(port.site)];
    if (graph_.planes[at(plane)].size() == 1) {
      from(port.site, 0, p);
      continue;
    }
    for (const int32_t site : touched_)
      if (graph_.plane[at(site)] == plane) from(site, prices_.way(site, port.site), p);
  }
  return best;
}

/// Takes the hop, and that of the relay before it. False when there is none.
bool TreeFinder::attach(int32_t gpu, const Reach& reach) {
  if (reach.port < 0) return false;
  const auto enter = [&](int32_t to, const PortHop& hop) {
    in_hop_[at(to)] = hop;
    nodes_.push_back(to);
    join(to);
  };
  const int32_t sender = gpu_of(reach.offer.port);
  if (joined_[at(sender)] != round_) enter(sender, reach.offer.relay);
  enter(gpu, {reach.offer.port, reach.port});
  return true;
}

double TreeFinder::local_cost(int32_t gpu, bool out) const {
  double cost = kInfinity;
  for (int32_t p = graph_.first_port[at(gpu)]; p < graph_.first_port[at(gpu) + 1]; ++p) {
    const GpuPort& port = graph_.ports[at(p)];
    if ((out ? port.sends : port.receives) && graph_.is_local(port.site))
      cost = std::min(cost, out ? prices_.out(p) : prices_.in(p));
  }
  return cost;
}

/// Needers of one domain, of which each can be reached: first the one that is worth it as a sender.
bool TreeFinder::attach_all(std::span<const int32_t> needers) {
  int32_t first = -1;
  double least = kInfinity;
  for (const int32_t gpu : needers) {
    ++work_;
    if (joined_[at(gpu)] == round_) continue;
    const double out = local_cost(gpu, true);
    if (out < least) {
      least = out;
      first = gpu;
    }
  }
  if (first >= 0) {
    // Worth it when others then pay less for it than for those that have it.
    const Reach way = reach(first);
    const double saved = way.offer.port < 0 ? 0 : way.offer.cost - least;
    if (saved > 0 && !attach(first, way)) return false;
  }
  for (const int32_t gpu : needers)
    if (joined_[at(gpu)] != round_ && !attach(gpu, reach(gpu))) return false;
  return true;
}

/// The GPU at which to enter a domain: its entry, and the fan-out from it to the others.
TreeFinder::Entry TreeFinder::best_entry(int32_t domain, std::span<const int32_t> needers) const {
  Entry best;
  best.score = kInfinity;
  double fan_in = 0;
  if (needers.size() > 1)
    for (const int32_t gpu : needers) fan_in += local_cost(gpu, false);
  for (const int32_t gpu : graph_.domains.members[at(domain)]) {
    const Reach way = reach(gpu);
    const bool needs = needed_[at(gpu)] == round_;
    const size_t others = needers.size() - (needs ? 1 : 0);
    double score = way.cost;
    if (others > 0) {
      score += static_cast<double>(others) * local_cost(gpu, true) + fan_in;
      if (needs) score -= local_cost(gpu, false);
      if (!needs && needers.size() == 1) score += local_cost(needers[0], false);
    }
    if (score < best.score) best = {way, gpu, score};
  }
  return best;
}

/// What it costs to leave the domain for the network once its needers have the data.
double TreeFinder::way_on(int32_t domain, std::span<const int32_t> needers) const {
  double cost = kInfinity, local = kInfinity;
  for (const int32_t gpu : needers) local = std::min(local, local_cost(gpu, true));
  for (const int32_t gpu : graph_.domains.members[at(domain)])
    for (int32_t p = graph_.first_port[at(gpu)]; p < graph_.first_port[at(gpu) + 1]; ++p) {
      const GpuPort& port = graph_.ports[at(p)];
      if (!port.sends || graph_.is_local(port.site)) continue;
      const double relay = needed_[at(gpu)] == round_ ? 0 : local + local_cost(gpu, false);
      cost = std::min(cost, relay + prices_.out(p));
    }
  return cost;
}

bool TreeFinder::find(const Multicast& item, std::vector<PortHop>& hops) {
  reset(item);
  const auto domain_of = [&](int32_t gpu) { return graph_.domains.of[at(gpu)]; };
  std::vector<int32_t> holding;  // domains
  for (const int32_t gpu : item.holders) {
    in_hop_[at(gpu)] = {};
    join(gpu);
    holding.push_back(domain_of(gpu));
  }
  std::ranges::sort(holding);
  holding.erase(std::unique(holding.begin(), holding.end()), holding.end());
  for (const int32_t domain : holding) offer_relays(domain);

  struct Group {
    int32_t domain;
    std::vector<int32_t> needers;
  };
  std::vector<Group> groups;
  for (const int32_t gpu : item.needers) {
    if (groups.empty() || groups.back().domain != domain_of(gpu)) {
      const auto group = std::ranges::find(groups, domain_of(gpu), &Group::domain);
      if (group != groups.end()) {
        group->needers.push_back(gpu);
        continue;
      }
      groups.push_back({domain_of(gpu), {}});
    }
    groups.back().needers.push_back(gpu);
  }
  std::vector<const Group*> to_enter;
  for (const Group& group : groups) {
    if (!std::ranges::binary_search(holding, group.domain)) {
      to_enter.push_back(&group);
      continue;
    }
    if (!attach_all(group.needers)) return false;
    offer_relays(group.domain);
  }
  if (to_enter.size() > 1) {
    const auto others = static_cast<double>(to_enter.size() - 1);
    double now = kInfinity;  // what leaving costs where the data is
    for (const int32_t site : touched_)
      if (!graph_.is_local(site)) now = std::min(now, offers_[at(site)].best.cost);
    size_t first = 0;
    double least = kInfinity;
    for (size_t i = 0; i < to_enter.size(); ++i) {
      const Group& group = *to_enter[i];
      work_ += std::ssize(graph_.domains.members[at(group.domain)]);
      const double score = best_entry(group.domain, group.needers).score +
                           others * std::min(now, way_on(group.domain, group.needers));
      if (score < least) {
        least = score;
        first = i;
      }
    }
    std::swap(to_enter[0], to_enter[first]);
  }
  for (const Group* group : to_enter) {
    work_ += std::ssize(graph_.domains.members[at(group->domain)]);
    const Entry entry = best_entry(group->domain, group->needers);
    if (entry.gpu < 0 || !attach(entry.gpu, entry.reach) || !attach_all(group->needers))
      return false;
    if (group != to_enter.back()) offer_relays(group->domain);
  }
  move_all(item);
  write(hops);
  if (any_hubs_) try_hubs(item, hops);
  return true;
}

bool TreeFinder::is_below(int32_t gpu, int32_t above) const {
  while (gpu != above && in_hop_[at(gpu)].from >= 0) gpu = gpu_of(in_hop_[at(gpu)].from);
  return gpu == above;
}

/// Moves every GPU to its cheapest sender that is not below it.
void TreeFinder::move_all(const Multicast& item) {
  offer_tree(item, false, false);
  for (const int32_t gpu : nodes_) {
    ++work_;
    const double now = prices_.hop(in_hop_[at(gpu)]);
    const Reach way = reach(gpu);
    if (way.port < 0 || !(way.cost < now * kCheaper)) continue;
    if (!is_below(gpu_of(way.offer.port), gpu)) in_hop_[at(gpu)] = {way.offer.port, way.port};
  }
}

/// The offers of all that are on the tree, or of holders only, and of peers that could relay.
void TreeFinder::offer_tree(const Multicast& item, bool holders_only, bool relays) {
  for (const int32_t site : touched_) offers_[at(site)] = {};
  touched_.clear();
  std::vector<int32_t> domains;
  const auto offer = [&](int32_t gpu) {
    join(gpu);
    if (relays) domains.push_back(graph_.domains.of[at(gpu)]);
  };
  std::ranges::for_each(item.holders, offer);
  if (!holders_only) std::ranges::for_each(nodes_, offer);
  std::ranges::sort(domains);
  domains.erase(std::unique(domains.begin(), domains.end()), domains.end());
  for (const int32_t domain : domains) offer_relays(domain);
}

/// Lets GPUs elsewhere relay, one after the other, as long as that makes the tree cheaper.
void TreeFinder::try_hubs(const Multicast& item, std::vector<PortHop>& hops) {
  std::vector<PortHop> with_hub;
  double least = prices_.hops(hops);
  for (int hub = 0; hub < kMostHubs; ++hub) {
    if (!add_hub(item)) return;
    move_all(item);
    write(with_hub);
    const double cost = prices_.hops(with_hub);
    if (!(cost < least * kCheaper)) return;
    least = cost;
    std::swap(hops, with_hub);
  }
}

/// Lets the GPU relay that saves most, fed by a holder, or by a GPU of the tree, which then cannot
/// gain from it.
bool TreeFinder::add_hub(const Multicast& item) {
  std::vector<Paid> paid;
  for (const int32_t gpu : nodes_) {
    const double now = prices_.hop(in_hop_[at(gpu)]);
    for (int32_t p = graph_.first_port[at(gpu)]; p < graph_.first_port[at(gpu) + 1]; ++p)
      if (graph_.ports[at(p)].receives && prices_.in(p) < now)
        paid.push_back({gpu, graph_.ports[at(p)].site, now - prices_.in(p)});
  }
  double most = 0;
  int32_t hub = -1;
  Reach entry;
  for (const bool holders_only : {true, false}) {
    offer_tree(item, holders_only, true);
    for (int32_t gpu = 0; gpu < std::ssize(graph_.domains.of); ++gpu) {
      if (joined_[at(gpu)] == round_) continue;
      ++work_;
      const Reach way = reach(gpu);
      if (way.port < 0) continue;
      const int32_t feeder = way.offer.relay.from >= 0 ? way.offer.relay.from : way.offer.port;
      work_ += std::ssize(paid);
      const double saved = saved_by(gpu, gpu_of(feeder), paid);
      if (saved - way.cost <= std::max(most, saved * (1 - kCheaper))) continue;
      most = saved - way.cost;
      hub = gpu;
      entry = way;
    }
  }
  return hub >= 0 && attach(hub, entry);
}

/// What GPUs of the tree would pay less if the hub sent to them; not those above its feeder.
double TreeFinder::saved_by(int32_t hub, int32_t feeder, std::span<const Paid> paid) const {
  double saved = 0, best = 0;  // of all, of one GPU over its ports
  for (size_t i = 0; i < paid.size(); ++i) {
    const Paid& item = paid[i];
    for (int32_t p = graph_.first_port[at(hub)]; p < graph_.first_port[at(hub) + 1]; ++p) {
      const GpuPort& port = graph_.ports[at(p)];
      if (port.sends && graph_.plane[at(item.site)] == graph_.plane[at(port.site)])
        best = std::max(best, item.cost - prices_.out(p) - prices_.way(port.site, item.site));
    }
    if (i + 1 < paid.size() && paid[i + 1].gpu == item.gpu) continue;
    if (best > 0 && !is_below(feeder, item.gpu)) saved += best;
    best = 0;
  }
  return saved;
}

/// Hops in order of depth, without relays that feed nobody.
void TreeFinder::write(std::vector<PortHop>& hops) {
  std::vector<int32_t> depth(nodes_.size());
  int32_t deepest = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    int32_t gpu = nodes_[i];
    for (; in_hop_[at(gpu)].from >= 0; gpu = gpu_of(in_hop_[at(gpu)].from)) ++depth[i];
    deepest = std::max(deepest, depth[i]);
  }
  std::vector<size_t> order(nodes_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::sort(order, [&](size_t a, size_t b) {
    return depth[a] != depth[b] ? depth[a] < depth[b] : nodes_[a] < nodes_[b];
  });
  hops.clear();
  std::vector<int32_t> feeding;  // that have to stay, deepest first
  for (auto i = order.rbegin(); i != order.rend(); ++i) {
    const int32_t gpu = nodes_[*i];
    const bool feeds = std::ranges::find(feeding, gpu) != feeding.end();
    if (needed_[at(gpu)] != round_ && !feeds) continue;
    const PortHop& hop = in_hop_[at(gpu)];
    hops.push_back(hop);
    const int32_t sender = gpu_of(hop.from);
    if (needed_[at(sender)] != round_) feeding.push_back(sender);
  }
  std::ranges::reverse(hops);
}

}  // namespace refit
