#include "exec/host_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <iterator>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "exec/clock.h"
#include "exec/machine.h"
#include "exec/strided.h"

namespace refit {

namespace {

/// What one rank tells another. The part of an offer stays valid until its receipt, unless the
/// sender closes its inbox.
struct Note {
  enum class Kind { kOffer, kReceipt };
  Kind kind = Kind::kOffer;
  int32_t peer = -1, channel = 0, step = 0;
  int64_t bytes = 0;
  const Part* part = nullptr;
};

struct alignas(64) Inbox {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Note> notes;
  int32_t readers = 0;  // peers that copy from this rank's memory right now
  bool closed = false;  // none may begin to
};

/// The channel's group that runs: which of its messages are still to come.
struct Running {
  const Group* group = nullptr;
  std::vector<char> sent, received;
  size_t left = 0;
};

/// A matched pair, to be copied by the receiver.
struct Delivery {
  Note offer;
  const Part* into = nullptr;
};

size_t find_peer(const std::vector<Part>& parts, int32_t peer) {
  const auto at =
      std::find_if(parts.begin(), parts.end(), [&](const Part& part) { return part.peer == peer; });
  return static_cast<size_t>(at - parts.begin());
}

}  // namespace

struct HostWorld::Shared {
  Shared(int32_t ranks, double timeout) : timeout_s(timeout), inboxes(static_cast<size_t>(ranks)) {}

  Inbox& inbox(int32_t rank) { return inboxes[static_cast<size_t>(rank)]; }

  void abort(int32_t rank, const std::string& why) {
    {
      const std::lock_guard lock(mutex);
      if (aborted) return;
      reason = why;
      aborter = rank;
      aborted = true;
      arrived.notify_all();
    }
    for (Inbox& box : inboxes) {
      const std::lock_guard lock(box.mutex);
      box.changed.notify_all();
    }
  }

  /// `reason` does not change once `aborted` is set.
  [[noreturn]] void report_abort() const { throw Error(reason, ErrorKind::kWork); }

  const double timeout_s;
  std::vector<Inbox> inboxes;  // by rank
  std::vector<std::unique_ptr<Rank>> backends;

  // Progress: what a stalled world no longer has.
  std::atomic<int64_t> copies_ended = 0;
  std::atomic<int32_t> copies_running = 0;

  std::mutex mutex;  // guards what follows
  std::condition_variable arrived;
  int64_t barriers = 0;
  int32_t waiting = 0;
  std::atomic<bool> aborted = false;
  std::string reason;
  int32_t aborter = -1;
};

class HostWorld::Rank final : public Backend {
 public:
  Rank(Shared& shared, int32_t rank) : shared_(shared), rank_(rank) {}

  std::string name() const override { return "host"; }
  int32_t rank() const override { return rank_; }
  int32_t world() const override { return static_cast<int32_t>(shared_.inboxes.size()); }

  std::byte* allocate(int64_t bytes) override { return memory_.emplace_back(bytes).data(); }

  void post(const Group& group) override;
  int32_t wait_any() override;
  void barrier() override;
  void abort(const std::string& reason) override;

 private:
  /// Takes all notes; waits for one first if `block`.
  void read_inbox(bool block);
  void accept(const Note& offer);
  void deliver(const Delivery& delivery);
  void end_message(Running& running, char& done);
  void put_note(int32_t to, const Note& note);
  Running* find_running(int32_t channel, int32_t step);
  std::string describe_stall() const;

  Shared& shared_;
  const int32_t rank_;
  std::vector<Mapping> memory_;

