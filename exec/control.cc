#include "exec/control.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/units.h"
#include "exec/clock.h"

namespace refit {

namespace {

constexpr size_t kLongestText = std::numeric_limits<uint32_t>::max();

/// What most frames carry: beats their progress, arrivals and releases the number of the barrier.
std::string print_value(int64_t value) {
  std::string text;
  put_number(text, static_cast<uint32_t>(static_cast<uint64_t>(value) >> 32));
  put_number(text, static_cast<uint32_t>(static_cast<uint64_t>(value)));
  return text;
}

/// Throws Error where the frame carries none.
int64_t read_value(const Frame& frame) {
  if (frame.payload.size() < 8) throw Error("control: found a frame without a number");
  const auto high = static_cast<uint64_t>(get_number(frame.payload, 0));
  return static_cast<int64_t>(high << 32 | get_number(frame.payload, 4));
}

struct Peer {
  Connection connection;
  Clock::time_point heard = Clock::now();
  bool left = false;  // said goodbye
};

}  // namespace

struct Control::State {
  State(int32_t the_rank, int32_t the_world, double timeout)
      : rank(the_rank),
        world(the_world),
        timeout_s(timeout),
        beat_s(std::clamp(timeout / 10, 0.01, 0.5)),
        amounts(static_cast<size_t>(the_world)) {}

  void serve();
  void read(size_t index);
  void handle(size_t index, const Frame& frame);
  void look_for_the_dead();
  void arrive();
  void fail_world(ErrorKind how, const std::string& why);
  void lose(size_t index, const std::string& why);
  int32_t rank_of(size_t index) const { return hub() ? static_cast<int32_t>(index) + 1 : 0; }
  bool hub() const { return rank == 0; }
  bool send(Peer& to, FrameKind what, std::string_view payload = {}) {
    return to.connection.queue(print_frame(what, rank, payload));
  }
  void send_all(FrameKind what, std::string_view payload = {});
  std::string print_failure() const { return print_value(static_cast<int64_t>(kind)) + reason; }
  [[noreturn]] void report() const { throw Error(reason, kind); }

  const int32_t rank, world;
  const double timeout_s, beat_s;
  std::thread thread;

  mutable std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::vector<Peer> peers;  // on rank 0 one per other rank, else rank 0
  std::vector<int64_t> amounts;
  int64_t heard_progress = 0;  // of the last beat of rank 0
  int64_t barriers = 0;        // that have ended
  int32_t arrived = 0;
  std::vector<std::deque<std::string>> texts;  // on rank 0, by rank
  bool closing = false;
  std::string reason;
  ErrorKind kind = ErrorKind::kWork;
  Clock::time_point failed_at;
  bool told = false;  // rank 0 knows of the failure
  double grace_s = 0;
  std::function<void(const Error&)> hang;

  std::atomic<bool> failed = false;  // `reason` does not change once it is set
  std::atomic<int64_t> own = 0;
};

void Control::State::send_all(FrameKind what, std::string_view payload) {
  for (Peer& peer : peers) {
    if (!peer.left) send(peer, what, payload);  // who is gone is noticed by reading
  }
}

/// Of rank 0 this is the word that all get; another rank keeps its own and passes it on.
void Control::State::fail_world(ErrorKind how, const std::string& why) {
  if (failed) return;
  reason = why;
  kind = how;
  failed_at = Clock::now();
  failed = true;
  send_all(FrameKind::kFail, print_failure());
  told = told || hub();
  changed.notify_all();
}

void Control::State::lose(size_t index, const std::string& why) {
  Peer& peer = peers[index];
  if (!peer.connection.open()) return;
  peer.connection.close();
  told = told || !hub();  // nobody is left to be told
  if (!peer.left) fail_world(ErrorKind::kWork, fmt::format("rank {}: {}", rank_of(index), why));
  changed.notify_all();
}

void Control::State::arrive() {
  if (failed || ++arrived < world) return;
  arrived = 0;
  ++barriers;
  send_all(FrameKind::kRelease, print_value(barriers));
  changed.notify_all();
}

void Control::State::handle(size_t index, const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::kBeat:
      if (hub()) {
        amounts[static_cast<size_t>(rank_of(index))] = read_value(frame);
      } else {
        heard_progress = read_value(frame);
      }
      break;
    case FrameKind::kArrive:
      arrive();
      break;
    case FrameKind::kRelease:
      barriers = read_value(frame);
      break;
    case FrameKind::kGather:
      if (hub()) texts[static_cast<size_t>(rank_of(index))].push_back(frame.payload);
      break;
    case FrameKind::kFail:
      told = true;
      fail_world(static_cast<ErrorKind>(read_value(frame)), frame.payload.substr(8));
      if (hub()) send(peers[index], FrameKind::kFail, print_failure());  // got it
      break;
    case FrameKind::kBye:
      peers[index].left = true;
      break;
    case FrameKind::kGreet:
    case FrameKind::kHello:
    case FrameKind::kWelcome:
    case FrameKind::kBlob:
    case FrameKind::kAll:
      break;
  }
  changed.notify_all();
}

void Control::State::read(size_t index) {
  Peer& peer = peers[index];
  bool heard = false;
  const bool alive = peer.connection.receive(&heard);
  if (heard) peer.heard = Clock::now();
  try {
    while (const auto frame = peer.connection.next(kLongestText)) handle(index, *frame);
  } catch (const Error& error) {
    return lose(index, error.what());
  }
  if (!alive) lose(index, "connection lost, the process has ended");
}

