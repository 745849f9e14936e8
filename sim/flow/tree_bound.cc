#include "sim/flow/tree_bound.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace refit {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

size_t at(int32_t index) { return static_cast<size_t>(index); }

}  // namespace

void TreeBound::Senders::add(const Sender& sender) {
  if (sender.gpu < 0) return;
  if (sender.cost < best.cost) {
    if (sender.gpu != best.gpu) second = best;
    if (sender.domain != best.domain) other = best;
    best = sender;
    return;
  }
  if (sender.gpu != best.gpu && sender.cost < second.cost) second = sender;
  if (sender.domain != best.domain && sender.cost < other.cost) other = sender;
}

void TreeBound::Senders::add(const Senders& senders, double way) {
  for (Sender sender : {senders.best, senders.second, senders.other}) {
    sender.cost += way;
    add(sender);
  }
}

TreeBound::TreeBound(const HopGraph& graph, const PortPrices& prices)
    : graph_(graph),
      prices_(prices),
      needed_(graph.domain.size(), 0),
      holding_(graph.domains.size(), 0),
      entered_(graph.domains.size(), 0),
      held_(graph.domain.size(), 0) {
  const size_t sites = graph.plane.size();
  for (Table* table : {&any_, &holders_, &origins_}) {
    table->sent.resize(sites);
    table->arrived.resize(sites);
    table->sent_round.resize(sites, 0);
    table->round.resize(sites, 0);
  }
  const auto spread = [&](const std::vector<Senders>& sent) {
    std::vector<Senders> arrived(sites);
    for (const std::vector<int32_t>& plane : graph.planes)
      for (const int32_t to : plane)
        for (const int32_t from : plane) arrived[at(to)].add(sent[at(from)], prices.way(from, to));
    return arrived;
  };
  std::vector<Senders> sent(sites);
  for (size_t p = 0; p < graph.ports.size(); ++p) {
    const GpuPort& port = graph.ports[p];
    if (port.sends)
      sent[at(port.site)].add({prices.out(static_cast<int32_t>(p)), port.gpu,
                               graph.domain[at(port.gpu)]});
  }
  const std::vector<Senders> arrived = spread(sent);
  relay_base_.assign(graph.domain.size(), kInfinity);
  for (size_t p = 0; p < graph.ports.size(); ++p) {
    const GpuPort& port = graph.ports[p];
    if (!port.receives) continue;
    double& least = relay_base_[at(port.gpu)];
    least = std::min(least, prices.in(static_cast<int32_t>(p)) +
                                arrived[at(port.site)].without_gpu(port.gpu));
  }
  for (size_t most = 1; most < 2 * graph.domain.size(); most *= 2) {
    std::vector<Senders> relays(sites);
    for (size_t p = 0; p < graph.ports.size(); ++p) {
      const GpuPort& port = graph.ports[p];
      const double entry = relay_base_[at(port.gpu)];
      if (port.sends && entry < kInfinity)
        relays[at(port.site)].add({prices.out(static_cast<int32_t>(p)) +
                                       entry / static_cast<double>(most),
                                   port.gpu, graph.domain[at(port.gpu)]});
    }
    relay_tables_.push_back(spread(relays));
  }
  relay_entries_.resize(graph.domains.size());
  for (size_t p = 0; p < graph.ports.size(); ++p) {
    const GpuPort& port = graph.ports[p];
    const double entry = relay_base_[at(port.gpu)];
    if (!port.receives || entry == kInfinity) continue;
    auto& entries = relay_entries_[at(graph.domain[at(port.gpu)])];
    const double above = prices.in(static_cast<int32_t>(p)) - entry;
    const auto found = std::ranges::find(entries, port.site, &std::pair<int32_t, double>::first);
    if (found == entries.end())
      entries.emplace_back(port.site, above);
    else
      found->second = std::min(found->second, above);
  }
}

void TreeBound::send(Table& table, int32_t gpu) {
  for (int32_t p = graph_.first_port[at(gpu)]; p < graph_.first_port[at(gpu) + 1]; ++p) {
    const GpuPort& port = graph_.ports[at(p)];
    if (!port.sends) continue;
    if (table.sent_round[at(port.site)] != round_) {
      table.sent_round[at(port.site)] = round_;
      table.sent[at(port.site)] = {};
      table.touched.push_back(port.site);
    }
    table.sent[at(port.site)].add({prices_.out(p), gpu, graph_.domain[at(gpu)]});
  }
}

const TreeBound::Senders& TreeBound::arrive(Table& table, int32_t site) {
  static const Senders kNone;
  const int32_t plane = graph_.plane[at(site)];
  if (graph_.planes[at(plane)].size() == 1)
    return table.sent_round[at(site)] == round_ ? table.sent[at(site)] : kNone;
  Senders& arrived = table.arrived[at(site)];
  if (table.round[at(site)] != round_) {
    table.round[at(site)] = round_;
    arrived = {};
    for (const int32_t from : table.touched)
      if (graph_.plane[at(from)] == plane)
        arrived.add(table.sent[at(from)], prices_.way(from, site));
  }
  return arrived;
}

