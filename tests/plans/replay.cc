#include "replay.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace refit {
namespace {

// What an element of memory holds: element `index` (row-major) of a tensor, half a byte each; in
// staging, as part of a slot.
struct Value {
  int32_t tensor = -1, slot = -1;
  int64_t index = -1;
  int nibble = 0;
  bool operator==(const Value&) const = default;
};

struct Cell {
  Value value;
  int writing = 0;         // steps that are writing it now
  bool contested = false;  // two did at a time
  int written = 0;
};

// One end of a message of a group.
struct End {
  bool sends;
  int peer;  // group, or -1 when the other end does not exist
  int32_t first_piece, last_piece;
};

struct Group {
  int32_t rank, channel, step;
  std::vector<End> ends;
  std::vector<int> after;  // groups; -1: one that does not exist
};

// Visits the elements of a box in row-major order.
template <typename Visit>
void visit_elements(const Box& box, Visit visit) {
  Dims at = box.lo;
  while (true) {
    visit(at);
    int dim = box.dims() - 1;
    while (dim >= 0 && ++at[dim] == box.hi[dim]) {
      at[dim] = box.lo[dim];
      --dim;
    }
    if (dim < 0) return;
  }
}

int64_t index_of(const Dims& point, const Dims& stride) {
  int64_t index = 0;
  for (int dim = 0; dim < point.count; ++dim) index += point[dim] * stride[dim];
  return index;
}

class Machine {
 public:
  explicit Machine(const Plan& plan) : plan_(plan) { make_groups(); }

  std::string find_wrong_run(Random& random) {
    std::string wrong = find_broken_limit();
    if (!wrong.empty()) return wrong;
    make_touches();
    const int groups = static_cast<int>(groups_.size());
    for (int focus = 0; focus < groups && wrong.empty(); ++focus) wrong = run(random, focus);
    for (int i = 0; i < 4 && wrong.empty(); ++i) wrong = run(random, -1);
    return wrong;
  }

 private:
  const Program& program(int32_t rank) const { return plan_.programs[static_cast<size_t>(rank)]; }
  const Box& box(int32_t rank, int32_t index) const {
    return program(rank).boxes[static_cast<size_t>(index)];
  }
  const PlanTensor& tensor(int32_t index) const {
    return plan_.tensors[static_cast<size_t>(index)];
  }

  void make_groups() {
    std::map<std::tuple<int32_t, int32_t, int32_t>, int> ids;
    for (int32_t rank = 0; rank < std::ssize(plan_.programs); ++rank) {
      for (const Step& step : program(rank).steps) {
        ids[{rank, step.channel, step.id}] = static_cast<int>(groups_.size());
        groups_.push_back({rank, step.channel, step.id, {}, {}});
      }
    }
    size_t g = 0;
    for (int32_t rank = 0; rank < std::ssize(plan_.programs); ++rank) {
      for (const Step& step : program(rank).steps) {
        Group& group = groups_[g];
        if (g > 0 && groups_[g - 1].rank == rank && groups_[g - 1].channel == step.channel) {
          group.after.push_back(static_cast<int>(g) - 1);
        }
        ++g;
        for (int32_t w = step.first_wait; w < step.last_wait; ++w) {
          const Wait& wait = program(rank).waits[static_cast<size_t>(w)];
          const auto on = ids.find({rank, wait.channel, wait.step});
          group.after.push_back(on == ids.end() ? -1 : on->second);
        }
        for (int32_t m = step.first_send; m < step.last_message; ++m) {
          const Message& message = program(rank).messages[static_cast<size_t>(m)];
          const bool sends = m < step.first_recv;
          const auto there = ids.find({message.peer, step.channel, step.id});
          int peer = -1;
          if (there != ids.end()) {
            for (const Step& other : program(message.peer).steps) {
              if (other.channel != step.channel || other.id != step.id) continue;
              const int32_t first = sends ? other.first_recv : other.first_send;
              const int32_t last = sends ? other.last_message : other.first_recv;
              for (int32_t n = first; n < last; ++n) {
                if (program(message.peer).messages[static_cast<size_t>(n)].peer == rank) {
                  peer = there->second;
                }
              }
            }
          }
          group.ends.push_back({sends, peer, message.first_piece, message.last_piece});
        }
      }
    }
  }

