// Holding and staging.

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "plans/arrivals.h"
#include "plans/rules.h"

namespace refit {
namespace {

// Calls visit(first, last), in bytes from the start of `area`, for every run of a sub-box of a
// dense area.
template <typename Visit>
void visit_runs(const Box& area, const Box& box, Dtype dtype, Visit visit) {
  const Dims stride = dense_strides(area.extents());
  int outer = box.dims();  // the dimensions before it are stepped through, the others are one run
  int64_t run = 1;
  while (outer > 0) {
    --outer;
    run *= box.extent(outer);
    if (box.extent(outer) != area.extent(outer)) break;
  }
  Dims at = box.lo;
  while (true) {
    int64_t first = 0;
    for (int dim = 0; dim < box.dims(); ++dim) first += (at[dim] - area.lo[dim]) * stride[dim];
    visit(dtype_bytes(dtype, first), dtype_bytes(dtype, first + run));
    int dim = outer - 1;
    while (dim >= 0 && ++at[dim] == box.hi[dim]) {
      at[dim] = box.lo[dim];
      --dim;
    }
    if (dim < 0) return;
  }
}

// A piece of so many runs counts as reading everything between its first and its last byte, where
// that is of one slot: what others write into its gaps meanwhile is refused.
constexpr int64_t kManyRuns = 256;

// What lies in a stretch of staging memory.
struct Content {
  int32_t slot = -1;
  std::vector<int32_t> writers;  // groups; several: none is sure to be the last
  std::vector<int32_t> readers;  // groups, of what is there now
};

// The staging memory of one rank, group after group in an order in which they may begin.
class Staging {
 public:
  explicit Staging(const Order& order) : order_(order) {}

  // Is all of [first, last) content of the slot? Not when it is empty.
  bool is_of(int64_t first, int64_t last, int32_t slot) const {
    auto at = contents_.upper_bound(first);
    if (first >= last || at == contents_.begin()) return false;
    int64_t reached = first;
    for (--at; at != contents_.end() && at->first <= reached && reached < last; ++at) {
      if (at->second.content.slot != slot || at->second.end <= reached) return false;
      reached = at->second.end;
    }
    return reached >= last;
  }

  // Why `group` may not read [first, last) as content of the slot, or null. Records it as a reader.
  const char* read(int64_t first, int64_t last, int32_t slot, int32_t group) {
    split(first);
    split(last);
    int64_t reached = first;
    for (auto at = contents_.find(first); at != contents_.end() && at->first < last; ++at) {
      Content& content = at->second.content;
      if (at->first != reached) break;
      reached = at->second.end;
      if (content.slot != slot) return "something else was staged there since";
      if (content.writers.size() > 1) return "two steps in no fixed order wrote it";
      if (!ends_before(content.writers.front(), group)) return "it need not have arrived by then";
      if (content.readers.empty() || content.readers.back() != group) {
        content.readers.push_back(group);
      }
    }
    return reached >= last ? nullptr : "it need not have arrived by then";
  }

  // A group that may still be reading what `group` overwrites in [first, last), or -1. Writes it
  // all the same.
  int32_t write(int64_t first, int64_t last, int32_t slot, int32_t group) {
    split(first);
    split(last);
    int32_t victim = -1;
    bool alone = true;  // nobody else may have written here last
    auto at = contents_.lower_bound(first);
    for (int64_t reached = first; reached < last;) {
      if (at == contents_.end() || at->first > reached) {
        const int64_t end = at == contents_.end() ? last : std::min(last, at->first);
        at = contents_.emplace_hint(at, reached, Stretch{end, {slot, {group}, {}}});
      } else {
        Content& content = at->second.content;
        for (const int32_t reader : content.readers) {
          if (!ends_before(reader, group)) victim = reader;
        }
        std::erase_if(content.writers, [&](int32_t w) { return ends_before(w, group); });
        content.writers.push_back(group);
        content.readers.clear();
        content.slot = slot;
        alone = alone && content.writers.size() == 1;
      }
      reached = at->second.end;
      ++at;
    }
    if (alone) {  // what strided pieces cut up is one stretch again
      contents_.erase(contents_.lower_bound(first), at);
      contents_.emplace_hint(at, first, Stretch{last, {slot, {group}, {}}});
    }
    return victim;
  }

 private:
  struct Stretch {
    int64_t end;
    Content content;
  };

