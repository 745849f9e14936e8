#include "exec/control.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "base/units.h"
#include "exec/clock.h"

namespace refit {

namespace {

/// What travels: a head and `length` bytes of text.
struct Head {
  enum Kind : uint32_t { kHello, kWelcome, kBeat, kArrive, kRelease, kGather, kAbort, kBye };
  Kind kind = kBeat;
  int32_t rank = -1;
  int64_t value = 0;  // hello: key; beat: progress; arrive, release: barriers; abort: ErrorKind
  uint64_t length = 0;
};
constexpr uint64_t kLongestText = uint64_t{1} << 32;

/// A connection: frames in, frames out, nothing that blocks.
struct Link {
  int socket = -1;
  std::string in, out;
  Clock::time_point heard = Clock::now();
  bool left = false;  // said goodbye

  bool open() const { return socket >= 0; }
  void close() {
    if (socket >= 0) ::close(socket);
    socket = -1;
  }

  /// False when the peer is gone.
  bool flush() {
    while (!out.empty()) {
      const ssize_t sent = ::send(socket, out.data(), out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
      out.erase(0, static_cast<size_t>(sent));
    }
    return true;
  }

  bool send(Head head, const std::string& text = {}) {
    if (!open()) return false;
    head.length = text.size();
    out.append(reinterpret_cast<const char*>(&head), sizeof head);
    out += text;
    return flush();
  }

  bool receive() {
    char buffer[16384];
    while (true) {
      const ssize_t got = ::recv(socket, buffer, sizeof buffer, MSG_DONTWAIT);
      if (got > 0) {
        in.append(buffer, static_cast<size_t>(got));
        heard = Clock::now();
      } else if (got == 0) {
        return false;
      } else if (errno != EINTR) {
        return errno == EAGAIN || errno == EWOULDBLOCK;
      }
    }
  }

  std::optional<std::pair<Head, std::string>> next() {
    Head head;
    if (in.size() < sizeof head) return {};
    std::memcpy(&head, in.data(), sizeof head);
    if (head.length > kLongestText || in.size() < sizeof head + head.length) return {};
    std::pair<Head, std::string> frame{head, in.substr(sizeof head, head.length)};
    in.erase(0, sizeof head + head.length);
    return frame;
  }
};

Error system_error(const std::string& what) {
  return Error(fmt::format("control: {}: {}", what, std::strerror(errno)), ErrorKind::kWork);
}

void set_options(int socket) {
  const int yes = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
  fcntl(socket, F_SETFD, FD_CLOEXEC);
}

/// Numeric addresses of this host that another may reach, the loopback ones last.
std::vector<std::string> own_addresses() {
  std::vector<std::string> far, near;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) throw system_error("addresses of this host");
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    if (one->ifa_addr->sa_family != AF_INET) continue;
    char text[NI_MAXHOST];
    if (getnameinfo(one->ifa_addr, sizeof(sockaddr_in), text, sizeof text, nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      ((one->ifa_flags & IFF_LOOPBACK) != 0 ? near : far).emplace_back(text);
    }
  }
  freeifaddrs(list);
  far.insert(far.end(), near.begin(), near.end());
  return far;
}

bool wait_for(int socket, short events, double seconds) {
  pollfd poller{socket, events, 0};
  return ::poll(&poller, 1, static_cast<int>(seconds * 1000)) > 0;
}

/// A connection that has greeted and was welcomed, or a closed one.
Link try_connect(const std::string& host, uint16_t port, const Head& hello, double patience_s) {
  Link link;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) return link;
  link.socket = ::socket(AF_INET, SOCK_STREAM, 0);
  if (!link.open()) return link;
  set_options(link.socket);
  const Clock::time_point start = Clock::now();
  int error = ::connect(link.socket, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  if (error != 0 && errno == EINPROGRESS && wait_for(link.socket, POLLOUT, patience_s)) {
    socklen_t size = sizeof error;
    getsockopt(link.socket, SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error == 0 && link.send(hello)) {
    while (seconds_since(start) < patience_s) {
      if (!wait_for(link.socket, POLLIN, 0.1)) continue;
      const bool alive = link.receive();
      const auto frame = link.next();
      if (frame && frame->first.kind == Head::kWelcome) return link;
      if (!alive || frame) break;
    }
  }
  link.close();
  return link;
}

}  // namespace

ControlListener::ControlListener() {
  if (getrandom(&key_, sizeof key_, 0) != sizeof key_) throw system_error("random key");
  socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  socklen_t size = sizeof any;
  if (socket_ < 0 || bind(socket_, reinterpret_cast<const sockaddr*>(&any), size) != 0 ||
      listen(socket_, SOMAXCONN) != 0 ||
      getsockname(socket_, reinterpret_cast<sockaddr*>(&any), &size) != 0) {
    throw system_error("listening socket");
  }
  set_options(socket_);
  address_ = fmt::format("{} {}", key_, ntohs(any.sin_port));
  for (const std::string& host : own_addresses()) address_ += " " + host;
}

ControlListener::~ControlListener() { ::close(socket_); }

struct Control::State {
  State(int32_t the_rank, int32_t the_world, double timeout)
      : rank(the_rank),
        world(the_world),
        timeout_s(timeout),
        beat_s(std::clamp(timeout / 10, 0.01, 0.5)),
        amounts(static_cast<size_t>(the_world)) {}

