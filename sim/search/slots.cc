#include "sim/search/slots.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "sim/search/slot_ring.h"
#include "sim/simulator/replay.h"

namespace refit {
namespace {

// Memory of a rank for each byte that its slots hold at a time: what has been read is then some way
// behind what is being written, and a reader that is late holds up nobody.
constexpr int64_t kRoom = 2;

/// What the slots of a rank are for.
struct SlotUse {
  int32_t writer = -1;           // step, by its place in the program
  std::vector<int32_t> readers;  // the same
};

std::vector<SlotUse> find_uses(const Program& program) {
  std::vector<SlotUse> uses(program.slots.size());
  for (int32_t s = 0; s < std::ssize(program.steps); ++s) {
    const Step& step = program.steps[static_cast<size_t>(s)];
    for (int32_t m = step.first_send; m < step.last_message; ++m) {
      const Message& message = program.messages[static_cast<size_t>(m)];
      for (int32_t p = message.first_piece; p < message.last_piece; ++p) {
        const Piece& piece = program.pieces[static_cast<size_t>(p)];
        if (piece.place != Place::kStaging) continue;
        SlotUse& use = uses[static_cast<size_t>(piece.area)];
        if (m >= step.first_recv) {
          REFIT_CHECK(use.writer < 0 || use.writer == s);
          use.writer = s;
        } else if (use.readers.empty() || use.readers.back() != s) {
          use.readers.push_back(s);
        }
      }
    }
  }
  return uses;
}

/// Adds waits to steps, given by their places. Of several on one channel the last step counts.
void add_waits(Program& program, const std::map<int32_t, std::vector<Wait>>& more) {
  std::vector<Wait> waits;
  for (int32_t s = 0; s < std::ssize(program.steps); ++s) {
    Step& step = program.steps[static_cast<size_t>(s)];
    std::map<int32_t, int32_t> last;  // by channel
    const auto add = [&](const Wait& wait) {
      if (wait.channel == step.channel) return;  // steps of a channel run in order
      const auto [it, added] = last.try_emplace(wait.channel, wait.step);
      if (!added) it->second = std::max(it->second, wait.step);
    };
    for (int32_t w = step.first_wait; w < step.last_wait; ++w)
      add(program.waits[static_cast<size_t>(w)]);
    if (const auto found = more.find(s); found != more.end())
      std::ranges::for_each(found->second, add);
    step.first_wait = static_cast<int32_t>(waits.size());
    for (const auto& [channel, id] : last) waits.push_back({channel, id});
    step.last_wait = static_cast<int32_t>(waits.size());
  }
  program.waits = std::move(waits);
}

/// The slots that one step fills and the same steps read.
struct Filling {
  int32_t step = -1;
  std::vector<size_t> slots;
  Arrival arrival;
};

/// `times`: of the steps of the program; `room`: memory that slots may use.
void place_in_program(Program& program, std::span<const NodeTimes> times, int64_t room) {
  const std::vector<SlotUse> uses = find_uses(program);
  std::map<std::pair<int32_t, std::vector<int32_t>>, Filling> by_use;
  for (size_t slot = 0; slot < uses.size(); ++slot) {
    const SlotUse& use = uses[slot];
    REFIT_CHECK(use.writer >= 0);
    const auto [found, added] = by_use.try_emplace({use.writer, use.readers});
    Filling& filling = found->second;
    filling.slots.push_back(slot);
    filling.arrival.bytes += align_slot(program.slots[slot].bytes);
    if (!added) continue;
    filling.step = use.writer;
    for (const int32_t reader : use.readers) {
      const Step& step = program.steps[static_cast<size_t>(reader)];
      filling.arrival.readers.push_back({step.channel, step.id});
      filling.arrival.last_read =
          std::max(filling.arrival.last_read, times[static_cast<size_t>(reader)].end);
    }
  }
  std::vector<Filling> fillings;
  for (auto& [use, filling] : by_use) fillings.push_back(std::move(filling));
  const auto begin_of = [&](const Filling& filling) {
    return times[static_cast<size_t>(filling.step)].begin;
  };
  std::ranges::stable_sort(fillings, {}, begin_of);

  std::multimap<double, int64_t> live;  // by the time of the last read
  int64_t held = 0, most = 0;
  for (Filling& filling : fillings) {
    for (; !live.empty() && live.begin()->first <= begin_of(filling); live.erase(live.begin()))
      held -= live.begin()->second;
    live.emplace(filling.arrival.last_read, filling.arrival.bytes);
    held += filling.arrival.bytes;
    most = std::max(most, held);
  }
  SlotRing ring(std::min(kRoom * most, std::max(most, room)));
  std::map<int32_t, std::vector<Wait>> waits;
  for (Filling& filling : fillings) {
    int64_t offset = ring.add(std::move(filling.arrival), begin_of(filling), waits[filling.step]);
    for (const size_t slot : filling.slots) {
      program.slots[slot].offset = offset;
      offset += align_slot(program.slots[slot].bytes);
    }
  }
  add_waits(program, waits);
}

}  // namespace

void place_slots(Plan& plan, const Problem& problem, int64_t staging_bytes) {
  const Replay times = replay(plan, problem.fabric, problem.cost);
  for (int32_t rank = 0; rank < std::ssize(plan.programs); ++rank) {
    Program& program = plan.programs[static_cast<size_t>(rank)];
    if (program.slots.empty()) continue;
    std::vector<NodeTimes> steps;
    for (const int32_t node : times.graph.nodes_of(rank))
      steps.push_back(times.nodes[static_cast<size_t>(node)]);
    place_in_program(program, steps, staging_bytes - staging_use(plan, rank).packing);
  }
}

}  // namespace refit