  // ---- Limits of the format

  std::string find_broken_limit() const {
    for (int32_t rank = 0; rank < std::ssize(plan_.programs); ++rank) {
      int64_t slots = 0;
      for (const Slot& slot : program(rank).slots)
        slots = std::max(slots, slot.offset + slot.bytes);
      std::map<int32_t, int64_t> packing;
      for (const Step& step : program(rank).steps) {
        std::set<std::pair<bool, int32_t>> peers;
        int64_t packed = 0;
        for (int32_t m = step.first_send; m < step.last_message; ++m) {
          const Message& message = program(rank).messages[static_cast<size_t>(m)];
          if (!peers.insert({m < step.first_recv, message.peer}).second) return "a peer twice";
          int64_t bytes = 0;
          bool whole_run = message.last_piece - message.first_piece == 1;
          for (int32_t p = message.first_piece; p < message.last_piece; ++p) {
            const Piece& piece = program(rank).pieces[static_cast<size_t>(p)];
            if (m >= step.first_recv && piece.place == Place::kTrain) return "train is read only";
            if (!has_area(rank, piece)) return "a piece outside of its area";
            int64_t last = -1;
            visit_elements(box(rank, piece.box), [&](const Dims& at) {
              const int64_t address = address_of(rank, piece, at);
              if (last >= 0 && address != last + 1) whole_run = false;
              last = address;
            });
            bytes += dtype_bytes(piece.wire, box(rank, piece.box).volume());
          }
          if (message.peer != rank && !whole_run) packed += bytes;
        }
        packing[step.channel] = std::max(packing[step.channel], packed);
        for (int32_t w = step.first_wait; w < step.last_wait; ++w) {
          const Wait& wait = program(rank).waits[static_cast<size_t>(w)];
          if (wait.channel == step.channel) return "a wait on its own channel";
        }
      }
      for (const auto& [channel, bytes] : packing) slots += bytes;
      if (slots > plan_.staging_bytes) return "too much staging";
    }
    return "";
  }

  const std::vector<Shard>* shards(int32_t rank, const Piece& piece) const {
    const PlanTensor& of = tensor(piece.tensor);
    for (const auto& [holder, held] :
         plan_.maps[static_cast<size_t>(piece.place == Place::kTrain ? of.train_map : of.gen_map)]
             .shards) {
      if (holder == rank) return &held;
    }
    return nullptr;
  }

  bool has_area(int32_t rank, const Piece& piece) const {
    const auto area = static_cast<size_t>(piece.area);
    const Box& part = box(rank, piece.box);
    if (piece.place == Place::kStaging) {
      if (area >= program(rank).slots.size()) return false;
      const Slot& slot = program(rank).slots[area];
      return slot.tensor == piece.tensor && contains(box(rank, slot.box), part);
    }
    const std::vector<Shard>* held = shards(rank, piece);
    return held != nullptr && area < held->size() && contains((*held)[area].box, part);
  }

  // In elements, from the start of the buffer or of the slot.
  int64_t address_of(int32_t rank, const Piece& piece, const Dims& at) const {
    Shard area;
    if (piece.place == Place::kStaging) {
      area.box = box(rank, program(rank).slots[static_cast<size_t>(piece.area)].box);
      area.stride = dense_strides(area.box.extents());
    } else {
      area = (*shards(rank, piece))[static_cast<size_t>(piece.area)];
    }
    int64_t address = area.offset;
    for (int dim = 0; dim < at.count; ++dim)
      address += (at[dim] - area.box.lo[dim]) * area.stride[dim];
    return address;
  }

  // ---- Memory

  // An element that an end reads or writes, and what should be there. Train shards are always right
  // and have no cells.
  struct Touch {
    int cell;  // -1: train
    Value value;
  };

  // Cells: half bytes of gen buffers and of staging memory.
  int cell_of(int32_t rank, int32_t buffer, int64_t nibble) {
    return cells_.try_emplace({rank, buffer, nibble}, static_cast<int>(cells_.size()))
        .first->second;
  }