  // Makes `at` a border.
  void split(int64_t at) {
    auto after = contents_.upper_bound(at);
    if (after == contents_.begin()) return;
    Stretch& stretch = std::prev(after)->second;
    if (std::prev(after)->first == at || stretch.end <= at) return;
    contents_.emplace_hint(after, at, stretch);
    stretch.end = at;
  }

  // A piece is many stretches with the same history: the last answer serves most of them.
  bool ends_before(int32_t a, int32_t b) {
    if (asked_ != std::pair(a, b)) {
      asked_ = {a, b};
      answer_ = order_.ends_before(a, b);
    }
    return answer_;
  }

  const Order& order_;
  std::map<int64_t, Stretch> contents_;
  std::pair<int32_t, int32_t> asked_ = {-1, -1};
  bool answer_ = false;
};

// Who writes where in the gen shards of one rank. Most ranks never send from there: what is asked
// for is sorted by the first dimension of the boxes when it is.
class Writers {
 public:
  Writers(const Plan& plan, int32_t rank)
      : plan_(plan), rank_(rank), program_(plan.programs[static_cast<size_t>(rank)]) {}

  // Calls visit(step index) for every arrival that overlaps the piece.
  template <typename Visit>
  void visit(const Piece& piece, Visit visit) {
    if (!arrivals_) arrivals_.emplace(plan_, rank_);
    const auto [found, added] = areas_.try_emplace({piece.tensor, piece.area});
    Area& area = found->second;
    if (added) fill(area, piece);
    const auto [first, last] = rows(piece.box);
    auto at =
        std::upper_bound(area.boxes.begin(), area.boxes.end(), first - area.longest,
                         [&](int64_t row, const auto& b) { return row < rows(b.first).first; });
    for (; at != area.boxes.end() && rows(at->first).first < last; ++at) {
      if (overlap(box(piece.box), box(at->first))) visit(at->second);
    }
  }

 private:
  struct Area {
    std::vector<std::pair<int32_t, int32_t>> boxes;  // box, step index
    int64_t longest = 0;                             // rows
  };

  void fill(Area& area, const Piece& piece) {
    for (const Arrived& arrival : arrivals_->of(piece.tensor)) {
      if (arrival.area != piece.area) continue;
      area.boxes.emplace_back(arrival.box, arrival.step);
      area.longest = std::max(area.longest, rows(arrival.box).second - rows(arrival.box).first);
    }
    std::sort(area.boxes.begin(), area.boxes.end(), [&](const auto& a, const auto& b) {
      return std::pair(rows(a.first).first, a.second) < std::pair(rows(b.first).first, b.second);
    });
  }

  const Box& box(int32_t index) const { return program_.boxes[static_cast<size_t>(index)]; }
  std::pair<int64_t, int64_t> rows(int32_t index) const {
    const Box& b = box(index);
    if (b.dims() == 0) return {0, 1};
    return {b.lo[0], b.hi[0]};
  }

  const Plan& plan_;
  const int32_t rank_;
  const Program& program_;
  std::optional<Arrivals> arrivals_;
  std::map<std::pair<int32_t, int32_t>, Area> areas_;  // by tensor and area
};

// One rank.
class MemoryRule {
 public:
  MemoryRule(const Plan& plan, int32_t rank, const Meetings& meetings, const Order& order,
             Faults& faults)
      : plan_(plan),
        rank_(rank),
        program_(plan.programs[static_cast<size_t>(rank)]),
        meetings_(meetings),
        order_(order),
        faults_(faults),
        writers_(plan, rank),
        staging_(order) {}

  void run() {
    for (const int32_t index : order_.begins(rank_)) {
      const Step& step = program_.steps[static_cast<size_t>(index)];
      const int32_t group = meetings_.group(rank_, index);
      visit_pieces(step.first_send, step.first_recv,
                   [&](const Piece& piece) { read(piece, step, group); });
      visit_pieces(step.first_recv, step.last_message,
                   [&](const Piece& piece) { write(piece, step, group); });
    }
  }

 private:
  template <typename Visit>
  void visit_pieces(int32_t first_message, int32_t last_message, Visit visit) const {
    for (int32_t m = first_message; m < last_message; ++m) {
      const Message& message = program_.messages[static_cast<size_t>(m)];
      for (int32_t p = message.first_piece; p < message.last_piece; ++p) {
        visit(program_.pieces[static_cast<size_t>(p)]);
      }
    }
  }

