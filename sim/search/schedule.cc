#include "sim/search/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "sim/cost/nccl.h"
#include "sim/search/builder.h"
#include "sim/search/colouring.h"
#include "sim/search/fan_out.h"
#include "sim/search/fit.h"
#include "sim/search/parts.h"
#include "sim/search/rounds.h"
#include "sim/search/slots.h"

namespace refit {
namespace {

constexpr int64_t kLargestMessage = int64_t{24} << 20;
constexpr int64_t kRoundsWanted =
    128;  // at the busiest port: a round more or less at the end is 1 %
constexpr int64_t kMessageSteps = 32;   // sizes that are tried, up to twice the least
constexpr double kRagged = 0.125;       // of the time of what is left over, that it takes more
constexpr int64_t kWindowMessages = 4;  // bytes a relay is fed in one window, in messages
constexpr double kAtEase = 0.5;         // of the network's seconds: a fan-out is fast enough
constexpr double kBusy = 0.7;           // and above it needs two channels
constexpr double kGain = 0.95;          // a larger message has to be faster by this
constexpr int64_t kGridPart = 4;     // of all bytes: what goes on in two steps is worth a channel
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
    HopSlots& slots = slots_[hop];
    const size_t count = slots.boxes.size();
    for (size_t i = 0; i < count; ++i, ++slots.last) {  // parts come in order, mostly
      const auto& [whole, slot] = slots.boxes[slots.last % count];
      if (contains(whole, box)) return slot;
    }
    const Hop& to = routing_.hops[static_cast<size_t>(hop)];
    const int64_t bytes = box_bytes(problem_, to.tensor, box);
    slots.boxes.emplace_back(box, builder_.add_slot(to.to, to.tensor, box, 0, bytes));
    slots.last = count;
    return slots.boxes.back().second;
  }

  const Problem& problem_;
  const Routing& routing_;
  Builder& builder_;
  struct HopSlots {
    std::vector<std::pair<Box, int32_t>> boxes;
    size_t last = 0;  // found
  };
  std::unordered_map<int32_t, HopSlots> slots_;  // by hop
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

  /// Has what goes on in two steps a channel for the first of them?
  bool has_grid_lane() const { return has_grids_ && tuning_.fan_channels > 0; }

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
      if (h.parent >= 0 && is_inside(h.parent) && !is_inside(i)) {
        REFIT_CHECK(hop(h.parent).staged && hop(h.parent).parent < 0);
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
    find_reach();
    // What many wait for leaves first: its fan-out then ends early, and later windows have few
    // peers.
    const auto waiting = [&](int32_t i) {
      const auto index = static_cast<size_t>(i);
      return std::pair(net_children_[index].size(), reach_[index]);
    };
    std::stable_sort(network_.begin(), network_.end(),
                     [&](int32_t x, int32_t y) { return waiting(x) > waiting(y); });
  }

  /// To how many ranks of its domain a hop goes on, and whether most go by two steps.
  void find_reach() {
    reach_.resize(routing_.hops.size());
    for (size_t i = reach_.size(); i-- > 0;) {  // parents come first
      for (const int32_t child : inner_children_[i])
        reach_[i] += 1 + reach_[static_cast<size_t>(child)];
    }
    int64_t wide = 0, all = 0;
    for (const int32_t i : network_) {
      const int64_t bytes =
          box_bytes(problem_, hop(i).tensor, routing_.boxes[static_cast<size_t>(hop(i).box)]);
      all += bytes;
      if (reach_[static_cast<size_t>(i)] > kMaxPeersPerStep) wide += bytes;
    }
    has_grids_ = wide > all / kGridPart;
  }

