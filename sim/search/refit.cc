// refit: our own strategy. Routes every atom over the whole model at once, each NVLink domain
// entered once, and lets gen ranks that already have an atom pass it on to other domains where the
// way out of the training side would bind.
//
// By which ranks atoms enter a domain is decided first, for whole classes of them (guide.h). Routing
// is then online load balancing against a target: with T the lower bound, a link may have carried
// the share of T that equals the share of bytes routed so far. Of the sources of an atom (holders
// first, then ranks that were brought it already) the first kind with a path on track is taken, in
// it the least loaded path, or, where domains pass on most of what enters, the pair that has most
// to do already; when none is on track, the least loaded path of all. Atoms come in a seeded random
// order, so that loads grow evenly, and large ones in slices. Then the atoms on links that ended
// above T are routed again with all others in place.
//
// Chained routing: all atoms enter the domains in one order, each from the domain before it where
// that is on track. Few pairs of ranks then carry much each, which pipelines well where one domain
// feeds many.
//
// Relays: where no path joins a holder with a needer, or the ports of a domain differ and links end
// far above T without relays, an atom may enter a domain by a rank that does not need it, or leave
// one by a rank that does not hold it (entry.h); it crosses NVLink on that side and lies in a slot
// meanwhile.
//
// Order, start-ups and channels decide on the last percents. On problems small enough several
// routings and round sizes are simulated, and the fastest plan is kept.

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <random>

#include "base/error.h"
#include "sim/search/atoms.h"
#include "sim/search/chunk.h"
#include "sim/search/entry.h"
#include "sim/search/guide.h"
#include "sim/search/load.h"
#include "sim/search/parts.h"
#include "sim/search/peers.h"
#include "sim/search/schedule.h"
#include "sim/search/spread.h"
#include "sim/search/strategies.h"
#include "sim/search/trials.h"

namespace refit {
namespace {

constexpr int64_t kSlices = 100;  // an item is at most this part of what enters by a rank
constexpr double kSlack =
    0.02;  // of T: how far off track a path may be before another kind of source is tried
constexpr double kOverload = 0.002;  // of T: above it a link's atoms are routed again
constexpr int kRepairPasses = 3;
constexpr double kUneven = 1.05;  // of T: links above it without relays are worth a try with them
constexpr double kRelaysWin = 0.97;
constexpr int64_t kFewHops = 200'000;  // simple routings, which may have many more, are tried
constexpr double kStages = 1.01;       // of T: the same, where only the training side is uneven
constexpr double kStagesWin = 0.99;

/// Ranks that may pass on what they neither need nor hold. Where there is no way without, all may.
/// kOffTrack: beside holders only, where every other way is off track in the end.
enum class Relays : uint8_t { kNone, kOfReceivers, kOfBothSides, kOffTrack };

class RefitRouter {
 public:
  /// `target`: T, seconds.
  RefitRouter(const Problem& problem, double target, uint64_t seed, bool chained, Relays relays)
      : problem_(problem),
        load_(problem),
        random_(seed),
        chained_(chained),
        relays_(relays),
        target_(target) {}

  /// Before `run`: keep to PeerLinks with so many homes.
  void set_homes(int32_t homes) { homes_ = homes; }

  Routing run() {
    make_items();
    guide_.emplace(problem_, classes_);
    if (homes_ > 0) links_.emplace(problem_, classes_, homes_);
    concentrate_ = fans_out();
    int64_t routed = 0;
    for (const size_t index : order_) {
      Item& item = items_[index];
      track_ = target_ *
               (static_cast<double>(routed) / static_cast<double>(std::max<int64_t>(total_, 1)) +
                kSlack);
      route_item(item);
      routed += item.bytes * class_of(item).copies;
    }
    for (int pass = 0; pass < kRepairPasses && repair(); ++pass) {
    }
    return write();
  }

  /// Load of the fullest link, of T.
  double peak() const { return target_ > 0 ? load_.peak() / target_ : 0; }

  const std::vector<EntryGuide::Class>& classes() const { return classes_; }

 private:
  /// A hop of an item: `parent` counts within the item.
  struct ItemHop {
    int32_t from, to, parent;
    bool staged = false;
  };
  /// An atom, or a slice of one, of one tensor.
  struct Item {
    int32_t tensor;
    Box box;
    int32_t of_class;
    int64_t bytes;
    std::vector<ItemHop> hops;
    std::vector<std::pair<int32_t, int32_t>> entries;  // domain and rank, of the guide
  };
  using Class = EntryGuide::Class;