  void accept_all(const ControlListener& listener);
  void connect(const std::string& address);
  void serve();
  void read(size_t index);
  void handle(size_t index, const Head& head, const std::string& text);
  void look_for_the_dead();
  void arrive();
  void fail_world(int32_t who, ErrorKind kind, const std::string& why);
  void lose(size_t index, const std::string& why);
  int32_t peer(size_t index) const { return hub() ? static_cast<int32_t>(index) + 1 : 0; }
  bool hub() const { return rank == 0; }
  void send_all(const Head& head, const std::string& text = {});
  [[noreturn]] void report() const { throw Error(reason, kind); }

  const int32_t rank, world;
  const double timeout_s, beat_s;
  std::thread thread;

  mutable std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::vector<Link> links;  // on rank 0 one per other rank, else the one to rank 0
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

void Control::State::accept_all(const ControlListener& listener) {
  links.resize(static_cast<size_t>(world - 1));
  texts.resize(static_cast<size_t>(world));
  std::vector<Link> strangers;  // connected, not greeted yet
  const Clock::time_point start = Clock::now();
  const auto missing = [&] {
    return std::find_if(links.begin(), links.end(), [](const Link& link) { return !link.open(); });
  };
  while (missing() != links.end()) {
    if (seconds_since(start) > timeout_s) {
      throw Error(
          fmt::format("rank {}: has not come within {}",
                      peer(static_cast<size_t>(missing() - links.begin())), print_time(timeout_s)),
          ErrorKind::kWork);
    }
    std::vector<pollfd> pollers{{listener.socket(), POLLIN, 0}};
    for (const Link& link : strangers) pollers.push_back({link.socket, POLLIN, 0});
    ::poll(pollers.data(), pollers.size(), 50);
    Link fresh;
    fresh.socket = ::accept(listener.socket(), nullptr, nullptr);
    if (fresh.open()) {
      set_options(fresh.socket);
      strangers.push_back(std::move(fresh));
    }
    for (Link& link : strangers) {
      const bool alive = link.receive();
      const auto frame = link.next();
      if (frame) {
        const auto& [head, text] = *frame;
        const bool ours = head.kind == Head::kHello && head.rank > 0 && head.rank < world &&
                          head.value == static_cast<int64_t>(listener.key());
        if (ours && link.send({Head::kWelcome, 0, 0, 0})) {
          links[static_cast<size_t>(head.rank - 1)] = std::exchange(link, Link{});
        } else {
          link.close();
        }
      } else if (!alive) {
        link.close();
      }
    }
    std::erase_if(strangers, [](const Link& link) { return !link.open(); });
  }
  for (Link& link : strangers) link.close();
  for (Link& link : links) link.heard = Clock::now();
}

void Control::State::connect(const std::string& address) {
  std::istringstream words(address);
  uint64_t key = 0;
  uint16_t port = 0;
  words >> key >> port;
  std::vector<std::string> hosts;
  for (std::string host; words >> host;) hosts.push_back(host);
  const Head hello{Head::kHello, rank, static_cast<int64_t>(key), 0};
  const Clock::time_point start = Clock::now();
  links.resize(1);
  while (!links[0].open()) {
    for (const std::string& host : hosts) {
      if (!links[0].open()) links[0] = try_connect(host, port, hello, std::min(timeout_s, 2.0));
    }
    if (!links[0].open() && seconds_since(start) > timeout_s) {
      throw Error(fmt::format("rank {}: cannot reach rank 0 within {} at {}", rank,
                              print_time(timeout_s), quote(address.substr(address.find(' ') + 1))),
                  ErrorKind::kWork);
    }
  }
}

void Control::State::send_all(const Head& head, const std::string& text) {
  for (Link& link : links) {
    if (link.open() && !link.left) link.send(head, text);  // who is gone is noticed by reading
  }
}

/// Of rank 0 this is the word that all get; another rank keeps its own and passes it on.
void Control::State::fail_world(int32_t who, ErrorKind how, const std::string& why) {
  if (failed) return;
  reason = why;
  kind = how;
  failed_at = Clock::now();
  failed = true;
  send_all({Head::kAbort, who, static_cast<int64_t>(how), 0}, why);
  told = told || hub();
  changed.notify_all();
}

void Control::State::lose(size_t index, const std::string& why) {
  Link& link = links[index];
  if (!link.open()) return;
  link.close();
  told = told || !hub();  // nobody is left to be told
  if (!link.left)
    fail_world(peer(index), ErrorKind::kWork, fmt::format("rank {}: {}", peer(index), why));
  changed.notify_all();
}

void Control::State::arrive() {
  if (failed || ++arrived < world) return;
  arrived = 0;
  ++barriers;
  send_all({Head::kRelease, 0, barriers, 0});
  changed.notify_all();
}

void Control::State::handle(size_t index, const Head& head, const std::string& text) {
  switch (head.kind) {
    case Head::kBeat:
      if (hub()) {
        amounts[static_cast<size_t>(peer(index))] = head.value;
      } else {
        heard_progress = head.value;
      }
      break;
    case Head::kArrive:
      arrive();
      break;
    case Head::kRelease:
      barriers = head.value;
      break;
    case Head::kGather:
      if (hub()) texts[static_cast<size_t>(peer(index))].push_back(text);
      break;
    case Head::kAbort:
      told = true;
      fail_world(head.rank, static_cast<ErrorKind>(head.value), text);
      if (hub()) links[index].send({Head::kAbort, head.rank, head.value, 0}, reason);  // got it
      break;
    case Head::kBye:
      links[index].left = true;
      break;
    case Head::kHello:
    case Head::kWelcome:
      break;
  }
  changed.notify_all();
}

void Control::State::read(size_t index) {
  const bool alive = links[index].receive();
  while (const auto frame = links[index].next()) handle(index, frame->first, frame->second);
  if (!alive) lose(index, "connection lost, the process has ended");
}

void Control::State::look_for_the_dead() {
  for (size_t i = 0; i < links.size(); ++i) {
    if (!links[i].open() || links[i].left) continue;
    if (seconds_since(links[i].heard) > timeout_s) {
      lose(i, fmt::format("no heartbeat for {}", print_time(timeout_s)));
    }
  }
}

void Control::State::serve() {
  Clock::time_point beat = Clock::now(), round = beat;
  std::unique_lock lock(mutex);
  while (true) {
    std::vector<pollfd> pollers;
    for (const Link& link : links) {
      const auto events = static_cast<short>(link.out.empty() ? POLLIN : POLLIN | POLLOUT);
      pollers.push_back({link.socket, events, 0});  // poll skips closed ones, which are negative
    }
    lock.unlock();
    ::poll(pollers.data(), pollers.size(), static_cast<int>(std::min(beat_s, 0.05) * 1000));
    lock.lock();
    if (closing) return;
    // Who was stopped itself does not know for how long the others were silent.
    if (seconds_since(round) > timeout_s / 2) {
      for (Link& link : links) link.heard = Clock::now();
    }
    round = Clock::now();
    for (size_t i = 0; i < links.size(); ++i) {
      if (!links[i].open()) continue;
      read(i);
      if (links[i].open() && !links[i].out.empty() && !links[i].flush()) {
        lose(i, "connection lost, the process has ended");
      }
    }
    if (seconds_since(beat) >= beat_s) {
      beat = Clock::now();
      const int64_t mine = own;
      amounts[static_cast<size_t>(rank)] = mine;
      int64_t sum = 0;
      for (const int64_t amount : amounts) sum += amount;
      for (Link& link : links) {
        if (link.open() && link.out.empty()) link.send({Head::kBeat, rank, hub() ? sum : mine, 0});
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

Control::Control(int32_t rank, int32_t world, const ControlListener& listener, double timeout_s)
    : state_(std::make_unique<State>(rank, world, timeout_s)) {
  REFIT_CHECK(rank == 0);
  state_->accept_all(listener);
  state_->thread = std::thread([this] { state_->serve(); });
}

Control::Control(int32_t rank, int32_t world, const std::string& address, double timeout_s)
    : state_(std::make_unique<State>(rank, world, timeout_s)) {
  REFIT_CHECK(rank > 0 && rank < world);
  state_->connect(address);
  state_->thread = std::thread([this] { state_->serve(); });
}

Control::~Control() {
  State& state = *state_;
  {
    std::unique_lock lock(state.mutex);
    state.hang = nullptr;
    state.send_all({Head::kBye, state.rank, 0, 0});
    // A socket that is closed with unread data resets the connection, and what was sent last may be
    // lost with it: the others close first, and rank 0 waits for that a little.
    const auto rest = [&] {
      return std::all_of(state.links.begin(), state.links.end(), [&](const Link& link) {
        return !link.open() || (link.out.empty() && (!state.hub() || link.left));
      });
    };
    state.changed.wait_for(lock, std::chrono::milliseconds(500), rest);
    state.closing = true;
  }
  state.thread.join();
  for (Link& link : state.links) link.close();
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
    state.links[0].send({Head::kArrive, state.rank, number, 0});
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
    state.links[0].send({Head::kGather, state.rank, 0, 0}, mine);
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
  state.fail_world(state.rank, kind, reason);
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