  /// Feeds and fan-out may share a channel where no domain has both.
  void find_feeds() {
    std::set<int32_t> feeding, fanning;
    for (int32_t i = 0; i < std::ssize(routing_.hops); ++i) {
      if (!inner_children_[static_cast<size_t>(i)].empty())
        fanning.insert(domain_of(problem_, hop(i).to));
      const int32_t parent = hop(i).parent;
      if (parent >= 0 && is_inside(parent) && !is_inside(i))
        feeding.insert(domain_of(problem_, hop(parent).to));
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
                    (has_grid_lane() ? 1 : 0) -
                    (direct_.empty() && copies_.empty() && !has_feed_lane() ? 0 : 1);
    for (int32_t c = 0; c < net_channels_; ++c) add_channel(Lane::kNet);
    const RoundShape shape{tuning_.message, net_channels_, tuning_.uneven};
    // What many ranks of a domain need first, so that they pass it on together.
    const auto narrow = std::stable_partition(network_.begin(), network_.end(), [&](int32_t i) {
      return reach_[static_cast<size_t>(i)] > kMaxPeersPerStep;
    });
    int32_t rounds = 0;
    for (const auto& [begin, end] :
         {std::pair(network_.begin(), narrow), std::pair(narrow, network_.end())}) {
      const int32_t before = rounds;
      for (const RoundPart& packed :
           pack_rounds(problem_, routing_, std::span(begin, end), net_children_, shape)) {
        add_packed(packed, before);
        rounds = std::max(rounds, before + packed.round + 1);
      }
    }
  }

  /// A part of a round, and what it brings to be passed on; rounds are counted from `before`.
  void add_packed(const RoundPart& packed, int32_t before) {
    const HopPart& part = packed.part;
    const int32_t round = before + packed.round;
    const Wait at = step_of(round);
    add_part(builder_, spots_, routing_, at.channel, at.step, part);
    if (packed.after >= 0) wait_for(hop(part.hop).from, at, step_of(before + packed.after));
    const int32_t parent = hop(part.hop).parent;
    if (parent >= 0 && is_inside(parent)) {
      feed_.push_back({{parent, part.box}, round});
      std::vector<int32_t>& rounds = fed_rounds_[hop(part.hop).from];
      if (rounds.empty() || rounds.back() != round) rounds.push_back(round);
    }
    const auto index = static_cast<size_t>(part.hop);
    for (const int32_t child : inner_children_[index])
      fan_out_.push_back({{child, part.box}, round, reach_[index]});
  }

  Wait step_of(int32_t round) const { return {round % net_channels_, round * kGap}; }

  /// Steps of one channel run in order: only others have to be waited for.
  void wait_for(int32_t rank, Wait step, Wait on) {
    if (on.channel != step.channel) builder_.add_wait(rank, step.channel, step.step, on);
  }

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
      lane.step = send_pairs(lane, pairs, [&](const Brought& fed, Wait at) {
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
    std::vector<int32_t> lanes;
    for (int32_t c = 0; c < tuning_.fan_channels; ++c) lanes.push_back(add_channel(Lane::kNvlink));
    const int32_t grid_lane = has_grid_lane() ? add_channel(Lane::kNvlink) : -1;
    const FanOutShape shape{tuning_.fan_message, tuning_.fan_peers};
    std::map<std::pair<int32_t, int32_t>, int32_t> used;  // by domain and round: steps after it
    std::vector<Wait> begun;                              // by step
    for (const FanOutStep& step :
         pack_fan_out(problem_, routing_, fan_out_, inner_children_, shape)) {
      const auto next = static_cast<int32_t>(begun.size());
      const int32_t domain = domain_of(problem_, hop(step.parts.front().part.hop).to);
      Wait at;
      if (lanes.empty()) {
        int32_t round = step.round;
        while (used[{domain, round}] == kGap - 1) round += net_channels_;
        at = step_of(round);
        at.step += ++used[{domain, round}];
      } else {
        at = {lanes[static_cast<size_t>(next) % lanes.size()], next};
        if (step.goes_on && grid_lane >= 0) at.channel = grid_lane;
      }
      begun.push_back(at);
      for (const Brought& brought : step.parts) {
        add_part(builder_, spots_, routing_, at.channel, at.step, brought.part);
        wait_for(
            hop(brought.part.hop).from, at,
            brought.step < 0 ? step_of(brought.round) : begun[static_cast<size_t>(brought.step)]);
      }
    }
  }

  /// What a rank has for another, in the order of rounds.
  struct PairPart {
    std::vector<Brought> parts;
    int64_t bytes = 0;
  };
  using PairParts = std::map<std::pair<int32_t, int32_t>, PairPart>;

  /// Returns the bytes that the part's pair has now.
  int64_t add_beside(PairParts& pairs, const Brought& beside) const {
    const Hop& h = hop(beside.part.hop);
    PairPart& pair = pairs[{h.from, h.to}];
    pair.parts.push_back(beside);
    return pair.bytes += box_bytes(problem_, h.tensor, beside.part.box);
  }

  /// A message for every pair. Calls add_wait(part, step) for every part. Returns the step after
  /// them.
  template <typename AddWait>
  int32_t send_pairs(Wait begin, const PairParts& pairs, AddWait add_wait) {
    std::vector<PortPair> edges;
    for (const auto& [ranks, pair] : pairs) edges.push_back({ranks.first, ranks.second});
    const std::vector<int32_t> colours = colour_edges(edges);
    int32_t end = begin.step;
    size_t edge = 0;
    for (const auto& [ranks, pair] : pairs) {
      const Wait at{begin.channel, begin.step + colours[edge++] / kMaxPeersPerStep};
      end = std::max(end, at.step + 1);
      for (const Brought& fed : pair.parts) {
        add_part(builder_, spots_, routing_, at.channel, at.step, fed.part);
        add_wait(fed, at);
      }
    }
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
  std::vector<int32_t> reach_;  // by hop: ranks of its domain to which it goes on
  std::vector<int32_t> network_, direct_, copies_;
  int32_t net_channels_ = 0;  // channels 0 .. net_channels_ - 1
  bool has_grids_ = false;
  bool is_fed_ = false, shares_lane_ = false;
  std::map<int32_t, std::vector<int32_t>> fed_rounds_;  // by relay
  std::vector<Brought> feed_, fan_out_;                 // in order of rounds
  Wait direct_begin_;                                   // with feeds: behind them
};

}  // namespace

namespace {

/// Seconds from the end of a message over the network to the first byte of the next on its lane.
double seconds_between(const Problem& problem, int64_t message) {
  const CostModel& cost = problem.cost;
  double seconds = cost.net.step_start + cost.net.message_start + 2 * cost.copy_start;
  const double rate = rate_of(problem, LinkKind::kNic);
  if (cost.nccl.channels > 0 && rate > 0) {
    const auto ranks = static_cast<int32_t>(problem.gpu_of_rank.size());
    const Communicator all{.ranks = ranks, .network = true};
    seconds += shape_message(cost.nccl, all, LinkKind::kNic, message, 1, rate).fill_s;
  }
  return seconds;
}

/// The size of rounds for what pairs of ranks send over the network. Small enough for many rounds,
/// so that the last ones take little; large, because in dense traffic what passes between two
/// messages of a lane is lost to its port when the lanes of its peers are busy meanwhile; and one
/// of which the pairs have whole multiples, for what is left over goes in rounds that are less full.
/// Ports with a single peer stay in step with it and lose nothing.
int64_t best_message(const Problem& problem, const PortLoad& load,
                     const std::map<std::pair<int32_t, int32_t>, int64_t>& pairs) {
  const int64_t least = std::clamp(load.network / kRoundsWanted, int64_t{1} << 20, kLargestMessage);
  std::set<int32_t> senders, receivers;
  for (const auto& [pair, bytes] : pairs) {
    senders.insert(pair.first);
    receivers.insert(pair.second);
  }
  const auto ratio = [](size_t a, size_t b) {
    return static_cast<double>(a) / static_cast<double>(b);
  };
  const double lone = ratio(std::max(senders.size(), receivers.size()), pairs.size());
  // Rounds in which every receiver gets a message: only then is there enough to pass on.
  const double cycle =
      load.fan_out == 0 ? 1 : std::max(1.0, ratio(receivers.size(), senders.size()));
  int64_t best = least;
  double best_loss = std::numeric_limits<double>::infinity();
  for (int64_t step = cycle > 2 ? kMessageSteps / 4 : kMessageSteps; step <= 2 * kMessageSteps;
       ++step) {
    const int64_t message = least * step / kMessageSteps;
    double over = 0, all = 0;
    for (const auto& [pair, bytes] : pairs) {
      over += static_cast<double>(bytes % message);
      all += static_cast<double>(bytes);
    }
    const double wire = static_cast<double>(message) / rate_of(problem, LinkKind::kNic);
    const double loss =
        (1 - lone) * seconds_between(problem, message) / ((kMaxChannels - 1) * wire) +
        kRagged * over / all +
        cycle * static_cast<double>(message) / static_cast<double>(load.network);
    if (loss >= best_loss) continue;
    best = message;
    best_loss = loss;
  }
  return best;
}

}  // namespace

PortLoad busiest_port(const Problem& problem, const Routing& routing) {
  // By rank: network and NVLink, out and in.
  std::vector<std::array<int64_t, 4>> ports(problem.gpu_of_rank.size());
  std::array<int64_t, 4> most{};
  std::vector<std::map<int32_t, int64_t>> passed_on(
      problem.gpu_of_rank.size());                       // by rank and peer
  std::map<std::pair<int32_t, int32_t>, int64_t> pairs;  // over the network
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
    if (inside)
      passed_on[static_cast<size_t>(hop.from)][hop.to] += bytes;
    else
      pairs[{hop.from, hop.to}] += bytes;
  }
  PortLoad load{.network = std::max(most[0], most[1]), .fan_out = std::max(most[2], most[3])};
  const double nic = rate_of(problem, LinkKind::kNic);
  if (nic > 0) load.network_s = static_cast<double>(load.network) / nic;
  const double nvlink = rate_of(problem, LinkKind::kNvlink);
  if (nvlink > 0) load.fan_out_s = static_cast<double>(load.fan_out) / nvlink;
  load.message = pairs.empty() || nic <= 0 ? kLargestMessage : best_message(problem, load, pairs);
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
  for (const int64_t rounds : {1, 2, 4}) {
    const int64_t bytes = message * rounds;
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
  int32_t fan_channels = tuning.fan_channels;
  if (fan_channels < 0) fan_channels = load.fan_out_s > kBusy * load.network_s ? 2 : 1;
  const int64_t largest = tuning.message > 0 ? tuning.message : load.message;
  const int64_t fan =
      tuning.fan_message > 0 ? tuning.fan_message : usual_fan_message(problem, load, largest);
  const bool staged = std::ranges::any_of(routing.hops, &Hop::staged);
  // Of what does not fit the fan-out becomes smaller first, down to half; but not what slots take.
  const int64_t most = load.fan_out > 0 && !staged ? 2 * largest : largest;
  return fit_staging(options, most, [&](int64_t message) {
    RoundTuning fitted = tuning;
    fitted.message = std::min(message, largest);
    fitted.fan_channels = fan_channels;
    fitted.fan_peers = load.peers;
    fitted.fan_message = std::max<int64_t>(fan * message / most, 1);
    Plan plan = RoundScheduler(problem, routing, fitted).run();
    if (staged) place_slots(plan, problem, options.staging_bytes);
    return plan;
  });
}

}  // namespace refit
