// Blobs and failures over the star of connections of exec/meeting.h.

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "base/error.h"
#include "exec/bootstrap.h"
#include "exec/clock.h"
#include "exec/meeting.h"

namespace refit {

namespace {

/// Blobs, one after the other, each with its length.
std::string join_blobs(const std::vector<std::string>& blobs) {
  std::string all;
  for (const std::string& blob : blobs) {
    put_number(all, static_cast<uint32_t>(blob.size()));
    all += blob;
  }
  return all;
}

std::vector<std::string> cut_blobs(std::string_view all, size_t count) {
  std::vector<std::string> blobs;
  while (blobs.size() < count) {
    const size_t length = all.size() < 4 ? all.size() : get_number(all, 0);
    if (all.size() < 4 || all.size() - 4 < length) {
      throw Error("bootstrap: found a list of blobs that ends early", ErrorKind::kWork);
    }
    blobs.emplace_back(all.substr(4, length));
    all.remove_prefix(4 + length);
  }
  if (!all.empty()) throw Error("bootstrap: found more blobs than ranks", ErrorKind::kWork);
  return blobs;
}

class TcpBootstrap final : public Bootstrap {
 public:
  explicit TcpBootstrap(const BootstrapOptions& options)
      : options_(options),
        root_(options.root),
        is_root_(options.rank == options.root),
        links_(static_cast<size_t>(options.world)),
        blobs_(links_.size()),
        left_(links_.size()) {
    meet();
  }
  ~TcpBootstrap() override {
    for (Connection& link : links_) send(link, FrameKind::kBye, "");
  }

  int32_t rank() const override { return options_.rank; }
  int32_t world() const override { return options_.world; }

  std::vector<std::string> all_gather(std::string_view mine) override {
    if (std::ssize(mine) > kMaxBlobBytes) {
      fail("blob", fmt::format("{} bytes", mine.size()), fmt::format("at most {}", kMaxBlobBytes));
    }
    if (!is_root_) return exchange(mine);
    blobs_[root()].emplace_back(mine);
    const auto missing = [&] {
      return static_cast<int32_t>(std::find_if(blobs_.begin(), blobs_.end(),
                                               [](const auto& queue) { return queue.empty(); }) -
                                  blobs_.begin());
    };
    wait_for(options_.timeout_s, [&] { return missing() == world() ? -1 : missing(); });
    std::vector<std::string> blobs;
    for (std::deque<std::string>& queue : blobs_) {
      blobs.push_back(std::move(queue.front()));
      queue.pop_front();
    }
    const std::string all = join_blobs(blobs);
    for (int32_t rank = 0; rank < world(); ++rank) {
      if (rank != root_ && !send(link(rank), FrameKind::kAll, all)) note_failure(gone(rank));
    }
    if (!failure_.empty()) throw Error(failure_, ErrorKind::kWork);
    return blobs;
  }

  void publish_failure(const std::string& reason) override { note_failure(reason); }

  std::string failure() override {
    poll_links(0);
    return failure_;
  }

 private:
  size_t root() const { return static_cast<size_t>(root_); }
  Connection& link(int32_t rank) { return links_[static_cast<size_t>(rank)]; }
  static std::string gone(int32_t rank) {
    return fmt::format("rank {}: its connection is lost", rank);
  }

  void meet() {
    const Meeting meeting{options_.rank, options_.world, root_, options_.token, options_.timeout_s};
    if (!is_root_) {
      links_[root()] = meet_root({options_.address}, options_.port, meeting);
      return;
    }
    if (options_.world == 1) {
      if (options_.announce) options_.announce(options_.port);
      return;
    }
    const Listener listener(
        options_.bind_address.empty() ? options_.address : options_.bind_address, options_.port);
    if (options_.announce) options_.announce(listener.port());
    links_ = meet_all(listener, meeting);
  }