  const Class& class_of(const Item& item) const {
    return classes_[static_cast<size_t>(item.of_class)];
  }

  void make_items() {
    std::map<std::pair<int32_t, std::vector<int32_t>>, int32_t> known;
    std::vector<Item> atoms;
    int64_t entering = 0;  // bytes, over all domains
    for_each_atom(
        problem_, [&](int32_t tensor, const Atom& atom, const auto& remote, const auto& local) {
          for (const int32_t rank : local) copies_.push_back({tensor, atom.box, rank});
          if (remote.empty()) return;
          const auto [found, added] =
              known.try_emplace({atom.holders, remote}, static_cast<int32_t>(classes_.size()));
          if (added) add_class(atom.holders, remote);
          Class& its_class = classes_[static_cast<size_t>(found->second)];
          const int64_t size = box_bytes(problem_, tensor, atom.box);
          its_class.bytes += size;
          entering += size * std::ssize(its_class.needers);
          total_ += size * std::ssize(remote);
          atoms.push_back({tensor, atom.box, found->second, size, {}, {}});
        });
    const int64_t ranks = std::max<int64_t>(std::ssize(problem_.gen.ranks), 1);
    const int64_t largest = std::max<int64_t>(entering / ranks / kSlices, kSmallestStripe);
    for (const Item& atom : atoms) {
      const auto slices =
          static_cast<int32_t>(std::min<int64_t>((atom.bytes + largest - 1) / largest, 1 << 20));
      for (const Box& box : slice_box(atom.box, slices, is_four_bit(atom.tensor))) {
        const int64_t bytes = box_bytes(problem_, atom.tensor, box);
        items_.push_back({atom.tensor, box, atom.of_class, bytes, {}, {}});
      }
    }
    order_.resize(items_.size());
    std::iota(order_.begin(), order_.end(), size_t{0});
    for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random_() % i]);
  }

  void add_class(int32_t holders, const std::vector<int32_t>& remote) {
    Class& added = classes_.emplace_back();
    added.holders = problem_.demand.rank_sets[static_cast<size_t>(holders)];
    added.copies = std::ssize(remote);
    for (const int32_t rank : remote) added.needers[load_.domain(rank)].push_back(rank);
  }

  /// Do domains pass on most of what enters them? Then pairs of ranks may carry what they like.
  bool fans_out() const {
    double entering = 0, inside = 0;
    for (const Class& c : classes_) {
      entering += static_cast<double>(c.bytes) * static_cast<double>(c.needers.size());
      inside +=
          static_cast<double>(c.bytes) * static_cast<double>(c.copies - std::ssize(c.needers));
    }
    return inside > entering;
  }

  bool is_four_bit(int32_t tensor) const {
    return dtype_bits(problem_.model.tensors[static_cast<size_t>(tensor)].dtype) == 4;
  }

  /// Returns its number in the item.
  int32_t add_hop(Item& item, int32_t from, int32_t to, int32_t parent, bool staged = false) {
    item.hops.push_back({from, to, parent, staged});
    load_.add(from, to, item.bytes);
    return static_cast<int32_t>(item.hops.size()) - 1;
  }

  void route_item(Item& item) {
    const Class& its_class = class_of(item);
    // In random order, since those that come first may have to pass it on.
    std::vector<int32_t> domains;
    for (const auto& [domain, needers] : its_class.needers) domains.push_back(domain);
    if (!chained_) {
      for (size_t i = domains.size(); i > 1; --i) std::swap(domains[i - 1], domains[random_() % i]);
    }
    if (links_) {
      std::ranges::stable_sort(domains, {},
                               [&](int32_t domain) { return links_->wave(item.of_class, domain); });
    }
    std::vector<int32_t> entered;  // hops that brought it into a domain
    for (const int32_t domain : domains)
      enter_domain(item, its_class.needers.at(domain), domain, entered);
  }

