#include "sim/flow/tree_bound.h"

#include <algorithm>
#include <bit>

namespace refit {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kRounds = 2;     // that improve e where only some GPUs are near
constexpr int kAllRounds = 4;  // where all are

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

TreeBound::TreeBound(const HopGraph& graph, const PortPrices& prices, const GpuGroups& groups,
                     bool all_near)
    : graph_(graph),
      prices_(prices),
      groups_(groups),
      all_near_(all_near),
      first_(graph.domains.of.size(), kInfinity),
      needed_(graph.domains.of.size(), 0),
      held_(graph.domains.of.size(), 0),
      needing_(groups.members.size(), 0),
      holding_(groups.members.size(), 0),
      is_near_(groups.members.size(), 0),
      least_(graph.domains.of.size(), kInfinity) {
  const size_t sites = graph.plane.size();
  for (Table* table : {&any_, &holders_, &origins_}) {
    table->sent.resize(sites);
    table->arrived.resize(sites);
    table->sent_time.resize(sites, 0);
    table->time.resize(sites, 0);
  }
  // The first round: out of any GPU.
  clear(any_);
  const auto gpus = static_cast<int32_t>(graph.domains.of.size());
  for (int32_t gpu = 0; gpu < gpus; ++gpu) send(any_, gpu, 0);
  for (int32_t gpu = 0; gpu < gpus; ++gpu)
    for_each_in(gpu, [&](double in, int32_t site) {
      first_[at(gpu)] = std::min(first_[at(gpu)], in + arrive(any_, site).without_gpu(gpu));
    });
  if (!all_near) make_far();
}

template <typename Visit>
void TreeBound::for_each_in(int32_t gpu, Visit visit) const {
  for (int32_t p = graph_.first_port[at(gpu)]; p < graph_.first_port[at(gpu) + 1]; ++p)
    if (graph_.ports[at(p)].receives) visit(prices_.in(p), graph_.ports[at(p)].site);
}

void TreeBound::make_far() {
  const auto domains = static_cast<int32_t>(groups_.members.size());
  const auto sites = static_cast<int32_t>(graph_.plane.size());
  for (size_t most = 1; most < 2 * graph_.domains.of.size(); most *= 2) {
    std::vector<std::vector<DomainCost>>& far = far_.emplace_back(sites);
    for (int32_t domain = 0; domain < domains; ++domain) {
      clear(any_);
      for (const int32_t gpu : groups_.members[at(domain)])
        if (first_[at(gpu)] < kInfinity)
          send(any_, gpu, first_[at(gpu)] / static_cast<double>(most));
      for (const int32_t from : any_.touched) {
        if (graph_.is_local(from)) continue;
        for (const int32_t to : graph_.planes[at(graph_.plane[at(from)])]) {
          const double cost = any_.sent[at(from)].best.cost + prices_.way(from, to);
          if (far[at(to)].empty() || far[at(to)].back().second != domain)
            far[at(to)].emplace_back(cost, domain);
          else
            far[at(to)].back().first = std::min(far[at(to)].back().first, cost);
        }
      }
    }
    for (std::vector<DomainCost>& list : far) std::ranges::sort(list);
  }
  far_entries_.resize(at(sites));
  for (int32_t domain = 0; domain < domains; ++domain)
    for (const int32_t gpu : groups_.members[at(domain)])
      for_each_in(gpu, [&](double in, int32_t site) {
        if (graph_.is_local(site) || first_[at(gpu)] == kInfinity) return;
        std::vector<DomainCost>& list = far_entries_[at(site)];
        if (list.empty() || list.back().second != domain) list.emplace_back(kInfinity, domain);
        list.back().first = std::min(list.back().first, in - first_[at(gpu)]);
      });
  for (std::vector<DomainCost>& list : far_entries_) std::ranges::sort(list);
}

void TreeBound::clear(Table& table) const {
  table.touched.clear();
  ++table.now;
}

void TreeBound::send(Table& table, int32_t gpu, double share) const {
  for (int32_t p = graph_.first_port[at(gpu)]; p < graph_.first_port[at(gpu) + 1]; ++p) {
    const GpuPort& port = graph_.ports[at(p)];
    if (!port.sends) continue;
    if (table.sent_time[at(port.site)] != table.now) {
      table.sent_time[at(port.site)] = table.now;
      table.sent[at(port.site)] = {};
      table.touched.push_back(port.site);
    }
    table.sent[at(port.site)].add({prices_.out(p) + share, gpu, groups_.of[at(gpu)]});
  }
}

const TreeBound::Senders& TreeBound::arrive(Table& table, int32_t site) const {
  static const Senders kNone;
  const int32_t plane = graph_.plane[at(site)];
  if (graph_.planes[at(plane)].size() == 1)
    return table.sent_time[at(site)] == table.now ? table.sent[at(site)] : kNone;
  Senders& arrived = table.arrived[at(site)];
  if (table.time[at(site)] != table.now) {
    table.time[at(site)] = table.now;
    arrived = {};
    for (const int32_t from : table.touched)
      if (graph_.plane[at(from)] == plane)
        arrived.add(table.sent[at(from)], prices_.way(from, site));
  }
  return arrived;
}

/// The cheapest relay of the domains that are not near.
double TreeBound::far(int32_t site) const {
  if (all_near_) return kInfinity;
  for (const auto& [cost, domain] : far_[level_][at(site)])
    if (!has(is_near_, domain)) return cost;
  return kInfinity;
}

void TreeBound::find_near(const Multicast& item) {
  ++round_;
  near_.clear();
  const auto add = [&](int32_t domain) {
    if (!has(is_near_, domain)) near_.push_back(domain);
    is_near_[at(domain)] = round_;
  };
  for (const int32_t gpu : item.holders) {
    held_[at(gpu)] = round_;
    holding_[at(groups_.of[at(gpu)])] = round_;
    add(groups_.of[at(gpu)]);
  }
  for (const int32_t gpu : item.needers) {
    needed_[at(gpu)] = round_;
    needing_[at(groups_.of[at(gpu)])] = round_;
    add(groups_.of[at(gpu)]);
  }
  if (all_near_)
    for (size_t domain = 0; domain < groups_.members.size(); ++domain)
      add(static_cast<int32_t>(domain));
  level_ = static_cast<size_t>(std::bit_width(item.needers.size() - 1));
}

/// Finds e of all that are near, and the tables of who sends.
void TreeBound::iterate(const Multicast& item) {
  const auto needers = static_cast<double>(item.needers.size());
  for (const int32_t domain : near_)
    for (const int32_t gpu : groups_.members[at(domain)]) least_[at(gpu)] = first_[at(gpu)];
  const auto share = [&](int32_t gpu) {
    return is_held(gpu) || is_needed(gpu) ? 0 : least_[at(gpu)] / needers;
  };
  for (int round = 0; round <= (all_near_ ? kAllRounds : kRounds); ++round) {
    if (round > 0) {
      for (const int32_t domain : near_)
        for (const int32_t gpu : groups_.members[at(domain)]) {
          if (is_held(gpu)) continue;
          double least = kInfinity;
          for_each_in(gpu, [&](double in, int32_t site) {
            least = std::min(least, in + std::min(arrive(any_, site).without_gpu(gpu), far(site)));
          });
          least_[at(gpu)] = std::max(least_[at(gpu)], least);
        }
    }
    clear(any_);
    for (const int32_t domain : near_)
      for (const int32_t gpu : groups_.members[at(domain)])
        if (is_held(gpu) || least_[at(gpu)] < kInfinity) send(any_, gpu, share(gpu));
  }
  clear(holders_);
  for (const int32_t gpu : item.holders) send(holders_, gpu, 0);
  clear(origins_);
  for (const int32_t domain : near_)
    if (has(holding_, domain))
      for (const int32_t gpu : groups_.members[at(domain)])
        if (is_held(gpu) || least_[at(gpu)] < kInfinity) send(origins_, gpu, share(gpu));
}

double TreeBound::least(const Multicast& item) {
  if (item.needers.empty()) return 0;
  find_near(item);
  iterate(item);
  double total = 0;
  for (const int32_t gpu : item.needers) total += least_[at(gpu)];
  if (total == kInfinity) return total;
  // Beyond the excesses of single domains: into those without holders; out of holders, by where
  // the hop leads.
  bool all_hold = true;  // every domain with needers
  double from_domains = kInfinity, to_holding = kInfinity, to_others = kInfinity;
  for (const int32_t domain : near_) {
    const bool holds = has(holding_, domain), needs = has(needing_, domain);
    double excess = kInfinity, origin = kInfinity, holder = kInfinity;
    for (const int32_t gpu : groups_.members[at(domain)]) {
      if (is_held(gpu) || least_[at(gpu)] == kInfinity) continue;
      for_each_in(gpu, [&](double in, int32_t site) {
        const double above = in - least_[at(gpu)];
        const double held = arrive(holders_, site).best.cost;
        double outside = std::min(arrive(any_, site).without_domain(domain), far(site));
        if (holds) outside = std::min(outside, held);
        excess = std::min(excess, above + outside);
        origin = std::min(origin, above + arrive(origins_, site).best.cost);
        holder = std::min(holder, above + held);
      });
    }
    excess = needs ? std::max(excess, 0.0) : 0;
    total += excess;
    const auto beyond = [&](double cost) { return std::max(cost - excess, 0.0); };
    if (holder < kInfinity) {
      double& least = holds ? to_holding : to_others;
      least = std::min(least, beyond(holder));
    }
    if (holds) continue;
    all_hold = all_hold && !needs;
    if (origin < kInfinity) from_domains = std::min(from_domains, beyond(origin));
  }
  from_domains = std::min(from_domains, far_entry(origins_));
  to_others = std::min(to_others, far_entry(holders_));
  if (!all_hold) to_holding += from_domains;
  const double beyond = std::min(to_holding, to_others);
  return beyond < kInfinity ? total + beyond : total;
}

/// The least excess that a hop from one of the senders into a domain that is not near gives.
double TreeBound::far_entry(Table& table) const {
  double least = kInfinity;
  if (all_near_) return least;
  for (const int32_t from : table.touched) {
    if (graph_.is_local(from)) continue;
    for (const int32_t site : graph_.planes[at(graph_.plane[at(from)])]) {
      const auto& list = far_entries_[at(site)];
      const auto found = std::ranges::find_if(
          list, [&](const DomainCost& entry) { return !has(is_near_, entry.second); });
      if (found != list.end())
        least = std::min(least, std::max(found->first + arrive(table, site).best.cost, 0.0));
    }
  }
  return least;
}

}  // namespace refit