  /// One's own blob to the root, those of all from there.
  std::vector<std::string> exchange(std::string_view mine) {
    if (!send(links_[root()], FrameKind::kBlob, mine)) note_failure(gone(root_));
    // The root knows who is missing, so it is the first to give up.
    const double patience_s = options_.timeout_s + std::min(options_.timeout_s, 5.0);
    wait_for(patience_s, [&] { return blobs_[root()].empty() ? root_ : -1; });
    const std::string all = std::move(blobs_[root()].front());
    blobs_[root()].pop_front();
    return cut_blobs(all, links_.size());
  }

  bool send(Connection& to, FrameKind kind, std::string_view payload) {
    return to.send(print_frame(kind, options_.rank, payload), from_now(5));
  }

  /// The first reason stands, and everybody is told once.
  void note_failure(const std::string& reason) {
    if (!failure_.empty()) return;
    failure_ = reason.empty() ? "a rank has failed" : reason.substr(0, kMaxBlobBytes);
    for (Connection& link : links_) send(link, FrameKind::kFail, failure_);
  }

  /// Until `missing` names no rank any more.
  template <typename Missing>
  void wait_for(double patience_s, const Missing& missing) {
    const Clock::time_point deadline = from_now(patience_s);
    while (true) {
      poll_links(0);
      if (!failure_.empty()) throw Error(failure_, ErrorKind::kWork);
      if (missing() < 0) return;
      if (Clock::now() > deadline) {
        note_failure(fmt::format("rank {}: nothing from rank {} for {} s", options_.rank, missing(),
                                 options_.timeout_s));
        throw Error(failure_, ErrorKind::kWork);
      }
      poll_links(50);
    }
  }

  /// Takes in what has arrived; waits for something for so long.
  void poll_links(int milliseconds) {
    std::vector<pollfd> entries;
    std::vector<int32_t> of_entry;
    for (int32_t rank = 0; rank < world(); ++rank) {
      if (!link(rank).open()) continue;
      entries.push_back({link(rank).socket(), POLLIN, 0});
      of_entry.push_back(rank);
    }
    if (entries.empty() || ::poll(entries.data(), entries.size(), milliseconds) <= 0) return;
    for (size_t e = 0; e < entries.size(); ++e) {
      if (entries[e].revents != 0) take_in(of_entry[e]);
    }
  }

  void take_in(int32_t rank) {
    Connection& from = link(rank);
    const bool there = from.receive();
    try {
      // The root sends the blobs of all.
      const size_t longest =
          static_cast<size_t>(kMaxBlobBytes + 4) * (is_root_ ? 1 : links_.size());
      while (const std::optional<Frame> frame = from.next(longest)) take(rank, *frame);
    } catch (const Error& error) {
      from.close();
      note_failure(fmt::format("rank {}: {}", rank, error.what()));
    }
    if (!there) {
      from.close();
      if (left_[static_cast<size_t>(rank)] == 0) note_failure(gone(rank));
    }
  }

  void take(int32_t rank, const Frame& frame) {
    const auto at = static_cast<size_t>(rank);
    if (frame.kind == (is_root_ ? FrameKind::kBlob : FrameKind::kAll)) {
      blobs_[at].push_back(frame.payload);
    } else if (frame.kind == FrameKind::kFail) {
      note_failure(frame.payload);
    } else if (frame.kind == FrameKind::kBye) {
      left_[at] = 1;
    } else {
      throw Error("bootstrap: found a message out of turn", ErrorKind::kWork);
    }
  }

  const BootstrapOptions options_;
  const int32_t root_;
  const bool is_root_;
  std::vector<Connection> links_;  // by rank: on the root those of all others, else the root's
  std::vector<std::deque<std::string>> blobs_;  // arrived, by rank
  std::vector<char> left_;                      // said goodbye, by rank
  std::string failure_;
};

}  // namespace

std::unique_ptr<Bootstrap> make_tcp_bootstrap(const BootstrapOptions& options) {
  REFIT_CHECK(options.rank >= 0 && options.rank < options.world);
  return std::make_unique<TcpBootstrap>(options);
}

}  // namespace refit
