#include "sim/search/guide.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/error.h"
#include "sim/search/parts.h"

namespace refit {
namespace {

constexpr double kUneven = 1.0 / 2048;  // of a rank's share, that it may let in more or less
constexpr int64_t kCopies = 8;          // of a class, that an entry passes on in the mean, where
constexpr size_t kFew = 2 * kCopies;    // no more need it; else all of them are entries

}  // namespace

EntryGuide::EntryGuide(const Problem& problem, const std::vector<Class>& classes) {
  struct Task {
    const Class* of_class;
    const std::vector<int32_t>* needers;
    std::vector<Share>* shares;
  };
  std::map<int32_t, std::vector<Task>> tasks;  // by domain
  for (int32_t c = 0; c < std::ssize(classes); ++c) {
    const Class& of_class = classes[static_cast<size_t>(c)];
    for (const auto& [domain, needers] : of_class.needers) {
      const bool held = std::ranges::any_of(of_class.holders, [&, in = domain](int32_t rank) {
        return domain_of(problem, rank) == in;
      });
      if (!held) tasks[domain].push_back({&of_class, &needers, &shares_[{domain, c}]});
    }
  }
  const std::vector<PortRate> ports = port_rates(problem);
  const auto rate_into = [&](int32_t rank) {
    const double in = ports[static_cast<size_t>(rank)].in;
    return in > 0 ? in : 1;
  };
  std::map<std::pair<int32_t, int32_t>, int64_t> sent;  // by first holder and entry
  for (auto& [domain, list] : tasks) {
    // Those with the least choice first, then the largest.
    std::ranges::stable_sort(list, {}, [](const Task& task) {
      return std::pair(task.needers->size(), -task.of_class->bytes);
    });
    std::map<int32_t, double> seconds;  // by rank
    double bytes = 0, rate = 0;
    for (const Task& task : list) {
      bytes += static_cast<double>(task.of_class->bytes);
      for (const int32_t rank : *task.needers)
        if (seconds.try_emplace(rank, 0).second) rate += rate_into(rank);
    }
    const double most = bytes / rate;
    for (const Task& task : list) {
      const int32_t sender = task.of_class->holders.front();
      const int64_t largest =
          std::max<int64_t>(task.of_class->bytes * (task.needers->size() > kFew ? 1 : kCopies) /
                                std::ssize(*task.needers),
                            1);
      std::set<int32_t> used;
      for (int64_t left = task.of_class->bytes; left > 0;) {
        int32_t entry = -1;
        std::tuple<bool, bool, int64_t, double> best;
        for (const int32_t rank : *task.needers) {
          const bool full = seconds[rank] >= most * (1 - kUneven);
          const std::tuple key(used.contains(rank), full, full ? 0 : -sent[{sender, rank}],
                               seconds[rank]);
          if (entry >= 0 && key >= best) continue;
          entry = rank;
          best = key;
        }
        const double room = (most * (1 + kUneven) - seconds[entry]) * rate_into(entry);
        const int64_t part = std::min(
            left, std::get<1>(best) ? largest : std::min(largest, static_cast<int64_t>(room) + 1));
        used.insert(entry);
        task.shares->push_back({entry, part});
        seconds[entry] += static_cast<double>(part) / rate_into(entry);
        sent[{sender, entry}] += part;
        left -= part;
      }
    }
  }
}

int32_t EntryGuide::take(int32_t of_class, int32_t domain, int64_t bytes) {
  std::vector<Share>& shares = shares_.at({domain, of_class});
  Share& share = *std::ranges::max_element(shares, {}, &Share::bytes);
  share.bytes -= bytes;
  return share.entry;
}

void EntryGuide::give_back(int32_t of_class, int32_t domain, int32_t entry, int64_t bytes) {
  std::vector<Share>& shares = shares_.at({domain, of_class});
  const auto share = std::ranges::find(shares, entry, &Share::entry);
  REFIT_CHECK(share != shares.end());
  share->bytes += bytes;
}

}  // namespace refit