  std::vector<Touch> touches_of(int32_t rank, int32_t first_piece, int32_t last_piece) {
    std::vector<Touch> touches;
    for (int32_t p = first_piece; p < last_piece; ++p) {
      const Piece& piece = program(rank).pieces[static_cast<size_t>(p)];
      const PlanTensor& of = tensor(piece.tensor);
      const int nibbles = dtype_bits(piece.wire) / 4;
      const Dims stride = dense_strides(of.shape);
      const bool staged = piece.place == Place::kStaging;
      const int64_t start =
          staged ? 2 * program(rank).slots[static_cast<size_t>(piece.area)].offset : 0;
      visit_elements(box(rank, piece.box), [&](const Dims& at) {
        const int64_t address = start + address_of(rank, piece, at) * nibbles;
        for (int n = 0; n < nibbles; ++n) {
          Touch touch{-1, {piece.tensor, staged ? piece.area : -1, index_of(at, stride), n}};
          if (piece.place != Place::kTrain) {
            touch.cell = cell_of(rank, staged ? -1 : of.gen_buffer, address + n);
          }
          touches.push_back(touch);
        }
      });
    }
    return touches;
  }

  void make_touches() {
    for (const Group& group : groups_) {
      for (const End& end : group.ends) {
        touches_.push_back(touches_of(group.rank, end.first_piece, end.last_piece));
      }
    }
    for (const PlanTensor& of : plan_.tensors) {
      const int nibbles = dtype_bits(of.gen_dtype) / 4;
      const Dims stride = dense_strides(of.shape);
      for (const auto& [rank, held] : plan_.maps[static_cast<size_t>(of.gen_map)].shards) {
        for (const Shard& shard : held) {
          visit_elements(shard.box, [&](const Dims& at) {
            int64_t address = shard.offset;
            for (int dim = 0; dim < at.count; ++dim) {
              address += (at[dim] - shard.box.lo[dim]) * shard.stride[dim];
            }
            for (int n = 0; n < nibbles; ++n) {
              wanted_.push_back({cell_of(rank, of.gen_buffer, address * nibbles + n),
                                 {static_cast<int32_t>(&of - plan_.tensors.data()), -1,
                                  index_of(at, stride), n}});
            }
          });
        }
      }
    }
  }

  // ---- Runs

  // Marks every event that the event needs, itself included. Events: 2 g begin, 2 g + 1 end.
  void mark_needed(int event, std::vector<char>& marked) const {
    if (marked[static_cast<size_t>(event)]) return;
    marked[static_cast<size_t>(event)] = 1;
    const Group& group = groups_[static_cast<size_t>(event / 2)];
    if (event % 2 == 0) {
      for (const int before : group.after) {
        if (before >= 0) mark_needed(2 * before + 1, marked);
      }
    } else {
      mark_needed(event - 1, marked);
      for (const End& end : group.ends) {
        if (end.peer >= 0) mark_needed(2 * end.peer, marked);
      }
    }
  }

  bool is_ready(int event, const std::vector<char>& done) const {
    const Group& group = groups_[static_cast<size_t>(event / 2)];
    if (event % 2 == 0) {
      return std::all_of(group.after.begin(), group.after.end(), [&](int before) {
        return before >= 0 && done[static_cast<size_t>(2 * before + 1)];
      });
    }
    return done[static_cast<size_t>(event - 1)] &&
           std::all_of(group.ends.begin(), group.ends.end(), [&](const End& end) {
             return end.peer >= 0 && done[static_cast<size_t>(2 * end.peer)];
           });
  }