  void enter_domain(Item& item, const std::vector<int32_t>& needers, int32_t domain,
                    std::vector<int32_t>& entered) {
    const std::vector<int32_t>& holders = class_of(item).holders;
    const int64_t size = item.bytes;
    std::vector<int32_t> inside;
    for (const int32_t holder : holders) {
      if (load_.domain(holder) == domain) inside.push_back(holder);
    }
    if (!inside.empty()) {
      for (const int32_t needer : needers)
        add_hop(item, load_.best_holder(inside, needer, size), needer, -1);
      return;
    }
    const int32_t next = guide_->take(item.of_class, domain, size);
    item.entries.emplace_back(domain, next);
    Entry entry{.peak = std::numeric_limits<double>::infinity()};
    int32_t parent = -1;
    const bool direct = (relays_ == Relays::kNone || relays_ == Relays::kOffTrack) && !links_ &&
                        load_.reached(holders, next);
    if (direct) {
      const int32_t from = load_.best_holder(holders, next, size, concentrate_ ? track_ : 0);
      entry = {.from = from, .to = next, .peak = load_.peak_with(from, next, size)};
    }
    if (direct && entry.peak > track_) {
      for (auto hop = entered.rbegin(); hop != entered.rend(); ++hop) {
        const int32_t relay = item.hops[static_cast<size_t>(*hop)].to;
        const double other = load_.peak_with(relay, next, size);
        if (other < entry.peak) {
          entry = {.from = relay, .to = next, .peak = other};
          parent = *hop;
        }
        if (chained_ && entry.peak <= track_) break;
      }
    }
    if (direct && repairs_ && relays_ == Relays::kOffTrack && entry.peak > track_) {
      const Entry fed = find_feeder(load_, holders, next, size, track_);
      if (fed.peak < entry.peak) {
        entry = fed;
        parent = -1;
      }
    }
    if (!direct) {
      std::vector<int32_t> passers;
      for (const int32_t hop : entered) passers.push_back(item.hops[static_cast<size_t>(hop)].to);
      EntryLimits limits = {.track = track_,
                            .feed = relays_ == Relays::kOfBothSides,
                            .links = links_ ? &*links_ : nullptr};
      entry = find_entry(load_, holders, passers, needers, domain, size, limits);
      if (entry.to < 0 && links_) {  // the routing then has more peers
        limits.links = nullptr;
        entry = find_entry(load_, holders, passers, needers, domain, size, limits);
      }
      const auto passer = std::ranges::find(passers, entry.from);
      if (passer != passers.end()) parent = entered[static_cast<size_t>(passer - passers.begin())];
    }
    if (entry.to < 0) load_.best_holder(holders, next, size);  // says why
    if (entry.feeder >= 0) parent = add_hop(item, entry.feeder, entry.from, -1, true);
    const int32_t hop = add_hop(item, entry.from, entry.to, parent, entry.staged);
    entered.push_back(hop);
    for (const SpreadHop& inner : spread_inside(needers, entry.to))
      add_hop(item, inner.from, inner.to, hop + 1 + inner.parent);
  }

  /// Routes again what runs over links above the target. Returns whether there was any.
  bool repair() {
    const double limit = target_ * (1 + kOverload);
    track_ = target_;
    repairs_ = true;
    bool any = false;
    for (const size_t index : order_) {
      Item& item = items_[index];
      const bool over = std::any_of(item.hops.begin(), item.hops.end(), [&](const ItemHop& hop) {
        return load_.peak_with(hop.from, hop.to, 0) > limit;
      });
      if (!over) continue;
      any = true;
      unroute(item);
      route_item(item);
    }
    return any;
  }

  void unroute(Item& item) {
    for (const ItemHop& hop : item.hops) load_.add(hop.from, hop.to, -item.bytes);
    for (const auto& [domain, entry] : item.entries)
      guide_->give_back(item.of_class, domain, entry, item.bytes);
    item.hops.clear();
    item.entries.clear();
  }

  Routing write() const {
    Routing routing;
    const auto add_box = [&](const Box& box) {
      routing.boxes.push_back(box);
      return static_cast<int32_t>(routing.boxes.size()) - 1;
    };
    for (const Copy& copy : copies_) {
      routing.hops.push_back(
          {.tensor = copy.tensor, .box = add_box(copy.box), .from = copy.rank, .to = copy.rank});
    }
    for (const Item& item : items_) {  // in order of tensors
      const auto first_hop = static_cast<int32_t>(routing.hops.size());
      const int32_t box = add_box(item.box);
      for (const ItemHop& hop : item.hops) {
        routing.hops.push_back({.tensor = item.tensor,
                                .box = box,
                                .from = hop.from,
                                .to = hop.to,
                                .parent = hop.parent < 0 ? -1 : first_hop + hop.parent,
                                .staged = hop.staged});
      }
    }
    return routing;
  }

  struct Copy {
    int32_t tensor;
    Box box;
    int32_t rank;
  };

  const Problem& problem_;
  LinkLoad load_;
  std::mt19937_64 random_;
  bool chained_;
  Relays relays_;
  double target_;
  bool repairs_ = false;      // all items have been routed once
  double track_ = 0;          // seconds a link may have by now
  bool concentrate_ = false;  // rather than spread what a rank gets over the holders
  std::vector<Class> classes_;
  std::optional<EntryGuide> guide_;
  int32_t homes_ = 0;  // 0: any pair may exchange messages
  std::optional<PeerLinks> links_;
  int64_t total_ = 0;  // bytes over all needers
  std::vector<Item> items_;
  std::vector<size_t> order_;
  std::vector<Copy> copies_;
};