  std::vector<Running> running_;     // by channel
  std::vector<Note> early_;          // offers for groups not yet posted here
  std::deque<Delivery> deliveries_;  // matched, not yet copied
  std::deque<int32_t> ended_;        // channels whose group has ended
  std::vector<Note> notes_;          // scratch of read_inbox
};

void HostWorld::Rank::post(const Group& group) {
  const size_t channel = static_cast<size_t>(group.channel);
  if (running_.size() <= channel) running_.resize(channel + 1);
  Running& running = running_[channel];
  REFIT_CHECK(running.left == 0);
  running.group = &group;
  running.sent.assign(group.sends.size(), 0);
  running.received.assign(group.recvs.size(), 0);
  running.left = group.sends.size() + group.recvs.size();
  if (running.left == 0) ended_.push_back(group.channel);

  for (const Part& part : group.sends) {
    const Note offer{Note::Kind::kOffer, rank_, group.channel, group.step, part.bytes, &part};
    part.peer == rank_ ? accept(offer) : put_note(part.peer, offer);
  }
  const auto ours = std::stable_partition(early_.begin(), early_.end(), [&](const Note& offer) {
    return offer.channel != group.channel || offer.step != group.step;
  });
  const std::vector<Note> matched(ours, early_.end());
  early_.erase(ours, early_.end());
  for (const Note& offer : matched) accept(offer);
}

int32_t HostWorld::Rank::wait_any() {
  while (true) {
    read_inbox(ended_.empty() && deliveries_.empty());
    if (!ended_.empty()) {
      const int32_t channel = ended_.front();
      ended_.pop_front();
      return channel;
    }
    if (!deliveries_.empty()) {
      const Delivery delivery = deliveries_.front();
      deliveries_.pop_front();
      deliver(delivery);
    }
  }
}

void HostWorld::Rank::read_inbox(bool block) {
  Inbox& inbox = shared_.inbox(rank_);
  {
    std::unique_lock lock(inbox.mutex);
    int64_t copies_seen = shared_.copies_ended;
    Clock::time_point deadline = from_now(shared_.timeout_s);
    while (block && inbox.notes.empty() && !shared_.aborted) {
      if (inbox.changed.wait_until(lock, deadline) == std::cv_status::no_timeout) continue;
      if (!inbox.notes.empty() || shared_.aborted) break;
      const int64_t copies = shared_.copies_ended;
      if (copies == copies_seen && shared_.copies_running == 0) {
        throw Error(describe_stall(), ErrorKind::kWork);
      }
      copies_seen = copies;
      deadline = from_now(shared_.timeout_s);
    }
    if (shared_.aborted) shared_.report_abort();
    notes_.swap(inbox.notes);
  }
  for (const Note& note : notes_) {
    if (note.kind == Note::Kind::kOffer) {
      accept(note);
    } else {
      Running* running = find_running(note.channel, note.step);
      REFIT_CHECK(running != nullptr);
      end_message(*running, running->sent[find_peer(running->group->sends, note.peer)]);
    }
  }
  notes_.clear();
}

/// Matches an offer with a posted receive, or keeps it for later.
void HostWorld::Rank::accept(const Note& offer) {
  Running* running = find_running(offer.channel, offer.step);
  const size_t at = running == nullptr ? 0 : find_peer(running->group->recvs, offer.peer);
  if (running == nullptr || at == running->group->recvs.size()) {
    early_.push_back(offer);
    return;
  }
  const Part& into = running->group->recvs[at];
  if (into.bytes != offer.bytes) {
    throw Error(fmt::format("rank {}, channel {}, step {}: rank {} sends {} bytes, expected {}",
                            rank_, offer.channel, offer.step, offer.peer, offer.bytes, into.bytes),
                ErrorKind::kWork);
  }
  deliveries_.push_back({offer, &into});
}

void HostWorld::Rank::deliver(const Delivery& delivery) {
  const Note& offer = delivery.offer;
  const bool local = offer.peer == rank_;
  Inbox& sender = shared_.inbox(offer.peer);
  if (!local) {
    const std::lock_guard lock(sender.mutex);
    if (sender.closed) shared_.report_abort();
    ++sender.readers;
  }
  ++shared_.copies_running;
  copy_strided(delivery.into->boxes, offer.part->boxes);
  ++shared_.copies_ended;
  --shared_.copies_running;

  Running& running = *find_running(offer.channel, offer.step);
  if (local) {
    end_message(running, running.sent[find_peer(running.group->sends, rank_)]);
  } else {
    const Note receipt{Note::Kind::kReceipt, rank_, offer.channel, offer.step, 0, nullptr};
    const std::lock_guard lock(sender.mutex);
    --sender.readers;
    sender.notes.push_back(receipt);
    sender.changed.notify_all();
  }
  end_message(running, running.received[find_peer(running.group->recvs, offer.peer)]);
}

void HostWorld::Rank::end_message(Running& running, char& done) {
  REFIT_CHECK(done == 0);
  done = 1;
  if (--running.left == 0) ended_.push_back(running.group->channel);
}

void HostWorld::Rank::put_note(int32_t to, const Note& note) {
  Inbox& inbox = shared_.inbox(to);
  const std::lock_guard lock(inbox.mutex);
  inbox.notes.push_back(note);
  inbox.changed.notify_all();
}

Running* HostWorld::Rank::find_running(int32_t channel, int32_t step) {
  const size_t at = static_cast<size_t>(channel);
  if (at >= running_.size() || running_[at].left == 0) return nullptr;
  return running_[at].group->step == step ? &running_[at] : nullptr;
}

std::string HostWorld::Rank::describe_stall() const {
  std::string text = fmt::format("rank {}: no progress for {} s", rank_, shared_.timeout_s);
  for (const Running& running : running_) {
    if (running.left == 0) continue;
    const Group& group = *running.group;
    text += fmt::format("; channel {}, step {} waits", group.channel, group.step);
    for (size_t i = 0; i < group.recvs.size(); ++i) {
      if (running.received[i] == 0)
        text += fmt::format(" for data from rank {},", group.recvs[i].peer);
    }
    for (size_t i = 0; i < group.sends.size(); ++i) {
      if (running.sent[i] == 0)
        text += fmt::format(" for rank {} to receive,", group.sends[i].peer);
    }
    text.pop_back();
  }
  return text;
}

void HostWorld::Rank::barrier() {
  std::unique_lock lock(shared_.mutex);
  if (shared_.aborted) shared_.report_abort();
  const int64_t barriers = shared_.barriers;
  if (++shared_.waiting == world()) {
    shared_.waiting = 0;
    ++shared_.barriers;
    shared_.arrived.notify_all();
  }
  shared_.arrived.wait(lock, [&] { return shared_.barriers != barriers || shared_.aborted; });
  // Who has passed has passed: an abort that comes later belongs to what comes later.
  if (shared_.barriers == barriers) shared_.report_abort();
}

void HostWorld::Rank::abort(const std::string& reason) {
  shared_.abort(rank_, reason);
  Inbox& inbox = shared_.inbox(rank_);
  std::unique_lock lock(inbox.mutex);
  inbox.closed = true;
  inbox.changed.wait(lock, [&] { return inbox.readers == 0; });
}

HostWorld::HostWorld(int32_t ranks, double timeout_s)
    : shared_(std::make_unique<Shared>(ranks, timeout_s)) {
  for (int32_t rank = 0; rank < ranks; ++rank) {
    shared_->backends.push_back(std::make_unique<Rank>(*shared_, rank));
  }
}

HostWorld::~HostWorld() = default;

int32_t HostWorld::ranks() const { return static_cast<int32_t>(shared_->inboxes.size()); }

Backend& HostWorld::backend(int32_t rank) { return *shared_->backends[static_cast<size_t>(rank)]; }

void HostWorld::run(const std::function<void(Backend&)>& body) {
  std::vector<std::exception_ptr> errors(shared_->inboxes.size());
  {
    std::vector<std::jthread> threads;
    for (int32_t rank = 0; rank < ranks(); ++rank) {
      const auto work = [&, rank] {
        try {
          body(backend(rank));
        } catch (const Error& error) {
          errors[static_cast<size_t>(rank)] = std::current_exception();
          backend(rank).abort(error.what());
        } catch (const std::exception& error) {
          errors[static_cast<size_t>(rank)] = std::current_exception();
          backend(rank).abort(fmt::format("rank {}: {}", rank, error.what()));
        }
      };
      try {
        threads.emplace_back(work);
      } catch (const std::system_error& error) {
        shared_->abort(rank, fmt::format("rank {}: cannot start a thread: {}", rank, error.what()));
        break;
      }
    }
  }
  if (!shared_->aborted) return;
  const std::exception_ptr error = errors[static_cast<size_t>(shared_->aborter)];
  if (error != nullptr) std::rethrow_exception(error);
  shared_->report_abort();
}

}  // namespace refit
