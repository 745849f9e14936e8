#include "sim/search/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "sim/cost/nccl.h"
#include "sim/search/builder.h"
#include "sim/search/colouring.h"
#include "sim/search/fit.h"
#include "sim/search/parts.h"
#include "sim/search/rounds.h"
#include "sim/search/slots.h"

namespace refit {
namespace {

constexpr int64_t kLargestMessage = int64_t{24} << 20;
constexpr int64_t kRoundsWanted =
    128;  // at the busiest port: a round more or less at the end is 1 %
constexpr int64_t kWindowMessages = 4;  // bytes a relay is fed in one window, in messages
constexpr double kAtEase = 0.5;         // of the network's seconds: a fan-out is fast enough
constexpr double kGain = 0.95;          // a larger message has to be faster by this
constexpr int64_t kOneSize = 2;         // messages of a fan-out step differ by this factor at most
constexpr int64_t kRipe = 4;         // a pair waits with less than this part of a fan-out message
constexpr int32_t kDirectGroup = 4;  // colours per step on NVLink
constexpr int32_t kFeedAhead = 2;    // turns of the network channels that a feed may be early
constexpr int32_t kGap = 64;  // step ids from round to round, for the fan-out steps between them

/// Sizes of the messages that carry a load: full ones, and before them what is left over.
std::vector<int64_t> message_sizes(int64_t bytes, int64_t message) {
  std::vector<int64_t> sizes(static_cast<size_t>(bytes / message), message);
  if (bytes % message != 0) sizes.insert(sizes.begin(), bytes % message);
  return sizes;
}

/// Where a part of a hop is read and written.
class Spots {
 public:
  Spots(const Problem& problem, const Routing& routing, Builder& builder)
      : problem_(problem), routing_(routing), builder_(builder) {}

  Spot source(const HopPart& part) {
    const Hop& hop = routing_.hops[static_cast<size_t>(part.hop)];
    const bool held = hop.parent < 0;
    if (!held && routing_.hops[static_cast<size_t>(hop.parent)].staged)
      return {Place::kStaging, slot_with(hop.parent, part.box)};
    return {held ? Place::kTrain : Place::kGen,
            builder_.shard_with(held ? Side::kTrain : Side::kGen, hop.tensor, hop.from, part.box)};
  }
  Spot target(const HopPart& part) {
    const Hop& hop = routing_.hops[static_cast<size_t>(part.hop)];
    if (hop.staged) return {Place::kStaging, slot_with(part.hop, part.box)};
    return {Place::kGen, builder_.shard_with(Side::kGen, hop.tensor, hop.to, part.box)};
  }

 private:
  /// The slot in which a staged hop leaves a box, a new one where there is none.
  int32_t slot_with(int32_t hop, const Box& box) {
    std::vector<std::pair<Box, int32_t>>& slots = slots_[hop];
    for (const auto& [whole, slot] : slots)
      if (contains(whole, box)) return slot;
    const Hop& to = routing_.hops[static_cast<size_t>(hop)];
    const int64_t bytes = box_bytes(problem_, to.tensor, box);
    slots.emplace_back(box, builder_.add_slot(to.to, to.tensor, box, 0, bytes));
    return slots.back().second;
  }

  const Problem& problem_;
  const Routing& routing_;
  Builder& builder_;
  std::map<int32_t, std::vector<std::pair<Box, int32_t>>> slots_;  // by hop
};

void add_part(Builder& builder, Spots& spots, const Routing& routing, int32_t channel, int32_t step,
              const HopPart& part) {
  const Hop& hop = routing.hops[static_cast<size_t>(part.hop)];
  builder.add_piece(channel, step, hop.from, hop.to, hop.tensor, part.box, spots.source(part),
                    spots.target(part));
}

class RoundScheduler {
 public:
  RoundScheduler(const Problem& problem, const Routing& routing, RoundTuning tuning)
      : problem_(problem),
        routing_(routing),
        tuning_(tuning),
        plan_(make_frame(problem)),
        builder_(problem, &plan_),
        spots_(problem, routing, builder_) {}

  Plan run() {
    sort_hops();
    schedule_network();
    schedule_feed();
    schedule_fan_out();
    schedule_direct();
    builder_.finish();
    return std::move(plan_);
  }

 private:
  const Hop& hop(int32_t index) const { return routing_.hops[static_cast<size_t>(index)]; }

  bool has_feed_lane() const { return is_fed_ && !shares_lane_; }