void Control::State::look_for_the_dead() {
  for (size_t i = 0; i < peers.size(); ++i) {
    if (!peers[i].connection.open() || peers[i].left) continue;
    if (seconds_since(peers[i].heard) > timeout_s) {
      lose(i, fmt::format("no heartbeat for {}", print_time(timeout_s)));
    }
  }
}

void Control::State::serve() {
  Clock::time_point beat = Clock::now(), round = beat;
  std::unique_lock lock(mutex);
  while (true) {
    std::vector<pollfd> pollers;
    for (const Peer& peer : peers) {
      const auto events =
          static_cast<short>(peer.connection.has_queued() ? POLLIN | POLLOUT : POLLIN);
      // poll skips closed ones, which are negative
      pollers.push_back({peer.connection.socket(), events, 0});
    }
    lock.unlock();
    ::poll(pollers.data(), pollers.size(), static_cast<int>(std::min(beat_s, 0.05) * 1000));
    lock.lock();
    if (closing) return;
    // Who was stopped itself does not know for how long the others were silent.
    if (seconds_since(round) > timeout_s / 2) {
      for (Peer& peer : peers) peer.heard = Clock::now();
    }
    round = Clock::now();
    for (size_t i = 0; i < peers.size(); ++i) {
      Connection& connection = peers[i].connection;
      if (!connection.open()) continue;
      read(i);
      if (connection.open() && !connection.flush()) {
        lose(i, "connection lost, the process has ended");
      }
    }
    if (seconds_since(beat) >= beat_s) {
      beat = Clock::now();
      const int64_t mine = own;
      amounts[static_cast<size_t>(rank)] = mine;
      int64_t sum = 0;
      for (const int64_t amount : amounts) sum += amount;
      for (Peer& peer : peers) {
        if (peer.connection.has_queued()) continue;
        send(peer, FrameKind::kBeat, print_value(hub() ? sum : mine));
      }
    }
    if (!failed) look_for_the_dead();
    if (failed && hang && seconds_since(failed_at) > grace_s) {
      const auto act = std::exchange(hang, nullptr);
      lock.unlock();
      act(Error(reason, kind));
      lock.lock();
    }
  }
}

Control::Control(int32_t rank, int32_t world, std::vector<Connection> connections, double timeout_s)
    : state_(std::make_unique<State>(rank, world, timeout_s)) {
  State& state = *state_;
  if (state.hub()) {
    REFIT_CHECK(std::ssize(connections) == world);
    connections.erase(connections.begin());  // one's own
    state.texts.resize(static_cast<size_t>(world));
  } else {
    REFIT_CHECK(rank < world && connections.size() == 1);
  }
  for (Connection& connection : connections) state.peers.push_back({std::move(connection)});
  state.thread = std::thread([this] { state_->serve(); });
}

Control::~Control() {
  State& state = *state_;
  {
    std::unique_lock lock(state.mutex);
    state.hang = nullptr;
    state.send_all(FrameKind::kBye);
    // A socket that is closed with unread data resets the connection, and what was sent last may be
    // lost with it: the others close first, and rank 0 waits for that a little.
    const auto rest = [&] {
      return std::all_of(state.peers.begin(), state.peers.end(), [&](const Peer& peer) {
        return !peer.connection.open() ||
               (!peer.connection.has_queued() && (!state.hub() || peer.left));
      });
    };
    state.changed.wait_for(lock, std::chrono::milliseconds(500), rest);
    state.closing = true;
  }
  state.thread.join();
}

double Control::timeout_s() const { return state_->timeout_s; }
double Control::delay_s() const { return 2 * (state_->beat_s + 0.05); }
bool Control::failed() const { return state_->failed; }

void Control::check() const {
  if (state_->failed) state_->report();
}

int64_t Control::arrive() {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  check();
  const int64_t number = state.barriers + 1;
  if (state.hub()) {
    state.arrive();
  } else {
    state.send(state.peers[0], FrameKind::kArrive, print_value(number));
  }
  return number;
}

bool Control::passed(int64_t number) const {
  const std::lock_guard lock(state_->mutex);
  if (state_->barriers >= number) return true;
  check();
  return false;
}

void Control::barrier() {
  const int64_t number = arrive();
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->barriers >= number || state_->failed; });
  if (state_->barriers < number) state_->report();
}

std::vector<std::string> Control::gather(const std::string& mine) {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  check();
  if (!state.hub()) {
    state.send(state.peers[0], FrameKind::kGather, mine);
    return {};
  }
  state.texts[0].push_back(mine);
  const auto complete = [&] {
    return std::none_of(state.texts.begin(), state.texts.end(),
                        [](const auto& queue) { return queue.empty(); });
  };
  state.changed.wait(lock, [&] { return complete() || state.failed; });
  check();
  std::vector<std::string> all;
  for (auto& queue : state.texts) {
    all.push_back(std::move(queue.front()));
    queue.pop_front();
  }
  return all;
}

void Control::abort(const std::string& reason, ErrorKind kind) {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  state.fail_world(kind, reason);
  state.changed.wait_for(lock, std::chrono::milliseconds(500), [&] { return state.told; });
}

void Control::add_progress(int64_t amount) { state_->own += amount; }

int64_t Control::progress() const {
  const std::lock_guard lock(state_->mutex);
  if (!state_->hub()) return state_->heard_progress + state_->own;
  int64_t sum = state_->own;
  for (size_t r = 1; r < state_->amounts.size(); ++r) sum += state_->amounts[r];
  return sum;
}

void Control::on_hang(double grace_s, std::function<void(const Error&)> act) {
  const std::lock_guard lock(state_->mutex);
  state_->grace_s = grace_s;
  state_->hang = std::move(act);
}

}  // namespace refit
