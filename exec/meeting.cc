#include "exec/meeting.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "exec/secret.h"

namespace refit {

namespace {

constexpr char kMagic[4] = {'R', 'F', 'T', '1'};
constexpr size_t kHeadBytes = 16, kNonceBytes = 32;
constexpr size_t kLongestGreeting = 256;  // of a frame from someone who has not proved anything
constexpr size_t kLongestReason = size_t{1} << 20;
constexpr size_t kMostStrangers = 4096;  // connections that have not proved anything
constexpr double kStrangerPatience_s = 10;
constexpr double kHostPatience_s = 2;                            // with each of several hosts
constexpr double kReplyPatience_s = 5, kFarewellPatience_s = 1;  // until it is taken

Error system_error(const std::string& what) {
  return Error(fmt::format("meeting: {}: {}", what, std::strerror(errno)), ErrorKind::kWork);
}

[[noreturn]] void malformed(const std::string& what) {
  throw Error("meeting: found " + what + ", expected a message of this job", ErrorKind::kWork);
}

std::string prove_role(const std::string& token, std::string_view role, std::string_view server,
                       std::string_view client, int32_t rank, int32_t world) {
  std::string text = fmt::format("{} {} {} ", role, rank, world);
  return make_proof(token, text.append(server).append(client));
}

bool wait_for(int socket, short events, double seconds) {
  pollfd entry{socket, events, 0};
  return ::poll(&entry, 1, std::max(static_cast<int>(seconds * 1000), 1)) > 0;
}

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
  int family = 0;
};

Address resolve_address(const std::string& host, int32_t port) {
  addrinfo hints{};
  hints.ai_family = host.empty() ? AF_INET : AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;  // no host: all addresses
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(),
                                &hints, &list);
  if (error != 0) fail("address " + quote(host), gai_strerror(error), "a host name or an address");
  Address address;
  std::memcpy(&address.storage, list->ai_addr, list->ai_addrlen);
  address.length = list->ai_addrlen;
  address.family = list->ai_family;
  freeaddrinfo(list);
  return address;
}

}  // namespace

void put_number(std::string& out, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 0xff);
}

uint32_t get_number(std::string_view text, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(text[at + i]);
  return value;
}

std::string print_frame(FrameKind kind, int32_t rank, std::string_view payload) {
  std::string out(kMagic, sizeof kMagic);
  put_number(out, static_cast<uint32_t>(kind));
  put_number(out, static_cast<uint32_t>(rank));
  put_number(out, static_cast<uint32_t>(payload.size()));
  return out.append(payload);
}

// Connection

Connection::Connection(int socket) : socket_(socket) {
  const int yes = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
  fcntl(socket, F_SETFD, FD_CLOEXEC);
}

Connection::Connection(Connection&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)),
      in_(std::move(other.in_)),
      out_(std::move(other.out_)) {}

Connection& Connection::operator=(Connection&& other) noexcept {
  close();
  socket_ = std::exchange(other.socket_, -1);
  in_ = std::move(other.in_);
  out_ = std::move(other.out_);
  return *this;
}

void Connection::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

bool Connection::queue(std::string_view bytes) {
  if (!open()) return false;
  out_ += bytes;
  return flush();
}