  int32_t add_channel(Lane lane) {
    plan_.channels.push_back({lane});
    return static_cast<int32_t>(plan_.channels.size()) - 1;
  }

  void sort_hops() {
    net_children_.resize(routing_.hops.size());
    inner_children_.resize(routing_.hops.size());
    for (int32_t i = 0; i < std::ssize(routing_.hops); ++i) {
      const Hop& h = hop(i);
      if (h.parent >= 0 && is_inside(h.parent)) {
        REFIT_CHECK(!is_inside(i) && hop(h.parent).staged && hop(h.parent).parent < 0);
        network_.push_back(i);
      } else if (h.parent >= 0) {
        (is_inside(i) ? inner_children_ : net_children_)[static_cast<size_t>(h.parent)].push_back(
            i);
      } else if (h.from == h.to) {
        copies_.push_back(i);
      } else if (!is_inside(i) || !h.staged) {  // staged: goes before what it feeds
        (is_inside(i) ? direct_ : network_).push_back(i);
      }
    }
    find_feeds();
    // What many wait for leaves first: its fan-out then ends early, and later windows have few
    // peers.
    const auto waiting = [&](int32_t i) {
      const auto index = static_cast<size_t>(i);
      return std::pair(net_children_[index].size(), inner_children_[index].size());
    };
    std::stable_sort(network_.begin(), network_.end(),
                     [&](int32_t x, int32_t y) { return waiting(x) > waiting(y); });
  }

  /// Feeds and fan-out may share a channel where no domain has both.
  void find_feeds() {
    std::set<int32_t> feeding, fanning;
    for (size_t i = 0; i < routing_.hops.size(); ++i) {
      if (!inner_children_[i].empty()) fanning.insert(domain_of(problem_, routing_.hops[i].to));
      const int32_t parent = routing_.hops[i].parent;
      if (parent >= 0 && is_inside(parent)) feeding.insert(domain_of(problem_, hop(parent).to));
    }
    is_fed_ = !feeding.empty();
    const bool apart =
        std::ranges::none_of(feeding, [&](int32_t domain) { return fanning.contains(domain); });
    shares_lane_ = is_fed_ && apart && !fanning.empty() && tuning_.fan_channels > 0;
  }

  bool is_inside(int32_t index) const {
    return domain_of(problem_, hop(index).from) == domain_of(problem_, hop(index).to);
  }

  /// Rounds over the network, on all channels that nothing else needs: while one starts up or
  /// packs, the others flow.
  void schedule_network() {
    if (network_.empty()) return;
    const bool fans_out = std::any_of(inner_children_.begin(), inner_children_.end(),
                                      [](const auto& list) { return !list.empty(); });
    net_channels_ = kMaxChannels - (fans_out ? tuning_.fan_channels : 0) -
                    (direct_.empty() && copies_.empty() && !has_feed_lane() ? 0 : 1);
    for (int32_t c = 0; c < net_channels_; ++c) add_channel(Lane::kNet);
    const RoundShape shape{tuning_.message, net_channels_, tuning_.uneven};
    for (const RoundPart& packed :
         pack_rounds(problem_, routing_, network_, net_children_, shape)) {
      const auto& [part, round, after] = packed;
      const Wait at = step_of(round);
      add_part(builder_, spots_, routing_, at.channel, at.step, part);
      if (after >= 0) wait_for(hop(part.hop).from, at, after);
      const int32_t parent = hop(part.hop).parent;
      if (parent >= 0 && is_inside(parent)) {
        feed_.push_back({round, {parent, part.box}});
        std::vector<int32_t>& rounds = fed_rounds_[hop(part.hop).from];
        if (rounds.empty() || rounds.back() != round) rounds.push_back(round);
      }
      for (const int32_t child : inner_children_[static_cast<size_t>(part.hop)]) {
        fan_out_.push_back({round, {child, part.box}});
      }
    }
  }

  Wait step_of(int32_t round) const { return {round % net_channels_, round * kGap}; }

  /// Steps of one channel run in order: only others have to be waited for.
  void wait_for(int32_t rank, Wait step, int32_t round) {
    const Wait on = step_of(round);
    if (on.channel != step.channel) builder_.add_wait(rank, step.channel, step.step, on);
  }

  /// Parts that go over NVLink beside rounds, in order of rounds.
  struct Beside {
    int32_t round;
    HopPart part;
  };

