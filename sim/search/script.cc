#include "sim/search/script.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"
#include "sim/search/builder.h"
#include "sim/search/chunk.h"
#include "sim/search/colouring.h"
#include "sim/search/fit.h"
#include "sim/simulator/host_work.h"

namespace refit {
namespace {

constexpr int64_t kMostMoves = int64_t{4} << 20;  // a plan file of about 1 GiB

class ScriptPlanner {
 public:
  ScriptPlanner(const Problem& problem, const Script& script, int64_t message)
      : problem_(problem),
        script_(script),
        message_(message),
        plan_(make_frame(problem)),
        builder_(problem, &plan_),
        last_(plan_.ranks.size(), std::vector<int32_t>(kMaxChannels, -1)),
        waited_(plan_.ranks.size(), std::vector<bool>(kMaxChannels, false)) {}

  Plan run() {
    for (const StagedBox& slot : script_.slots) {
      const Dtype dtype = problem_.model.tensors[static_cast<size_t>(slot.tensor)].dtype;
      slots_.push_back(builder_.add_slot(slot.rank, slot.tensor, slot.box, slot.offset,
                                         dtype_bytes(dtype, slot.box.volume())));
    }
    std::vector<int32_t> order(script_.moves.size());
    std::iota(order.begin(), order.end(), 0);
    const auto turn = [&](int32_t move) {
      const Turn t = script_.moves[static_cast<size_t>(move)].turn;
      return std::pair(t.lane, t.batch);
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return turn(a) < turn(b); });
    for (size_t i = 0; i < order.size();) {
      const auto [lane, batch] = turn(order[i]);
      if (lane >= std::ssize(plan_.channels)) {
        REFIT_CHECK(lane < kMaxChannels);
        plan_.channels.resize(static_cast<size_t>(lane) + 1);
        step_ = 0;
      }
      Pairs pairs;
      for (; i < order.size() && turn(order[i]) == std::pair(lane, batch); ++i) {
        const Move& move = script_.moves[static_cast<size_t>(order[i])];
        pairs[{move.from, move.to}].push_back(order[i]);
      }
      first_step_[{lane, batch}] = step_;
      add_batch(lane, pairs);
    }
    add_host_work();
    builder_.finish();
    return std::move(plan_);
  }

 private:
  struct Part {
    int32_t move;
    Box box;
  };
  using Pairs = std::map<std::pair<int32_t, int32_t>, std::vector<int32_t>>;

  /// The moves of a pair in messages of at most about message_ bytes, cut at rows.
  std::vector<std::vector<Part>> cut_messages(const std::vector<int32_t>& moves) const {
    std::vector<std::vector<Part>> messages(1);
    int64_t room = message_;
    for (const int32_t index : moves) {
      const Move& move = script_.moves[static_cast<size_t>(index)];
      const Dtype dtype = problem_.model.tensors[static_cast<size_t>(move.tensor)].dtype;
      const int64_t bits = dtype_bits(dtype);
      std::vector<Box> todo = {move.box};
      while (!todo.empty()) {
        const Box box = todo.back();
        todo.pop_back();
        if (room < message_ / 64) {
          messages.emplace_back();
          room = message_;
        }
        if (const int64_t bytes = dtype_bytes(dtype, box.volume()); bytes <= room) {
          messages.back().push_back({index, box});
          room -= bytes;
          continue;
        }
        const Cutting cutting = cut_box(box, room * 8 / bits, bits == 4);
        for (const Box& taken : cutting.taken) {
          messages.back().push_back({index, taken});
          room -= dtype_bytes(dtype, taken.volume());
        }
        todo.insert(todo.end(), cutting.left.rbegin(), cutting.left.rend());
      }
    }
    return messages;
  }

