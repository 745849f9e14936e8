#include "sim/flow/multicast.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <random>

#include "base/error.h"
#include "sim/flow/symmetry.h"
#include "sim/flow/tree.h"
#include "sim/flow/tree_bound.h"

namespace refit {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRoundDown = 1 - 1e-9;  // more than sums of a million terms are off
constexpr double kFirstSharpness = 12, kLastSharpness = 1e5;
constexpr double kIdlePrice = 1e-9;  // of a link that nothing binds: to save hops all the same
constexpr double kMostExponent = 60;
constexpr size_t kBatch = 32;          // domains that the first trees reach at once
constexpr int64_t kFirstTrees = 2000;  // trees that the first pass makes, at least
constexpr int kPasses = 30;            // before the sharpness doubles, at most
constexpr double kLevelled = 0.5;    // of 1 / sharpness: what trees may cost more than they have to
constexpr int64_t kSmall = 200'000;  // GPUs times classes: each class looks at all GPUs
constexpr double kLevel = 1e-9;      // of prices: what counts as level

size_t at(int32_t index) { return static_cast<size_t>(index); }

bool is_small(const HopGraph& graph, std::span<const Multicast> items) {
  return std::ssize(graph.domains.of) * std::ssize(items) <= kSmall;
}

class FluidSolver {
 public:
  FluidSolver(const HopGraph& graph, std::span<const Multicast> items, const FluidOptions& options)
      : graph_(graph),
        items_(items),
        options_(options),
        prices_(graph),
        finder_(graph, prices_, is_small(graph, items)),
        loads_(graph.rates.size(), 0),
        trees_(items.size()),
        diff_(graph.rates.size(), 0),
        is_changed_(graph.rates.size(), 0) {}