template <typename Visit>
void TreeBound::for_each_receiving(int32_t gpu, Visit visit) const {
  for (int32_t p = graph_.first_port[at(gpu)]; p < graph_.first_port[at(gpu) + 1]; ++p)
    if (graph_.ports[at(p)].receives) visit(p, graph_.ports[at(p)].site);
}

/// base(g) of a needer.
double TreeBound::base(int32_t gpu) {
  double least = kInfinity;
  for_each_receiving(gpu, [&](int32_t port, int32_t site) {
    least = std::min(least, prices_.in(port) + std::min(arrive(any_, site).without_gpu(gpu),
                                                        relays(site).without_gpu(gpu)));
  });
  return least;
}

/// What it costs to arrive at the site from other domains; for domains with holders, from those
/// too.
double TreeBound::from_outside(int32_t site, int32_t domain) {
  double cost = std::min(arrive(any_, site).without_domain(domain),
                         relays(site).without_domain(domain));
  if (holding_[at(domain)] == round_) cost = std::min(cost, arrive(holders_, site).best.cost);
  return cost;
}

/// The same from domains with holders, or relays outside those that need.
double TreeBound::from_origin(int32_t site) {
  const Senders& relay = relays(site);
  const bool inside = relay.best.domain >= 0 && entered_[at(relay.best.domain)] == round_ &&
                      holding_[at(relay.best.domain)] != round_;
  return std::min(arrive(origins_, site).best.cost, inside ? relay.other.cost : relay.best.cost);
}

double TreeBound::least(const Multicast& item) {
  if (item.needers.empty()) return 0;
  ++round_;
  for (Table* table : {&any_, &holders_, &origins_}) table->touched.clear();
  relays_ = &relay_tables_[static_cast<size_t>(std::bit_width(item.needers.size() - 1))];
  std::vector<int32_t> domains;  // with needers
  const auto domain_of = [&](int32_t gpu) { return graph_.domain[at(gpu)]; };
  for (const int32_t gpu : item.holders) {
    held_[at(gpu)] = round_;
    holding_[at(domain_of(gpu))] = round_;
    for (Table* table : {&any_, &holders_, &origins_}) send(*table, gpu);
  }
  for (const int32_t gpu : item.needers) {
    needed_[at(gpu)] = round_;
    const int32_t domain = domain_of(gpu);
    if (entered_[at(domain)] != round_) {
      entered_[at(domain)] = round_;
      domains.push_back(domain);
    }
    send(any_, gpu);
    if (holding_[at(domain)] == round_) send(origins_, gpu);
  }

  double total = 0;
  base_.resize(item.needers.size());
  for (size_t i = 0; i < item.needers.size(); ++i) total += base_[i] = base(item.needers[i]);
  if (total == kInfinity) return total;
  std::vector<double> excess(domains.size(), kInfinity), origin(domains.size(), kInfinity);
  const auto index_of = [&](int32_t domain) {
    return static_cast<size_t>(std::ranges::find(domains, domain) - domains.begin());
  };
  size_t d = 0;
  const auto consider = [&](int32_t site, double in_price, double least_in) {
    excess[d] = std::min(excess[d], in_price + from_outside(site, domains[d]) - least_in);
    if (holding_[at(domains[d])] != round_)
      origin[d] = std::min(origin[d], in_price + from_origin(site) - least_in);
  };
  for (size_t i = 0; i < item.needers.size(); ++i) {
    const int32_t gpu = item.needers[i];
    if (domains[d] != domain_of(gpu)) d = index_of(domain_of(gpu));
    for_each_receiving(gpu, [&](int32_t port, int32_t site) {
      consider(site, prices_.in(port), base_[i]);
    });
  }
  double beyond = kInfinity;  // of the third kind
  for (d = 0; d < domains.size(); ++d) {
    const bool holds = holding_[at(domains[d])] == round_;
    if (holds) {
      for (const int32_t gpu : graph_.domains[at(domains[d])])
        if (held_[at(gpu)] != round_ && !is_needed(gpu))
          for_each_receiving(gpu, [&](int32_t port, int32_t site) {
            consider(site, prices_.in(port), relay_base_[at(gpu)]);
          });
    } else {
      for (const auto& [site, above] : relay_entries_[at(domains[d])]) consider(site, above, 0);
    }
    total += std::max(excess[d], 0.0);
    if (!holds) beyond = std::min(beyond, std::max(origin[d] - std::max(excess[d], 0.0), 0.0));
  }
  return beyond < kInfinity ? total + beyond : total;
}

}  // namespace refit