  /// NVLink steps that bring relays beside the holders what they send in the rounds after them, and
  /// not long before, so that it does not pile up.
  void schedule_feed() {
    if (feed_.empty()) return;
    const Lane kind = direct_.empty() && copies_.empty() ? Lane::kNvlink : Lane::kAny;
    // The first channel of the fan-out is the next.
    Wait lane{has_feed_lane() ? add_channel(kind) : static_cast<int32_t>(plan_.channels.size()), 0};
    for (size_t first = 0, last = 0; last < feed_.size(); first = last) {
      PairParts pairs;
      std::map<int32_t, int64_t> gathered;  // by sending rank
      int64_t most = 0;
      do {  // at least one round, then on while messages would stay small
        for (const int32_t round = feed_[last].round;
             last < feed_.size() && feed_[last].round == round; ++last) {
          const Hop& h = hop(feed_[last].part.hop);
          int64_t& bytes = gathered[h.from];
          bytes += box_bytes(problem_, h.tensor, feed_[last].part.box);
          most = std::max(most, bytes);
          add_beside(pairs, feed_[last]);
        }
      } while (last < feed_.size() && most < kWindowMessages * tuning_.message);
      lane.step = send_pairs(lane, pairs, [&](const Beside& fed, Wait at) {
        const int32_t relay = hop(fed.part.hop).to;
        const Wait round = step_of(fed.round);
        builder_.add_wait(relay, round.channel, round.step, at);
        const std::vector<int32_t>& rounds = fed_rounds_[relay];
        const auto sent =
            std::ranges::upper_bound(rounds, feed_[first].round - kFeedAhead * net_channels_);
        if (sent != rounds.begin())
          builder_.add_wait(relay, at.channel, at.step, step_of(*std::prev(sent)));
      });
    }
    direct_begin_ = lane;
  }

  /// NVLink steps for what the network has brought, on a channel of their own or on that of the
  /// last round, after it. Steps then wait only for rounds before them, so that there is no circle.
  void schedule_fan_out() {
    if (fan_out_.empty()) return;
    std::vector<Wait> lanes;  // the next step on every channel of its own
    for (int32_t c = 0; c < tuning_.fan_channels; ++c)
      lanes.push_back({add_channel(Lane::kNvlink), 0});
    const auto wait = [&](const Beside& brought, Wait at) {
      wait_for(hop(brought.part.hop).from, at, brought.round);
    };
    size_t turn = 0;
    PairParts waiting;
    int64_t most = 0;
    for (size_t i = 0; i < fan_out_.size(); ++i) {
      const int32_t round = fan_out_[i].round;
      most = std::max(most, add_beside(waiting, fan_out_[i]));
      const bool last = i + 1 == fan_out_.size();
      if (!last && (fan_out_[i + 1].round == round || most < tuning_.fan_message)) continue;
      most = 0;
      const PairParts ripe = take_ripe(waiting, last);
      if (lanes.empty()) {
        Wait after = step_of(round);
        ++after.step;
        send_pairs(after, ripe, wait);
      } else {
        Wait& lane = lanes[turn++ % lanes.size()];
        lane.step = send_pairs(lane, ripe, wait);
      }
    }
  }

  /// What a rank has for another, in the order of rounds.
  struct PairPart {
    std::vector<Beside> parts;
    int64_t bytes = 0;
    bool staged = false;  // some are in slots, which are to be free again soon
  };
  using PairParts = std::map<std::pair<int32_t, int32_t>, PairPart>;

  /// Returns the bytes that the part's pair has now.
  int64_t add_beside(PairParts& pairs, const Beside& beside) const {
    const Hop& h = hop(beside.part.hop);
    PairPart& pair = pairs[{h.from, h.to}];
    pair.parts.push_back(beside);
    pair.staged = pair.staged || (h.parent >= 0 && hop(h.parent).staged);
    return pair.bytes += box_bytes(problem_, h.tensor, beside.part.box);
  }

  /// Of what waits, all or the pairs with much; small messages wait until they have grown.
  PairParts take_ripe(PairParts& waiting, bool all) const {
    if (all) return std::exchange(waiting, {});
    PairParts ripe;
    for (auto pair = waiting.begin(); pair != waiting.end();) {
      const auto next = std::next(pair);
      const bool grown = pair->second.bytes >= tuning_.fan_message / kRipe;
      if (grown || pair->second.staged) ripe.insert(waiting.extract(pair));
      pair = next;
    }
    return ripe;
  }

