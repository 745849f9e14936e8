#include "plans/arrivals.h"

#include <algorithm>

namespace refit {
namespace {

// Calls visit(step index, piece) for every piece received into a gen shard.
template <typename Visit>
void visit_arrivals(const Program& program, Visit visit) {
  for (int32_t index = 0; index < std::ssize(program.steps); ++index) {
    const Step& step = program.steps[static_cast<size_t>(index)];
    for (int32_t m = step.first_recv; m < step.last_message; ++m) {
      const Message& message = program.messages[static_cast<size_t>(m)];
      for (int32_t p = message.first_piece; p < message.last_piece; ++p) {
        const Piece& piece = program.pieces[static_cast<size_t>(p)];
        if (piece.place == Place::kGen) visit(index, piece);
      }
    }
  }
}

}  // namespace

Arrivals::Arrivals(const Plan& plan, int32_t rank) : first_(plan.tensors.size() + 1, 0) {
  const Program& program = plan.programs[static_cast<size_t>(rank)];
  visit_arrivals(program, [&](int32_t, const Piece& piece) {
    ++first_[static_cast<size_t>(piece.tensor) + 1];
  });
  for (size_t tensor = 1; tensor < first_.size(); ++tensor) first_[tensor] += first_[tensor - 1];
  arrivals_.resize(first_.back());
  std::vector<size_t> next(first_.begin(), first_.end() - 1);
  visit_arrivals(program, [&](int32_t index, const Piece& piece) {
    arrivals_[next[static_cast<size_t>(piece.tensor)]++] = {piece.area, piece.box, index};
  });
  for (size_t tensor = 0; tensor + 1 < first_.size(); ++tensor) {
    const auto begin = arrivals_.begin() + static_cast<std::ptrdiff_t>(first_[tensor]);
    const auto end = arrivals_.begin() + static_cast<std::ptrdiff_t>(first_[tensor + 1]);
    const auto earlier = [](const Arrived& a, const Arrived& b) { return a.area < b.area; };
    if (!std::is_sorted(begin, end, earlier)) std::stable_sort(begin, end, earlier);
  }
}

}  // namespace refit