  FluidRouting run() {
    FluidRouting result;
    result.loads = loads_;
    for (size_t i = 0; i < items_.size(); ++i)
      if (!items_[i].needers.empty() && items_[i].bytes > 0) order_.push_back(i);
    if (order_.empty()) return result;
    std::mt19937_64 random(1);
    for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random() % i]);
    reference_ = options_.at_least > 0 ? options_.at_least : plain_bound();
    if (!(reference_ > 0 && reference_ < kInfinity) || !make_first(random)) {
      result.seconds = kInfinity;
      return result;
    }
    improve();
    result.seconds = fullest();
    result.bound = best_bound_;
    result.prices = std::move(best_prices_);
    result.loads = loads_;
    for (std::vector<TreeShare>& trees : trees_)
      std::ranges::move(trees, std::back_inserter(result.shares));
    return result;
  }

 private:
  double price(int32_t link, double load) const {
    const double rate = graph_.rates[at(link)];
    const double exponent = sharpness_ * (load / (rate * reference_) - 1);
    return (std::exp(std::min(exponent, kMostExponent)) + kIdlePrice) / rate;
  }
  void set_price(int32_t link) { prices_.set(link, price(link, loads_[at(link)])); }
  void set_prices() {
    for (size_t link = 0; link < loads_.size(); ++link)
      if (graph_.rates[link] > 0) set_price(static_cast<int32_t>(link));
  }

  double fullest() const {
    double seconds = 0;
    for (size_t link = 0; link < loads_.size(); ++link)
      if (loads_[link] > 0) seconds = std::max(seconds, loads_[link] / graph_.rates[link]);
    return seconds;
  }

  /// The bound with equal shares.
  double plain_bound() const {
    std::vector<double> prices(graph_.rates.size(), 0);
    for (size_t link = 0; link < prices.size(); ++link)
      if (graph_.rates[link] > 0) prices[link] = 1 / graph_.rates[link];
    return price_bound(graph_, items_, prices);
  }

  /// Routes everything, each class on the tree that is cheapest by then, or in parts on several.
  bool make_first(std::mt19937_64& random) {
    sharpness_ = kFirstSharpness;
    set_prices();
    const auto parts = std::clamp<int64_t>(kFirstTrees / std::ssize(order_), 1, 8);
    for (int64_t part = 0; part < parts; ++part)
      for (const size_t i : order_) {
        const double bytes = items_[i].bytes / static_cast<double>(parts);
        if (!grow(items_[i], bytes, random)) return false;
        add_tree(i, bytes);
      }
    return true;
  }

  /// Routes some of a class, a batch of domains after the other, so that one tree does not load one
  /// sender with all that could come from many. The tree is in hops_.
  bool grow(const Multicast& item, double bytes, std::mt19937_64& random) {
    std::vector<size_t> first;  // needers that begin a domain
    const auto domain_of = [&](size_t n) { return graph_.domains.of[at(item.needers[n])]; };
    for (size_t n = 0; n < item.needers.size(); ++n)
      if (n == 0 || domain_of(n) != domain_of(n - 1)) first.push_back(n);
    const size_t domains = first.size(), batches = (domains + kBatch - 1) / kBatch;
    first.push_back(item.needers.size());
    const size_t turn = random() % domains;
    Multicast part = {item.holders, {}, item.bytes};
    std::vector<PortHop> tree;
    for (size_t batch = 0; batch < batches; ++batch) {
      part.needers.clear();
      for (size_t d = batch * domains / batches; d < (batch + 1) * domains / batches; ++d) {
        const size_t domain = (d + turn) % domains;
        for (size_t n = first[domain]; n < first[domain + 1]; ++n)
          if (std::ranges::find(part.holders, item.needers[n]) == part.holders.end())
            part.needers.push_back(item.needers[n]);
      }
      if (part.needers.empty()) continue;
      if (!finder_.find(part, hops_)) return false;
      add_diff(hops_, 1);
      take_diff(bytes);
      for (const PortHop& hop : hops_) part.holders.push_back(graph_.ports[at(hop.to)].gpu);
      tree.insert(tree.end(), hops_.begin(), hops_.end());
    }
    std::swap(hops_, tree);
    return true;
  }

  void improve() {
    const std::vector<int32_t> colours = colour_links(graph_, items_);
    for (; sharpness_ <= kLastSharpness; sharpness_ *= 2) {
      for (int pass = 0; pass < kPasses; ++pass) {
        reference_ = fullest();
        if (done(reference_)) return;
        if (finder_.work() > options_.work) return try_prices(colours);
        set_prices();
        double paid = 0, saved = 0;
        for (const size_t i : order_) level(i, paid, saved);
        if (saved * sharpness_ < paid * kLevelled) break;
      }
      const double now = fullest();
      if (done(now)) return;
      try_prices(colours);
      if (done(now)) return;
    }
  }

  bool done(double seconds) const {
    const double bound = std::max(best_bound_, options_.at_least);
    return seconds <= bound * (1 + options_.gap);
  }

  /// The bound with the prices as they are, and with their means over links of one colour.
  void try_prices(const std::vector<int32_t>& colours) {
    std::vector<double> prices(loads_.size(), 0);
    for (size_t link = 0; link < prices.size(); ++link)
      if (graph_.rates[link] > 0) prices[link] = price(static_cast<int32_t>(link), loads_[link]);
    keep_bound(prices);
    std::vector<double> sum(loads_.size(), 0), count(loads_.size(), 0);
    for (size_t link = 0; link < prices.size(); ++link) {
      sum[at(colours[link])] += prices[link];
      ++count[at(colours[link])];
    }
    for (size_t link = 0; link < prices.size(); ++link)
      prices[link] = sum[at(colours[link])] / count[at(colours[link])];
    keep_bound(prices);
  }

  void keep_bound(const std::vector<double>& prices) {
    const double bound = price_bound(graph_, items_, prices);
    if (!(bound > best_bound_) || bound == kInfinity) return;
    best_bound_ = bound;
    best_prices_ = prices;
    double weight = 0;
    for (size_t link = 0; link < prices.size(); ++link) weight += prices[link] * graph_.rates[link];
    for (double& value : best_prices_) value /= weight;
  }

  /// Moves bytes of a class from its dearest tree to the cheapest there is.
  void level(size_t i, double& paid, double& saved) {
    std::vector<TreeShare>& trees = trees_[i];
    if (!finder_.find(items_[i], hops_)) hops_ = trees.front().hops;
    double best = prices_.hops(hops_);
    costs_.clear();
    size_t worst = 0;
    double worst_price = -1;
    for (size_t t = 0; t < trees.size(); ++t) {
      const double cost = costs_.emplace_back(prices_.hops(trees[t].hops));
      paid += cost * trees[t].bytes;
      if (cost > worst_price) {
        worst = t;
        worst_price = cost;
      }
      if (cost < best * (1 + kLevel)) {
        best = cost;
        hops_ = trees[t].hops;
      }
    }
    for (size_t t = 0; t < trees.size(); ++t) saved += (costs_[t] - best) * trees[t].bytes;
    if (best >= worst_price * (1 - kLevel)) return;
    add_diff(hops_, 1);
    add_diff(trees[worst].hops, -1);
    const double moved = find_step(trees[worst].bytes);
    take_diff(moved);
    if (moved >= trees[worst].bytes)
      trees.erase(trees.begin() + static_cast<ptrdiff_t>(worst));
    else
      trees[worst].bytes -= moved;
    add_tree(i, moved);
  }

  void add_tree(size_t i, double bytes) {
    std::vector<TreeShare>& trees = trees_[i];
    const auto same = std::ranges::find(trees, hops_, &TreeShare::hops);
    if (same != trees.end())
      same->bytes += bytes;
    else
      trees.push_back({static_cast<int32_t>(i), bytes, hops_});
  }

  void add_diff(const std::vector<PortHop>& hops, double times) {
    for (const PortHop& hop : hops)
      graph_.for_each_link(hop, [&](int32_t link) {
        if (!is_changed_[at(link)]) changed_.push_back(link);
        is_changed_[at(link)] = 1;
        diff_[at(link)] += times;
      });
  }

  void take_diff(double bytes) {
    for (const int32_t link : changed_) {
      is_changed_[at(link)] = 0;
      if (diff_[at(link)] == 0) continue;
      loads_[at(link)] = std::max(0.0, loads_[at(link)] + bytes * diff_[at(link)]);
      set_price(link);
      diff_[at(link)] = 0;
    }
    changed_.clear();
  }

  /// By how many bytes to follow the difference, at most `most`: until it costs nothing any more.
  /// Newton's steps alternate with halves, since prices are too steep for the first alone.
  double find_step(double most) {
    double low = 0, high = most, step = most;
    for (int iteration = 0; iteration < 60 && high - low > most * 1e-9; ++iteration) {
      double slope = 0, curve = 0, size = 0;
      for (const int32_t link : changed_) {
        const double times = diff_[at(link)];
        if (times == 0) continue;
        const double cost = times * price(link, loads_[at(link)] + step * times);
        slope += cost;
        size += std::abs(cost);
        curve += times * cost * sharpness_ / (graph_.rates[at(link)] * reference_);
      }
      if (slope <= 0 && step == most) return most;
      if (std::abs(slope) <= size * kLevel) break;
      (slope <= 0 ? low : high) = step;
      const double newton = step - slope / curve;
      step = iteration % 2 == 1 && newton > low && newton < high ? newton : (low + high) / 2;
    }
    return step;
  }

  const HopGraph& graph_;
  const std::span<const Multicast> items_;
  const FluidOptions options_;
  PortPrices prices_;
  TreeFinder finder_;
  std::vector<size_t> order_;                  // items that have something to move
  std::vector<double> loads_;                  // by link, bytes
  std::vector<std::vector<TreeShare>> trees_;  // by item
  double sharpness_ = 0, reference_ = 0;
  std::vector<PortHop> hops_;
  std::vector<double> costs_;     // of the trees of one item
  std::vector<double> diff_;      // by link: uses that a move adds for each byte
  std::vector<int32_t> changed_;  // links that one of the two trees has
  std::vector<char> is_changed_;
  double best_bound_ = 0;
  std::vector<double> best_prices_;
};

}  // namespace

FluidRouting route_fluid(const HopGraph& graph, std::span<const Multicast> items,
                         const FluidOptions& options) {
  return FluidSolver(graph, items, options).run();
}

double price_bound(const HopGraph& graph, std::span<const Multicast> items,
                   std::span<const double> prices) {
  REFIT_CHECK(prices.size() == graph.rates.size());
  PortPrices ports(graph);
  double weight = 0;
  for (size_t link = 0; link < prices.size(); ++link) {
    if (!(graph.rates[link] > 0)) continue;
    ports.set(static_cast<int32_t>(link), prices[link]);
    weight += prices[link] * graph.rates[link];
  }
  if (!(weight > 0)) return 0;
  const bool small = is_small(graph, items);
  TreeBound bound(graph, ports, graph.domains, small);
  std::optional<TreeBound> by_rails;
  if (small && graph.rails.members.size() > 1) by_rails.emplace(graph, ports, graph.rails, true);
  double total = 0;
  for (const Multicast& item : items) {
    if (!(item.bytes > 0)) continue;
    double least = bound.least(item);
    if (by_rails) least = std::max(least, by_rails->least(item));
    total += item.bytes * least;
  }
  return total / weight * kRoundDown;
}

}  // namespace refit