  /// Steps if messages of all sizes go together: those of the port with the most peers.
  static int32_t fewest_steps(const PairParts& pairs) {
    std::map<int32_t, int32_t> to, from;
    int32_t most = 0;
    for (const auto& [ranks, pair] : pairs)
      most = std::max({most, ++to[ranks.first], ++from[ranks.second]});
    return (most + kMaxPeersPerStep - 1) / kMaxPeersPerStep;
  }

  /// A message for every pair, in steps with messages of about one size: large ones do not wait for
  /// small ones, unless there are too few steps before the next round of a network channel. Calls
  /// add_wait(part, step) for every part. Returns the step after them.
  template <typename AddWait>
  int32_t send_pairs(Wait begin, const PairParts& pairs, AddWait add_wait) {
    std::vector<const PairParts::value_type*> left;  // largest first
    for (const auto& pair : pairs) left.push_back(&pair);
    std::ranges::stable_sort(left, std::greater{},
                             [](const auto* pair) { return pair->second.bytes; });
    const int32_t together = fewest_steps(pairs);  // any part of the pairs takes as many at most
    int32_t end = begin.step;
    while (!left.empty()) {
      const bool fits = tuning_.fan_channels > 0 || end - begin.step + 2 * together < kGap;
      const auto apart = std::ranges::find_if(left, [&](const auto* pair) {
        return fits && pair->second.bytes < left.front()->second.bytes / kOneSize;
      });
      const std::vector<const PairParts::value_type*> alike(left.begin(), apart);
      left.erase(left.begin(), apart);
      std::vector<PortPair> edges;
      for (const auto* pair : alike) edges.push_back({pair->first.first, pair->first.second});
      const std::vector<int32_t> colours = colour_edges(edges);
      const int32_t first = end;
      for (size_t e = 0; e < alike.size(); ++e) {
        const Wait at{begin.channel, first + colours[e] / kMaxPeersPerStep};
        end = std::max(end, at.step + 1);
        for (const Beside& beside : alike[e]->second.parts) {
          add_part(builder_, spots_, routing_, at.channel, at.step, beside.part);
          add_wait(beside, at);
        }
      }
    }
    REFIT_CHECK(tuning_.fan_channels > 0 || end - begin.step < kGap);
    return end;
  }

  /// Train and gen rank in one domain, and local copies.
  void schedule_direct() {
    if (direct_.empty() && copies_.empty()) return;
    const auto [channel, begin] =
        has_feed_lane() ? direct_begin_
                        : Wait{add_channel(copies_.empty() ? Lane::kNvlink : Lane::kAny), 0};
    int32_t step = begin;
    if (!direct_.empty()) {
      const std::vector<PairLoad> pairs = group_pairs(problem_, routing_, direct_);
      std::vector<PortPair> edges;
      std::vector<std::pair<size_t, size_t>> owner;  // pair, message
      std::vector<std::vector<std::vector<HopPart>>> messages;
      for (size_t p = 0; p < pairs.size(); ++p) {
        messages.push_back(fill_messages(problem_, routing_, pairs[p],
                                         message_sizes(pairs[p].bytes, tuning_.message)));
        for (size_t m = 0; m < messages[p].size(); ++m) {
          edges.push_back({pairs[p].from, pairs[p].to});
          owner.emplace_back(p, m);
        }
      }
      const std::vector<int32_t> colours = colour_edges(edges);
      for (size_t e = 0; e < edges.size(); ++e) {
        const int32_t at = begin + colours[e] / kDirectGroup;
        step = std::max(step, at + 1);
        for (const HopPart& part : messages[owner[e].first][owner[e].second]) {
          add_part(builder_, spots_, routing_, channel, at, part);
        }
      }
    }
    for (const int32_t index : copies_) {
      add_part(builder_, spots_, routing_, channel, step,
               {index, routing_.boxes[static_cast<size_t>(hop(index).box)]});
    }
  }