  void add_batch(int32_t lane, const Pairs& pairs) {
    struct Sending {
      PortPair pair;
      std::vector<Part> parts;
    };
    std::vector<std::vector<Sending>> rounds;
    for (const auto& [pair, moves] : pairs) {
      auto messages = cut_messages(moves);
      if (rounds.size() < messages.size()) rounds.resize(messages.size());
      for (size_t m = 0; m < messages.size(); ++m) {
        rounds[m].push_back({{pair.first, pair.second}, std::move(messages[m])});
      }
    }
    for (const auto& round : rounds) {
      std::vector<PortPair> edges;
      for (const Sending& sending : round) edges.push_back(sending.pair);
      const std::vector<int32_t> colours = colour_edges(edges);
      int32_t end = step_;
      for (size_t e = 0; e < edges.size(); ++e) {
        const int32_t at = step_ + colours[e] / kMaxPeersPerStep;
        end = std::max(end, at + 1);
        for (const Part& part : round[e].parts) add_part(lane, at, part);
        follow_bulk(lane, at, edges[e].from);
        follow_bulk(lane, at, edges[e].to);
      }
      step_ = end;
    }
  }

  void add_part(int32_t lane, int32_t step, const Part& part) {
    const Move& move = script_.moves[static_cast<size_t>(part.move)];
    const auto slot = [&](int32_t index) -> Spot {
      return {Place::kStaging, slots_[static_cast<size_t>(index)]};
    };
    const auto shard = [&](Side side, int32_t rank) -> Spot {
      return {side == Side::kTrain ? Place::kTrain : Place::kGen,
              builder_.shard_with(side, move.tensor, rank, part.box)};
    };
    const Spot source =
        move.source == Place::kStaging
            ? slot(move.source_slot)
            : shard(move.source == Place::kTrain ? Side::kTrain : Side::kGen, move.from);
    const Spot target = move.target_slot >= 0 ? slot(move.target_slot) : shard(Side::kGen, move.to);
    builder_.add_piece(lane, step, move.from, move.to, move.tensor, part.box, source, target);
  }

  /// Keeps the order of bulk and what follows it, and remembers the last step of a rank.
  void follow_bulk(int32_t lane, int32_t step, int32_t rank) {
    auto& last = last_[static_cast<size_t>(rank)];
    last[static_cast<size_t>(lane)] = std::max(last[static_cast<size_t>(lane)], step);
    if (lane < script_.bulk_lanes || script_.bulk_lanes == 0) return;
    // Steps of a batch are not made in order: the wait stands at each that may be the first.
    auto waited = waited_[static_cast<size_t>(rank)].begin() + lane;
    if (*waited && step > first_wait_[{rank, lane}]) return;
    *waited = true;
    first_wait_[{rank, lane}] = step;
    for (int32_t bulk = 0; bulk < script_.bulk_lanes; ++bulk) {
      const int32_t on = last[static_cast<size_t>(bulk)];
      if (on >= 0) builder_.add_wait(rank, lane, step, {bulk, on});
    }
  }

  void add_host_work() {
    std::vector<HostWork> work;
    for (const HostBatch& host : script_.host) {
      // Before the first batch from there on in which anything moves.
      const auto it = first_step_.lower_bound({host.turn.lane, host.turn.batch});
      if (it == first_step_.end() || it->first.first != host.turn.lane) continue;
      work.push_back({host.turn.lane, it->second, host.parameters, host.calls});
    }
    add_host_input(plan_, std::move(work));
  }

  const Problem& problem_;
  const Script& script_;
  int64_t message_;
  Plan plan_;
  Builder builder_;
  std::vector<int32_t> slots_;                                 // index on the slot's rank
  int32_t step_ = 0;                                           // next of the current lane
  std::map<std::pair<int32_t, int32_t>, int32_t> first_step_;  // (lane, batch)
  std::vector<std::vector<int32_t>> last_;                     // rank, lane
  std::vector<std::vector<bool>> waited_;                      // rank, lane
  std::map<std::pair<int32_t, int32_t>, int32_t> first_wait_;  // (rank, lane): step
};

}  // namespace

Plan plan_script(const Problem& problem, const Script& script, int64_t message) {
  return ScriptPlanner(problem, script, message).run();
}

Plan fit_script(const Problem& problem, const SearchOptions& options, int64_t largest,
                const std::function<Script(int64_t message)>& make) {
  return fit_staging(options, largest, [&](int64_t message) {
    const Script script = make(message);
    if (std::ssize(script.moves) > kMostMoves) {
      throw Error(fmt::format("{}: found {} transfers, expected at most {} in a plan",
                              options.strategy, script.moves.size(), kMostMoves),
                  ErrorKind::kWork);
    }
    return plan_script(problem, script, message);
  });
}

}  // namespace refit
