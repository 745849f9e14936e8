#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "plans/plan.h"

namespace refit {

/// Slots begin at multiples of this.
inline constexpr int64_t kSlotAlignment = 256;
int64_t align_slot(int64_t bytes);

/// What arrives in one step of a relay to be sent on.
struct Arrival {
  int64_t bytes = 0;          // above 0
  double last_read = 0;       // when the last of the readers has ended
  std::vector<Wait> readers;  // the steps that send it on
};

/// Memory of a relay, used round and round.
class SlotRing {
 public:
  explicit SlotRing(int64_t capacity) : capacity_(capacity) {}

  /// Where an arrival at that time goes; arrivals come in order of time. The next place from the
  /// one before on, round the end, where nothing is still needed; without one the memory grows.
  /// Adds to `waits` the steps that read what lay there before.
  int64_t add(Arrival arrival, double time, std::vector<Wait>& waits);

 private:
  struct Block {
    int64_t end;
    Arrival arrival;
  };
  using Blocks = std::map<int64_t, Block>;  // by begin
  Blocks::iterator first_after(int64_t place);
  std::optional<int64_t> find_place(int64_t from, int64_t bytes, double time);
  void clear(int64_t begin, int64_t end, std::vector<Wait>& waits);

  int64_t capacity_;
  int64_t next_ = 0;
  Blocks blocks_;  // apart
};

}  // namespace refit