  const Problem& problem_;
  const Routing& routing_;
  const RoundTuning tuning_;
  Plan plan_;
  Builder builder_;
  Spots spots_;
  std::vector<std::vector<int32_t>> net_children_, inner_children_;  // by hop
  std::vector<int32_t> network_, direct_, copies_;
  int32_t net_channels_ = 0;  // channels 0 .. net_channels_ - 1
  bool is_fed_ = false, shares_lane_ = false;
  std::map<int32_t, std::vector<int32_t>> fed_rounds_;  // by relay
  std::vector<Beside> feed_, fan_out_;
  Wait direct_begin_;  // with feeds: behind them
};

}  // namespace

PortLoad busiest_port(const Problem& problem, const Routing& routing) {
  // By rank: network and NVLink, out and in.
  std::vector<std::array<int64_t, 4>> ports(problem.gpu_of_rank.size());
  std::array<int64_t, 4> most{};
  std::vector<std::map<int32_t, int64_t>> passed_on(
      problem.gpu_of_rank.size());  // by rank and peer
  for (const Hop& hop : routing.hops) {
    if (hop.from == hop.to) continue;
    const bool inside = domain_of(problem, hop.from) == domain_of(problem, hop.to);
    if (inside && hop.parent < 0) continue;
    const int64_t bytes =
        box_bytes(problem, hop.tensor, routing.boxes[static_cast<size_t>(hop.box)]);
    const size_t port = inside ? 2 : 0;
    most[port] = std::max(most[port], ports[static_cast<size_t>(hop.from)][port] += bytes);
    most[port + 1] =
        std::max(most[port + 1], ports[static_cast<size_t>(hop.to)][port + 1] += bytes);
    if (inside) passed_on[static_cast<size_t>(hop.from)][hop.to] += bytes;
  }
  PortLoad load{.network = std::max(most[0], most[1]), .fan_out = std::max(most[2], most[3])};
  const double nic = rate_of(problem, LinkKind::kNic);
  if (nic > 0) load.network_s = static_cast<double>(load.network) / nic;
  double all = 0, alike = 0;  // over ranks: bytes, and bytes if all peers had equal parts of it
  for (const auto& peers : passed_on) {
    double sum = 0, squares = 0;
    for (const auto& [peer, bytes] : peers) {
      sum += static_cast<double>(bytes);
      squares += static_cast<double>(bytes) * static_cast<double>(bytes);
    }
    all += sum;
    if (squares > 0) alike += sum * (sum * sum / squares);
  }
  if (all > 0) load.peers = alike / all;
  return load;
}

int64_t usual_message(const PortLoad& port) {
  return std::clamp(port.network / kRoundsWanted, int64_t{1} << 20, kLargestMessage);
}

double fan_out_seconds(const Problem& problem, const PortLoad& load, int64_t message) {
  const CostModel& cost = problem.cost;
  const double port = rate_of(problem, LinkKind::kNvlink);
  if (port == 0 || load.fan_out == 0) return 0;
  const double peers = std::min<double>(load.peers, kMaxPeersPerStep);
  double rate = port;  // of a message
  if (cost.nccl.channels > 0) {
    std::map<int32_t, int32_t> ranks;  // by domain
    Communicator largest{.ranks = 2, .nvlink = true};
    for (const int32_t rank : problem.gen.ranks)
      largest.ranks = std::max(largest.ranks, ++ranks[domain_of(problem, rank)]);
    rate = shape_message(cost.nccl, largest, LinkKind::kNvlink, message,
                         static_cast<int32_t>(std::ceil(peers)), port)
               .rate;
  }
  const double step = peers * static_cast<double>(message);
  return static_cast<double>(load.fan_out) / step *
         (cost.nvlink.step_start + step / std::min(port, rate * peers));
}

int64_t usual_fan_message(const Problem& problem, const PortLoad& load, int64_t message) {
  int64_t best = message;
  double least = std::numeric_limits<double>::infinity();
  for (const int64_t halves : {1, 2, 3, 4, 6, 8}) {
    const int64_t bytes = std::max<int64_t>(message * halves / 2, 1);
    const double seconds = fan_out_seconds(problem, load, bytes);
    if (seconds <= kAtEase * load.network_s) return bytes;
    if (seconds >= kGain * least) continue;
    best = bytes;
    least = seconds;
  }
  return best;
}

Plan schedule_rounds(const Problem& problem, const Routing& routing, const SearchOptions& options,
                     const RoundTuning& tuning) {
  const PortLoad load = busiest_port(problem, routing);
  const int64_t largest = tuning.message > 0 ? tuning.message : usual_message(load);
  const int64_t fan =
      tuning.fan_message > 0 ? tuning.fan_message : usual_fan_message(problem, load, largest);
  return fit_staging(options, largest, [&](int64_t message) {
    RoundTuning fitted = tuning;
    fitted.message = message;
    fitted.fan_message = std::max<int64_t>(fan * message / largest, 1);
    Plan plan = RoundScheduler(problem, routing, fitted).run();
    if (std::ranges::any_of(routing.hops, &Hop::staged))
      place_slots(plan, problem, options.staging_bytes);
    return plan;
  });
}

}  // namespace refit
