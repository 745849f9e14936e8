// `check` against the replay of random plans and of mutants of them: it has to refuse exactly those
// that go wrong.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <tuple>

#include "plans/check.h"
#include "random_plan.h"
#include "replay.h"

namespace refit {
namespace {

size_t pick_index(Random& random, size_t size) {
  return static_cast<size_t>(pick(random, 0, static_cast<int64_t>(size) - 1));
}

// Index of the other end of the transfer.
size_t other_end(const FlatPlan& flat, size_t index) {
  const FlatEnd& end = flat.ends[index];
  for (size_t i = 0; i < flat.ends.size(); ++i) {
    const FlatEnd& other = flat.ends[i];
    if (other.sends != end.sends && other.rank == end.peer && other.peer == end.rank &&
        other.channel == end.channel && other.step == end.step) {
      return i;
    }
  }
  return index;
}

void erase_ends(FlatPlan& flat, size_t a, size_t b) {
  for (const size_t index : {std::max(a, b), std::min(a, b)}) {
    flat.ends.erase(flat.ends.begin() + static_cast<std::ptrdiff_t>(index));
  }
}

int32_t pick_channel(const FlatPlan& flat, Random& random) {
  return static_cast<int32_t>(pick_index(random, flat.frame.channels.size()));
}

// One that may exist, most of the time.
int32_t pick_step(const FlatPlan& flat, Random& random) {
  int32_t last = 0;
  for (const FlatEnd& end : flat.ends) last = std::max(last, end.step);
  const auto step = static_cast<int32_t>(pick(random, 0, last + kStepGap));
  return pick(random, 0, 3) == 0 ? step : step / kStepGap * kStepGap;
}

FlatPiece& pick_piece(FlatEnd& end, Random& random) {
  return end.pieces[pick_index(random, end.pieces.size())];
}

// Each changes one thing; some do not apply to some plans.
using Mutate = std::function<void(FlatPlan&, Random&)>;

void drop_transfer(FlatPlan& flat, Random& random) {
  const size_t end = pick_index(random, flat.ends.size());
  erase_ends(flat, end, other_end(flat, end));
}

void drop_end(FlatPlan& flat, Random& random) {
  flat.ends.erase(flat.ends.begin() + pick(random, 0, std::ssize(flat.ends) - 1));
}

void duplicate_transfer(FlatPlan& flat, Random& random) {
  const size_t end = pick_index(random, flat.ends.size());
  const int32_t channel = pick_channel(flat, random);
  const int32_t step = pick_step(flat, random);
  for (FlatEnd copy : {flat.ends[end], flat.ends[other_end(flat, end)]}) {
    copy.channel = channel;
    copy.step = step;
    flat.ends.push_back(copy);
  }
}

// The same arrivals in staging once more: harmless, if nothing is overwritten.
void duplicate_staging(FlatPlan& flat, Random& random) {
  std::vector<size_t> staged;
  for (size_t i = 0; i < flat.ends.size(); ++i) {
    const FlatEnd& end = flat.ends[i];
    if (!end.sends && std::all_of(end.pieces.begin(), end.pieces.end(),
                                  [](const FlatPiece& p) { return p.place == Place::kStaging; })) {
      staged.push_back(i);
    }
  }
  if (staged.empty()) return;
  const size_t end = staged[pick_index(random, staged.size())];
  const int32_t channel = pick_channel(flat, random);
  const int32_t step = pick_step(flat, random);
  for (FlatEnd copy : {flat.ends[end], flat.ends[other_end(flat, end)]}) {
    copy.channel = channel;
    copy.step = step;
    flat.ends.push_back(copy);
  }
}

void aim_elsewhere(FlatPlan& flat, Random& random) {
  FlatEnd& end = flat.ends[pick_index(random, flat.ends.size())];
  FlatPiece& piece = pick_piece(end, random);
  constexpr std::array<Place, 3> kPlaces = {Place::kTrain, Place::kGen, Place::kStaging};
  piece.place = kPlaces[pick_index(random, kPlaces.size())];
  piece.area = static_cast<int32_t>(pick(random, 0, 3));
}

// From another rank that has a shard of the same box: right as long as it is a train shard.
void change_sender(FlatPlan& flat, Random& random) {
  const size_t index = pick_index(random, flat.ends.size());
  const size_t other = other_end(flat, index);
  FlatEnd& send = flat.ends[index].sends ? flat.ends[index] : flat.ends[other];
  FlatEnd& recv = flat.ends[index].sends ? flat.ends[other] : flat.ends[index];
  send.rank = recv.peer = static_cast<int32_t>(pick_index(random, flat.frame.ranks.size()));
}

void change_receiver(FlatPlan& flat, Random& random) {
  const size_t index = pick_index(random, flat.ends.size());
  const size_t other = other_end(flat, index);
  FlatEnd& send = flat.ends[index].sends ? flat.ends[index] : flat.ends[other];
  FlatEnd& recv = flat.ends[index].sends ? flat.ends[other] : flat.ends[index];
  send.peer = recv.rank = static_cast<int32_t>(pick_index(random, flat.frame.ranks.size()));
}

void move_transfer(FlatPlan& flat, Random& random) {
  const size_t end = pick_index(random, flat.ends.size());
  const size_t other = other_end(flat, end);
  const int32_t channel = pick_channel(flat, random);
  const int32_t step = pick_step(flat, random);
  for (const size_t i : {end, other}) {
    flat.ends[i].channel = channel;
    flat.ends[i].step = step;
  }
}

void swap_transfers(FlatPlan& flat, Random& random) {
  const size_t a = pick_index(random, flat.ends.size());
  const size_t b = pick_index(random, flat.ends.size());
  const size_t other_a = other_end(flat, a), other_b = other_end(flat, b);
  if (a == b || a == other_b) return;
  std::swap(flat.ends[a].channel, flat.ends[b].channel);
  std::swap(flat.ends[a].step, flat.ends[b].step);
  std::swap(flat.ends[other_a].channel, flat.ends[other_b].channel);
  std::swap(flat.ends[other_a].step, flat.ends[other_b].step);
}

void move_end(FlatPlan& flat, Random& random) {
  FlatEnd& end = flat.ends[pick_index(random, flat.ends.size())];
  end.channel = pick_channel(flat, random);
  end.step = pick_step(flat, random);
}

void remove_wait_itself(FlatPlan& flat, const FlatWait& wait) {
  std::erase_if(flat.waits, [&](const FlatWait& other) {
    return std::tie(other.rank, other.channel, other.step, other.on) ==
           std::tie(wait.rank, wait.channel, wait.step, wait.on);
  });
}

void remove_wait(FlatPlan& flat, Random& random) {
  if (flat.waits.empty()) return;
  const FlatWait wait = flat.waits[pick_index(random, flat.waits.size())];
  remove_wait_itself(flat, wait);
}

void remove_many_waits(FlatPlan& flat, Random& random) {
  for (int64_t i = pick(random, 2, 4); i > 0; --i) remove_wait(flat, random);
}

// Takes a wait away and lets another rank see to it: that one takes part in a step right after what
// was waited for, waits for it, and takes part in a step right before the one that waited. What it
// sends goes to a slot that nobody reads. Sometimes a link of the chain is missing.
void wait_through_peer(FlatPlan& flat, Random& random) {
  if (flat.waits.empty()) return;
  const FlatWait wait = flat.waits[pick_index(random, flat.waits.size())];
  remove_wait_itself(flat, wait);
  std::vector<std::pair<int32_t, FlatPiece>> sources;  // of other ranks
  for (const FlatEnd& end : flat.ends) {
    if (!end.sends || end.rank == wait.rank) continue;
    for (const FlatPiece& piece : end.pieces) {
      if (piece.place == Place::kTrain) sources.emplace_back(end.rank, piece);
    }
  }
  if (sources.empty()) return;
  const auto& [peer, piece] = sources[pick_index(random, sources.size())];
  std::vector<FlatSlot>& slots = flat.slots[static_cast<size_t>(wait.rank)];
  const auto slot = static_cast<int32_t>(slots.size());
  constexpr int64_t kFar = 1 << 20;
  slots.push_back({piece.tensor, piece.box, kFar});
  flat.frame.staging_bytes = 2 * kFar;
  const auto send = [&](int32_t channel, int32_t step) {
    if (pick(random, 0, 5) == 0) return;
    flat.transfer(peer, Place::kTrain, piece.area, wait.rank, Place::kStaging, slot, piece.tensor,
                  piece.box, channel, step);
  };
  send(wait.on.channel, wait.on.step + 1);
  if (pick(random, 0, 5) != 0) {
    flat.waits.push_back({peer, wait.channel, wait.step - 1, {wait.on.channel, wait.on.step + 1}});
  }
  send(wait.channel, wait.step - 1);
}

void redirect_wait(FlatPlan& flat, Random& random) {
  if (flat.waits.empty()) return;
  FlatWait& wait = flat.waits[pick_index(random, flat.waits.size())];
  wait.on = {pick_channel(flat, random), pick_step(flat, random)};
}

void add_wait(FlatPlan& flat, Random& random) {
  const FlatEnd& a = flat.ends[pick_index(random, flat.ends.size())];
  const FlatEnd& b = flat.ends[pick_index(random, flat.ends.size())];
  flat.waits.push_back({a.rank, a.channel, a.step, {b.channel, b.step}});
}

void shrink_staging(FlatPlan& flat, Random& random) {
  flat.frame.staging_bytes = std::max<int64_t>(0, flat.frame.staging_bytes - pick(random, 1, 8));
}

void move_slot(FlatPlan& flat, Random& random) {
  std::vector<FlatSlot>& slots = flat.slots[pick_index(random, flat.slots.size())];
  if (slots.size() < 2) return;
  slots[pick_index(random, slots.size())].offset = slots[pick_index(random, slots.size())].offset;
}

void swap_boxes(FlatPlan& flat, Random& random) {
  const size_t a = pick_index(random, flat.ends.size());
  const size_t b = pick_index(random, flat.ends.size());
  const size_t piece_a = pick_index(random, flat.ends[a].pieces.size());
  const size_t piece_b = pick_index(random, flat.ends[b].pieces.size());
  const size_t other_a = other_end(flat, a), other_b = other_end(flat, b);
  if (flat.ends[a].pieces[piece_a].tensor != flat.ends[b].pieces[piece_b].tensor) return;
  if (a == b || a == other_b) return;
  std::swap(flat.ends[a].pieces[piece_a].box, flat.ends[b].pieces[piece_b].box);
  std::swap(flat.ends[other_a].pieces[piece_a].box, flat.ends[other_b].pieces[piece_b].box);
}

void reorder_pieces(FlatPlan& flat, Random& random) {
  FlatEnd& end = flat.ends[pick_index(random, flat.ends.size())];
  std::reverse(end.pieces.begin(), end.pieces.end());
}

const std::array<std::pair<const char*, Mutate>, 20> kMutations = {{
    {"nothing", [](FlatPlan&, Random&) {}},
    {"drop_transfer", drop_transfer},
    {"drop_end", drop_end},
    {"duplicate_transfer", duplicate_transfer},
    {"duplicate_staging", duplicate_staging},
    {"aim_elsewhere", aim_elsewhere},
    {"change_sender", change_sender},
    {"change_receiver", change_receiver},
    {"move_transfer", move_transfer},
    {"swap_transfers", swap_transfers},
    {"move_end", move_end},
    {"remove_wait", remove_wait},
    {"remove_many_waits", remove_many_waits},
    {"wait_through_peer", wait_through_peer},
    {"redirect_wait", redirect_wait},
    {"add_wait", add_wait},
    {"shrink_staging", shrink_staging},
    {"move_slot", move_slot},
    {"swap_boxes", swap_boxes},
    {"reorder_pieces", reorder_pieces},
}};

// REFIT_CHECK_PLANS asks for more than the usual number.
int64_t count_plans() {
  const char* text = std::getenv("REFIT_CHECK_PLANS");
  return text == nullptr ? 150 : std::atoll(text);
}

TEST(CheckRandom, RefusesExactlyWhatGoesWrong) {
  std::array<std::array<int, 2>, kMutations.size()> verdicts{};  // right, wrong
  std::array<int, 6> rules{};
  for (int64_t seed = 0; seed < count_plans(); ++seed) {
    Random random(static_cast<uint64_t>(seed));
    const FlatPlan base = make_random_plan(random);
    for (size_t kind = 0; kind < kMutations.size(); ++kind) {
      const auto& [name, mutate] = kMutations[kind];
      FlatPlan flat = base;
      mutate(flat, random);
      const Plan plan = make_plan(flat);
      const std::vector<Fault> faults = check(plan);
      const std::string wrong = find_wrong_run(plan, random);
      ASSERT_EQ(faults.empty(), wrong.empty())
          << "seed " << seed << ", " << name << ": replay says '" << wrong << "', check says '"
          << (faults.empty() ? "" : print_fault(faults.front())) << "'";
      if (kind == 0) {
        ASSERT_EQ(wrong, "") << "seed " << seed << ": right by construction";
      }
      ++verdicts[kind][faults.empty() ? 0 : 1];
      for (const Fault& fault : faults) ++rules[static_cast<size_t>(fault.rule)];
    }
  }
  for (size_t kind = 0; kind < kMutations.size(); ++kind) {
    const std::string name = kMutations[kind].first;
    RecordProperty(name, std::to_string(verdicts[kind][0]) + " right, " +
                             std::to_string(verdicts[kind][1]) + " wrong");
    if (kind > 0) {
      EXPECT_GT(verdicts[kind][1], 0) << name << " never did harm";
    }
  }
  for (const char* name :
       {"duplicate_staging", "change_sender", "move_transfer", "remove_wait", "remove_many_waits",
        "wait_through_peer", "redirect_wait", "add_wait", "move_slot"}) {
    const auto at = std::find_if(kMutations.begin(), kMutations.end(),
                                 [&](const auto& m) { return m.first == std::string(name); });
    ASSERT_NE(at, kMutations.end());
    EXPECT_GT(verdicts[static_cast<size_t>(at - kMutations.begin())][0], 0)
        << name << " never was harmless";
  }
  for (const int count : rules) EXPECT_GT(count, 0);
}

}  // namespace
}  // namespace refit
