#include "plans/meetings.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace refit {
namespace {

// Numbers the pairs (channel, step id) that occur, in their order; some numbers may be free.
class Numbering {
 public:
  explicit Numbering(const Plan& plan) {
    size_t steps = 0;
    std::vector<int64_t> count;  // by channel: highest id + 1
    for (const Program& program : plan.programs) {
      steps += program.steps.size();
      for (const Step& step : program.steps) {
        REFIT_CHECK(step.channel >= 0 && step.id >= 0);
        const auto channel = static_cast<size_t>(step.channel);
        if (channel >= count.size()) count.resize(channel + 1, 0);
        count[channel] = std::max(count[channel], int64_t{step.id} + 1);
      }
    }
    for (const int64_t ids : count) {
      first_.push_back(size_);
      size_ += static_cast<size_t>(ids);
    }
    if (size_ <= 4 * steps) return;
    // Too many are free: each that occurs is looked up instead.
    keys_.reserve(steps);
    for (const Program& program : plan.programs) {
      for (const Step& step : program.steps) keys_.push_back(key_of(step));
    }
    std::sort(keys_.begin(), keys_.end());
    keys_.erase(std::unique(keys_.begin(), keys_.end()), keys_.end());
    size_ = keys_.size();
  }

  size_t size() const { return size_; }

  size_t operator[](const Step& step) const {
    if (keys_.empty())
      return first_[static_cast<size_t>(step.channel)] + static_cast<size_t>(step.id);
    const auto at = std::lower_bound(keys_.begin(), keys_.end(), key_of(step));
    return static_cast<size_t>(at - keys_.begin());
  }

 private:
  static int64_t key_of(const Step& step) { return int64_t{step.channel} << 32 | step.id; }

  std::vector<size_t> first_;  // by channel
  std::vector<int64_t> keys_;
  size_t size_ = 0;
};

}  // namespace

Meetings::Meetings(const Plan& plan) {
  size_t steps = 0;
  for (const Program& program : plan.programs) {
    first_.push_back(static_cast<int32_t>(steps));
    steps += program.steps.size();
    REFIT_CHECK(steps <= std::numeric_limits<int32_t>::max());
  }
  first_.push_back(static_cast<int32_t>(steps));
  rank_.reserve(steps);
  start_.reserve(steps + 1);
  start_.push_back(0);
  for (int32_t rank = 0; rank < ranks(); ++rank) {
    for (const Step& step : plan.programs[static_cast<size_t>(rank)].steps) {
      rank_.push_back(rank);
      start_.push_back(start_.back() + static_cast<size_t>(step.last_message - step.first_send));
    }
  }
  REFIT_CHECK(start_.back() <= std::numeric_limits<int32_t>::max());
  put_in_order(plan);
  find_partners(plan);
}

void Meetings::put_in_order(const Plan& plan) {
  const Numbering numbering(plan);
  meeting_.assign(numbering.size() + 1, 0);
  for (const Program& program : plan.programs) {
    for (const Step& step : program.steps) ++meeting_[numbering[step] + 1];
  }
  for (size_t m = 1; m < meeting_.size(); ++m) meeting_[m] += meeting_[m - 1];
  std::vector<int32_t> next(meeting_.begin(), meeting_.end() - 1);
  in_order_.resize(rank_.size());
  int32_t group = 0;
  for (const Program& program : plan.programs) {
    for (const Step& step : program.steps)
      in_order_[static_cast<size_t>(next[numbering[step]]++)] = group++;
  }
}

void Meetings::find_partners(const Plan& plan) {
  partners_.resize(start_.back());
  // By rank: its group in the meeting at hand, if `seen` says so.
  std::vector<int32_t> there(first_.size(), -1);
  std::vector<size_t> seen(first_.size(), std::numeric_limits<size_t>::max());
  for (size_t meeting_number = 0; meeting_number + 1 < meeting_.size(); ++meeting_number) {
    const auto meeting = std::span(in_order_).subspan(
        static_cast<size_t>(meeting_[meeting_number]),
        static_cast<size_t>(meeting_[meeting_number + 1] - meeting_[meeting_number]));
    for (const int32_t group : meeting) {
      const auto rank = static_cast<size_t>(rank_of(group));
      there[rank] = group;
      seen[rank] = meeting_number;
    }
    for (const int32_t group : meeting) {
      const int32_t rank = rank_of(group);
      const Step& step = find_step(plan, *this, group);
      size_t at = first_message(group);
      for (int32_t m = step.first_send; m < step.last_message; ++m, ++at) {
        const int32_t peer =
            plan.programs[static_cast<size_t>(rank)].messages[static_cast<size_t>(m)].peer;
        if (peer < 0 || peer >= ranks() || seen[static_cast<size_t>(peer)] != meeting_number)
          continue;
        const int32_t other = there[static_cast<size_t>(peer)];
        const Program& program = plan.programs[static_cast<size_t>(peer)];
        const Step& theirs = find_step(plan, *this, other);
        const Message* match = m < step.first_recv ? find_recv(program, theirs, rank)
                                                   : find_send(program, theirs, rank);
        partners_[at].group = other;
        if (match == nullptr) continue;
        const auto offset = match - (program.messages.data() + theirs.first_send);
        partners_[at].message =
            static_cast<int32_t>(first_message(other)) + static_cast<int32_t>(offset);
      }
    }
  }
}

const Step& find_step(const Plan& plan, const Meetings& meetings, int32_t group) {
  const int32_t rank = meetings.rank_of(group);
  const int32_t index = group - meetings.first_group(rank);
  return plan.programs[static_cast<size_t>(rank)].steps[static_cast<size_t>(index)];
}

const Message* find_message(const Plan& plan, const Meetings& meetings,
                            const Meetings::Partner& partner) {
  if (partner.message < 0) return nullptr;
  const Program& program = plan.programs[static_cast<size_t>(meetings.rank_of(partner.group))];
  const size_t in_step =
      static_cast<size_t>(partner.message) - meetings.first_message(partner.group);
  const auto first = static_cast<size_t>(find_step(plan, meetings, partner.group).first_send);
  return &program.messages[first + in_step];
}

}  // namespace refit