/// Do ranks of one NVLink domain have NICs of different rates, or none?
bool has_uneven_domain(const Problem& problem) {
  const std::vector<PortRate> rates = port_rates(problem);
  std::map<int32_t, PortRate> of_domain;
  for (int32_t rank = 0; rank < std::ssize(rates); ++rank) {
    if (problem.gpu_of_rank[static_cast<size_t>(rank)] < 0) continue;
    const PortRate& rate = rates[static_cast<size_t>(rank)];
    const PortRate& first = of_domain.try_emplace(domain_of(problem, rank), rate).first->second;
    if (first.out != rate.out || first.in != rate.in) return true;
  }
  return false;
}

/// Routes over PeerLinks with as many homes as the bound on peers allows, and with relays beside
/// holders where there is no other way or links end far above T. `least`: peers without PeerLinks.
Routing route_few_peers(const Problem& problem, const SearchOptions& options, double target,
                        const std::vector<EntryGuide::Class>& classes, int32_t least) {
  int32_t homes = PeerLinks::most_homes(classes);
  while (homes > 1 && PeerLinks(problem, classes, homes).most_peers() > options.max_peers)
    homes /= 2;
  std::optional<Routing> best;
  double peak = 0;
  for (const Relays relays : {Relays::kOfReceivers, Relays::kOfBothSides}) {
    if (!options.relays || (best && peak <= kUneven)) break;
    RefitRouter router(problem, target, options.seed, false, relays);
    router.set_homes(homes);
    Routing routing = router.run();
    const int32_t peers = count_peers(problem, routing);
    least = std::min(least, peers);
    if (peers > options.max_peers || (best && router.peak() >= kRelaysWin * peak)) continue;
    best = std::move(routing);
    peak = router.peak();
  }
  require_peers(options, least);
  return std::move(*best);
}

}  // namespace

Plan plan_refit(const Problem& problem, const SearchOptions& options) {
  Trials trials(problem, options);
  const double target = cut_bound(problem).seconds;
  const bool is_uneven = has_uneven_domain(problem);
  Relays relays = Relays::kNone;
  RefitRouter router(problem, target, options.seed, false, relays);
  Routing balanced = router.run();
  double peak = router.peak();
  for (const Relays more : {Relays::kOfReceivers, Relays::kOfBothSides}) {
    if (peak <= kUneven || !options.relays || trials.late() || !is_uneven) break;
    RefitRouter next(problem, target, options.seed, false, more);
    Routing relayed = next.run();
    if (next.peak() >= kRelaysWin * peak) continue;
    relays = more;
    balanced = std::move(relayed);
    peak = next.peak();
  }
  if (peak > kStages && options.relays && relays == Relays::kNone && !is_uneven) {
    RefitRouter next(problem, target, options.seed, false, Relays::kOffTrack);
    Routing relayed = next.run();
    if (next.peak() < kStagesWin * peak) balanced = std::move(relayed);
  }
  const int32_t peers = options.max_peers > 0 ? count_peers(problem, balanced) : 0;
  if (peers > options.max_peers)
    balanced = route_few_peers(problem, options, target, router.classes(), peers);
  const int64_t message = busiest_port(problem, balanced).message;
  // Relays are drained more evenly by uneven rounds.
  trials.attempt(balanced,
                 {.uneven = is_uneven && std::ranges::any_of(balanced.hops, &Hop::staged)});
  if (!trials.more()) return trials.best();
  const Routing chained = RefitRouter(problem, target, options.seed, true, relays).run();
  trials.attempt(chained, {});
  Routing relayed, direct;
  if (is_joined(problem.fabric) && std::ssize(balanced.hops) < kFewHops) {
    relayed = route_relay(problem);
    direct = route_direct(problem);
    for (const Routing* routing : {&relayed, &direct}) trials.attempt(*routing, {});
  }
  for (const int64_t part : {1, 2, 4, 8, 16}) {
    for (const int32_t fan_channels : {1, 2, 0}) {
      for (const bool uneven : {true, false}) {
        const RoundTuning tuning = {message / part, uneven, fan_channels};
        trials.attempt(trials.best_routing(), tuning);
        if (part > 1) trials.attempt(chained, tuning);
      }
    }
  }
  return trials.best();
}

}  // namespace refit