  // One run at random; the group `focus`, if any, begins as early and ends as late as it can.
  std::string run(Random& random, int focus) {
    memory_.assign(cells_.size(), {});
    active_.clear();
    const size_t events = 2 * groups_.size();
    std::vector<char> done(events, 0), hurried(events, 0);
    if (focus >= 0) mark_needed(2 * focus, hurried);
    const int postponed = focus >= 0 ? 2 * focus + 1 : -1;
    std::vector<int> left(events);
    for (size_t e = 0; e < events; ++e) left[e] = static_cast<int>(e);
    while (!left.empty()) {
      // The best of the ready events: hurried ones first, the postponed one last, else at random.
      size_t best = left.size();
      int best_class = 3;
      int seen = 0;
      for (size_t i = 0; i < left.size(); ++i) {
        const int event = left[i];
        const int rank = hurried[static_cast<size_t>(event)] ? 0 : event == postponed ? 2 : 1;
        if (rank > best_class || !is_ready(event, done)) continue;
        if (rank < best_class) seen = 0;
        best_class = rank;
        if (pick(random, 0, seen++) == 0) best = i;
      }
      if (best == left.size()) return "stuck";
      const int event = left[best];
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(best));
      done[static_cast<size_t>(event)] = 1;
      const std::string wrong = event % 2 == 0 ? begin(event / 2) : end(event / 2);
      if (!wrong.empty()) return wrong;
    }
    for (const Touch& touch : wanted_) {
      const Cell& cell = memory_[static_cast<size_t>(touch.cell)];
      if (cell.written != 1) return "an element written " + std::to_string(cell.written) + " times";
      if (cell.value != touch.value) return "a wrong element delivered";
    }
    return "";
  }

  template <typename Visit>
  void visit_ends(int group, Visit visit) const {
    size_t touches = 0;
    for (int g = 0; g < group; ++g) touches += groups_[static_cast<size_t>(g)].ends.size();
    for (const End& end : groups_[static_cast<size_t>(group)].ends) visit(end, touches_[touches++]);
  }

  bool sources_are_right(int group) const {
    bool right = true;
    visit_ends(group, [&](const End& end, const std::vector<Touch>& touches) {
      if (!end.sends) return;
      for (const Touch& touch : touches) {
        if (touch.cell < 0) continue;
        const Cell& cell = memory_[static_cast<size_t>(touch.cell)];
        right = right && cell.writing == 0 && cell.value == touch.value;
      }
    });
    return right;
  }

  std::string begin(int group) {
    active_.insert(group);
    visit_ends(group, [&](const End& end, const std::vector<Touch>& touches) {
      if (end.sends) return;
      for (const Touch& touch : touches) {
        Cell& cell = memory_[static_cast<size_t>(touch.cell)];
        cell.value = {};
        cell.contested = cell.contested || cell.writing > 0;
        ++cell.writing;
        ++cell.written;
      }
    });
    for (const int g : active_) {
      if (!sources_are_right(g)) return "garbage is sent";
    }
    return "";
  }

  std::string end(int group) {
    std::string wrong;
    active_.erase(group);
    visit_ends(group, [&](const End& end, const std::vector<Touch>& touches) {
      if (end.sends) return;
      // What the other end sends, checked when it began.
      const std::vector<Touch>* sent = nullptr;
      visit_ends(end.peer, [&](const End& other, const std::vector<Touch>& theirs) {
        if (other.sends && other.peer == group) sent = &theirs;
      });
      if (sent == nullptr || sent->size() != touches.size()) {
        wrong = "a message of another size";
        return;
      }
      for (size_t i = 0; i < touches.size(); ++i) {
        const Value& got = (*sent)[i].value;
        const Touch& want = touches[i];
        if (std::tie(got.tensor, got.index, got.nibble) !=
            std::tie(want.value.tensor, want.value.index, want.value.nibble)) {
          wrong = "another element received than expected";
        }
        Cell& cell = memory_[static_cast<size_t>(want.cell)];
        --cell.writing;
        cell.value = cell.contested ? Value{} : want.value;
        if (cell.writing == 0) cell.contested = false;
      }
    });
    return wrong;
  }

  const Plan& plan_;
  std::vector<Group> groups_;
  std::map<std::tuple<int32_t, int32_t, int64_t>, int> cells_;
  std::vector<std::vector<Touch>> touches_;  // by end, group after group
  std::vector<Touch> wanted_;                // gen shards
  std::vector<Cell> memory_;                 // by cell
  std::set<int> active_;
};

}  // namespace

std::string find_wrong_run(const Plan& plan, Random& random) {
  return Machine(plan).find_wrong_run(random);
}

}  // namespace refit