bool Connection::flush() {
  while (open() && !out_.empty()) {
    const ssize_t some = ::send(socket_, out_.data(), out_.size(), MSG_NOSIGNAL);
    if (some < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    out_.erase(0, static_cast<size_t>(some));
  }
  return open();
}

bool Connection::send(std::string_view bytes, Clock::time_point deadline) {
  bool there = queue(bytes);
  while (there && has_queued()) {
    if (Clock::now() > deadline) return false;
    wait_for(socket_, POLLOUT, 0.1);
    there = flush();
  }
  return there;
}

bool Connection::receive(bool* heard) {
  char buffer[16384];
  while (open()) {
    const ssize_t some = ::recv(socket_, buffer, sizeof buffer, 0);
    if (some > 0) {
      in_.append(buffer, static_cast<size_t>(some));
      if (heard != nullptr) *heard = true;
    } else if (some == 0) {
      return false;
    } else if (errno != EINTR) {
      return errno == EAGAIN || errno == EWOULDBLOCK;
    }
  }
  return false;
}

std::optional<Frame> Connection::next(size_t longest) {
  const size_t seen = std::min(in_.size(), sizeof kMagic);
  if (in_.compare(0, seen, kMagic, seen) != 0) malformed("bytes that begin no frame");
  if (in_.size() < kHeadBytes) return {};
  const uint32_t kind = get_number(in_, 4), length = get_number(in_, 12);
  if (kind < static_cast<uint32_t>(FrameKind::kGreet) ||
      kind > static_cast<uint32_t>(FrameKind::kGather)) {
    malformed(fmt::format("a frame of kind {}", kind));
  }
  if (length > longest) malformed(fmt::format("a frame of {} bytes", length));
  if (in_.size() < kHeadBytes + length) return {};
  Frame frame{static_cast<FrameKind>(kind), static_cast<int32_t>(get_number(in_, 8)),
              in_.substr(kHeadBytes, length)};
  in_.erase(0, kHeadBytes + length);
  return frame;
}

// The root

Listener::Listener(const std::string& host, int32_t port) {
  const Address address = resolve_address(host, port);
  const int socket = ::socket(address.family, SOCK_STREAM, 0);
  if (socket < 0) throw system_error("socket");
  connection_ = Connection(socket);
  const int yes = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (::bind(socket, reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0 ||
      ::listen(socket, 1024) != 0 ||
      ::getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    throw system_error(fmt::format("cannot listen on {} port {}", host, port));
  }
  port_ =
      ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port
                                        : reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
}

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

namespace {

struct Stranger {
  Connection connection;
  std::string nonce;
  Clock::time_point deadline;
};

/// The rank that a stranger has proved to be, or -1 as long as it has said nothing. Throws Error
/// for what is no hello of this job. What one of the job says wrong goes into `failure`.
int32_t admit(Stranger& stranger, const Meeting& meeting, const std::vector<Connection>& met,
              std::string& failure) {
  const std::optional<Frame> frame = stranger.connection.next(kLongestGreeting);
  if (!frame) return -1;
  const std::string& payload = frame->payload;
  if (frame->kind != FrameKind::kHello || payload.size() != 4 + kNonceBytes + kProofBytes) {
    malformed("no hello");
  }
  const std::string client = payload.substr(4, kNonceBytes);
  const auto world = static_cast<int32_t>(get_number(payload, 0));
  const int32_t rank = frame->rank;
  if (!equal_secrets(payload.substr(4 + kNonceBytes),
                     prove_role(meeting.token, "client", stranger.nonce, client, rank, world))) {
    malformed("a stranger");
  }
  if (world != meeting.world) {
    failure = fmt::format("rank {}: found a world of {}, expected {}", rank, world, meeting.world);
  } else if (rank < 0 || rank >= meeting.world || rank == meeting.root) {
    failure = fmt::format("rank {}: expected another rank than {} of 0..{}", rank, meeting.root,
                          meeting.world - 1);
  } else if (met[static_cast<size_t>(rank)].open()) {
    failure = fmt::format("rank {}: there are two of it", rank);
  }
  const bool good = failure.empty();
  const std::string proof =
      prove_role(meeting.token, "server", stranger.nonce, client, rank, world);
  stranger.connection.send(print_frame(good ? FrameKind::kWelcome : FrameKind::kFail, meeting.root,
                                       good ? proof : failure),
                           from_now(kReplyPatience_s));
  return rank;
}

std::string name_missing(const std::vector<Connection>& met, const Meeting& meeting) {
  std::vector<int32_t> missing;
  for (int32_t rank = 0; rank < meeting.world; ++rank) {
    if (rank != meeting.root && !met[static_cast<size_t>(rank)].open()) missing.push_back(rank);
  }
  const size_t named = std::min<size_t>(missing.size(), 8);
  return fmt::format(
      "rank{} {}{} did not come within {}", missing.size() == 1 ? "" : "s",
      fmt::join(missing.begin(), missing.begin() + static_cast<std::ptrdiff_t>(named), ", "),
      named < missing.size() ? ", ..." : "", print_time(meeting.timeout_s));
}

}  // namespace

std::vector<Connection> meet_all(const Listener& listener, const Meeting& meeting) {
  std::vector<Connection> met(static_cast<size_t>(meeting.world));
  std::vector<Stranger> strangers;
  std::string failure;
  const Clock::time_point deadline = from_now(meeting.timeout_s);
  for (int32_t count = 1; count < meeting.world && failure.empty();) {
    std::vector<pollfd> entries = {{listener.socket(), POLLIN, 0}};
    for (const Stranger& stranger : strangers) {
      entries.push_back({stranger.connection.socket(), POLLIN, 0});
    }
    ::poll(entries.data(), entries.size(), 50);
    for (size_t i = strangers.size(); i-- > 0 && failure.empty();) {
      Stranger& stranger = strangers[i];
      bool over = Clock::now() > stranger.deadline;
      if (entries[i + 1].revents != 0) {
        over |= !stranger.connection.receive();
        try {
          const int32_t rank = admit(stranger, meeting, met, failure);
          if (rank >= 0 && failure.empty()) {
            met[static_cast<size_t>(rank)] = std::move(stranger.connection);
            ++count;
          }
          over |= rank >= 0;
        } catch (const Error&) {
          over = true;  // whoever it is, it is none of us
        }
      }
      if (over) strangers.erase(strangers.begin() + static_cast<std::ptrdiff_t>(i));
    }
    while (strangers.size() < kMostStrangers) {
      const int socket = ::accept(listener.socket(), nullptr, nullptr);
      if (socket < 0) break;
      Stranger stranger{Connection(socket), random_bytes(kNonceBytes),
                        from_now(kStrangerPatience_s)};
      if (stranger.connection.queue(print_frame(FrameKind::kGreet, meeting.root, stranger.nonce))) {
        strangers.push_back(std::move(stranger));
      }
    }
    if (count < meeting.world && failure.empty() && Clock::now() > deadline) {
      failure = name_missing(met, meeting);
    }
  }
  if (failure.empty()) return met;
  for (Connection& connection : met) {
    connection.send(print_frame(FrameKind::kFail, meeting.root, failure),
                    from_now(kFarewellPatience_s));
  }
  throw Error(failure, ErrorKind::kWork);
}

// The others

namespace {

/// One attempt at one host: a connection that both ends have proved, or what has kept it.
struct Attempt {
  Connection connection;
  std::string refused;  // by somebody who was there
};

/// A connection, or a closed one when nobody listens there.
Connection try_connect(const std::string& host, int32_t port, Clock::time_point deadline) {
  const Address address = resolve_address(host, port);
  const int socket = ::socket(address.family, SOCK_STREAM, 0);
  if (socket < 0) throw system_error("socket");
  Connection connection(socket);
  int error =
      ::connect(socket, reinterpret_cast<const sockaddr*>(&address.storage), address.length);
  if (error != 0 && errno == EINPROGRESS) {
    const std::chrono::duration<double> patience = deadline - Clock::now();
    if (wait_for(socket, POLLOUT, patience.count())) {
      socklen_t size = sizeof error;
      getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
    }
  }
  if (error != 0) connection.close();
  return connection;
}

/// The next frame of the root. Throws Error that says why there is none until the deadline.
Frame await_frame(Connection& connection, Clock::time_point deadline) {
  bool closed = false;
  while (true) {
    if (std::optional<Frame> frame = connection.next(kLongestReason)) return *frame;
    if (closed) {
      throw Error(
          "has refused this process: found another job token or another program, expected "
          "the root of this job");
    }
    if (Clock::now() > deadline) throw Error("gives no answer");
    wait_for(connection.socket(), POLLIN, 0.05);
    closed = !connection.receive();  // what it said before it closed counts
  }
}

/// Greets and is welcomed. Throws Error that says what the other end does instead; returns the
/// reason when it is that the meeting has failed.
std::string exchange_proofs(Connection& connection, const Meeting& meeting,
                            Clock::time_point deadline) {
  const Frame greeting = await_frame(connection, deadline);
  if (greeting.kind != FrameKind::kGreet || greeting.payload.size() != kNonceBytes) {
    throw Error("does not greet as a root does");
  }
  const std::string nonce = random_bytes(kNonceBytes);
  std::string hello;
  put_number(hello, static_cast<uint32_t>(meeting.world));
  hello += nonce + prove_role(meeting.token, "client", greeting.payload, nonce, meeting.rank,
                              meeting.world);
  connection.send(print_frame(FrameKind::kHello, meeting.rank, hello), deadline);
  const Frame welcome = await_frame(connection, deadline);
  if (welcome.kind == FrameKind::kFail) return welcome.payload;
  if (welcome.kind != FrameKind::kWelcome ||
      !equal_secrets(welcome.payload, prove_role(meeting.token, "server", greeting.payload, nonce,
                                                 meeting.rank, meeting.world))) {
    throw Error("cannot prove that it knows the job token");
  }
  return "";
}

Attempt try_host(const std::string& host, int32_t port, const Meeting& meeting,
                 Clock::time_point deadline) {
  Attempt attempt;
  attempt.connection = try_connect(host, port, deadline);
  if (!attempt.connection.open()) return attempt;
  std::string failure;
  try {
    failure = exchange_proofs(attempt.connection, meeting, deadline);
  } catch (const Error& error) {
    attempt.refused = fmt::format("rank {}: {} port {} {}", meeting.rank, host, port, error.what());
    attempt.connection.close();
  }
  if (!failure.empty()) throw Error(failure, ErrorKind::kWork);
  return attempt;
}

}  // namespace

Connection meet_root(const std::vector<std::string>& hosts, int32_t port, const Meeting& meeting) {
  const Clock::time_point deadline = from_now(meeting.timeout_s);
  const bool several = hosts.size() > 1;
  std::string refused;
  while (true) {  // the root may still be on its way
    for (const std::string& host : hosts) {
      Attempt attempt = try_host(
          host, port, meeting, several ? std::min(deadline, from_now(kHostPatience_s)) : deadline);
      if (attempt.connection.open()) return std::move(attempt.connection);
      if (attempt.refused.empty()) continue;
      // One of several addresses may be somebody else's.
      if (!several) throw Error(attempt.refused, ErrorKind::kWork);
      refused = attempt.refused;
    }
    if (Clock::now() > deadline) {
      throw Error(fmt::format("rank {}: nobody of this job listens on {} port {} within {}{}{}",
                              meeting.rank, fmt::join(hosts, ", "), port,
                              print_time(meeting.timeout_s), refused.empty() ? "" : "; ", refused),
                  ErrorKind::kWork);
    }
    // Nothing to block on: a host that nobody listens on refuses at once.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace refit