  template <typename Visit>
  void visit_bytes(const Piece& piece, Visit visit) const {
    const Slot& slot = program_.slots[static_cast<size_t>(piece.area)];
    visit_runs(
        program_.boxes[static_cast<size_t>(slot.box)], area_box(plan_, rank_, piece), slot.dtype,
        [&](int64_t first, int64_t last) { visit(slot.offset + first, slot.offset + last); });
  }

  // From the first to the last byte of a piece of many runs in its slot; {0, 0} of one with few.
  std::pair<int64_t, int64_t> hull(const Piece& piece) const {
    const Slot& slot = program_.slots[static_cast<size_t>(piece.area)];
    const Box& area = program_.boxes[static_cast<size_t>(slot.box)];
    const Box& box = program_.boxes[static_cast<size_t>(piece.box)];
    const Dims stride = dense_strides(area.extents());
    int64_t begin = 0, end = 0, runs = 1;  // elements
    for (int dim = 0; dim < box.dims(); ++dim) {
      begin += (box.lo[dim] - area.lo[dim]) * stride[dim];
      end += (box.hi[dim] - 1 - area.lo[dim]) * stride[dim];
      if (dim + 1 < box.dims()) runs *= box.extent(dim);
    }
    if (runs < kManyRuns) return {0, 0};
    return {slot.offset + dtype_bytes(piece.wire, begin),
            slot.offset + dtype_bytes(piece.wire, end + 1)};
  }

  // What is not recorded any more would show up as faults of others.
  bool done_with_staging() const {
    return faults_.full(Fault::Rule::kHolding) || faults_.full(Fault::Rule::kStaging);
  }

  std::string print(const Piece& piece) const {
    return print_piece(plan_, piece.tensor, program_.boxes[static_cast<size_t>(piece.box)]);
  }

  void read(const Piece& piece, const Step& step, int32_t group) {
    switch (piece.place) {
      case Place::kTrain:
        return;
      case Place::kGen:
        writers_.visit(piece, [&](int32_t index) {
          if (faults_.full(Fault::Rule::kHolding)) return;
          if (order_.ends_before(meetings_.group(rank_, index), group)) return;
          const Step& writer = program_.steps[static_cast<size_t>(index)];
          faults_.add(Fault::Rule::kHolding, rank_, &step,
                      fmt::format("sends {} from its gen shard, which channel {}, step {} need not "
                                  "have written by then",
                                  print(piece), writer.channel, writer.id));
        });
        return;
      case Place::kStaging: {
        if (done_with_staging()) return;
        const char* what = nullptr;
        if (const auto [first, last] = hull(piece); staging_.is_of(first, last, piece.area)) {
          what = staging_.read(first, last, piece.area, group);
        } else {
          visit_bytes(piece, [&](int64_t run, int64_t end) {
            if (what == nullptr) what = staging_.read(run, end, piece.area, group);
          });
        }
        if (what != nullptr) {
          faults_.add(Fault::Rule::kHolding, rank_, &step,
                      fmt::format("sends {} from slot {}: {}", print(piece), piece.area, what));
        }
        return;
      }
    }
  }

  void write(const Piece& piece, const Step& step, int32_t group) {
    if (piece.place != Place::kStaging || done_with_staging()) return;
    int32_t victim = -1;
    visit_bytes(piece, [&](int64_t first, int64_t last) {
      victim = std::max(victim, staging_.write(first, last, piece.area, group));
    });
    if (victim < 0) return;
    const Step& reader = find_step(plan_, meetings_, victim);
    faults_.add(Fault::Rule::kStaging, rank_, &step,
                fmt::format("receives {} into slot {} over what channel {}, step {} may still have "
                            "to send",
                            print(piece), piece.area, reader.channel, reader.id));
  }

  const Plan& plan_;
  const int32_t rank_;
  const Program& program_;
  const Meetings& meetings_;
  const Order& order_;
  Faults& faults_;
  Writers writers_;
  Staging staging_;
};

}  // namespace

void check_memory(const Plan& plan, const Meetings& meetings, const Order& order, Faults& faults) {
  for (int32_t rank = 0; rank < std::ssize(plan.programs); ++rank) {
    MemoryRule(plan, rank, meetings, order, faults).run();
  }
}

}  // namespace refit
