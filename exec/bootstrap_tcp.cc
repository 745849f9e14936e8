// A star of TCP connections around rank 0.
//
// Every number is a 32-bit big-endian integer. A frame is the magic "RFT1", a kind, the sender's
// rank, the length of the payload, and the payload. Who connects is greeted with a fresh nonce of
// the server, answers with hello (rank, world, a nonce of its own, proof), and is welcomed with the
// server's proof. The proofs are HMAC-SHA256 under the job token of the role, both nonces, rank and
// world: neither end can be played by someone without the token, nor by a replay, and the token does
// not travel. When all ranks have met, rank 0 stops listening.

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "exec/bootstrap.h"
#include "exec/clock.h"
#include "exec/secret.h"

namespace refit {

namespace {

constexpr char kMagic[4] = {'R', 'F', 'T', '1'};
constexpr size_t kHeadBytes = 16, kNonceBytes = 32;
constexpr size_t kLongestGreeting = 256;  // of a frame from someone who has not proved anything
constexpr size_t kMostStrangers = 4096;   // connections that have not proved anything
constexpr double kStrangerPatience_s = 10;

enum class Kind : uint32_t { kGreet = 1, kHello, kWelcome, kBlob, kAll, kFail, kBye };

struct Frame {
  Kind kind = Kind::kBye;
  int32_t rank = 0;
  std::string payload;
};

Error system_error(const std::string& what) {
  return Error(fmt::format("bootstrap: {}: {}", what, std::strerror(errno)), ErrorKind::kWork);
}

void put_number(std::string& out, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 0xff);
}

uint32_t get_number(std::string_view text, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(text[at + i]);
  return value;
}

std::string print_frame(Kind kind, int32_t rank, std::string_view payload) {
  std::string out(kMagic, sizeof kMagic);
  put_number(out, static_cast<uint32_t>(kind));
  put_number(out, static_cast<uint32_t>(rank));
  put_number(out, static_cast<uint32_t>(payload.size()));
  return out.append(payload);
}

std::string prove_role(const std::string& token, std::string_view role, std::string_view server,
                       std::string_view client, int32_t rank, int32_t world) {
  std::string text = fmt::format("{} {} {} ", role, rank, world);
  return make_proof(token, text.append(server).append(client));
}

/// A socket that frames come out of.
class Link {
 public:
  Link() = default;
  explicit Link(int socket) : socket_(socket) {
    const int yes = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
    fcntl(socket, F_SETFD, FD_CLOEXEC);
  }
  Link(Link&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)), in_(std::move(other.in_)) {}
  Link& operator=(Link&& other) noexcept {
    close();
    socket_ = std::exchange(other.socket_, -1);
    in_ = std::move(other.in_);
    return *this;
  }
  ~Link() { close(); }

  bool open() const { return socket_ >= 0; }
  int socket() const { return socket_; }
  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }

  /// False when the peer is gone or does not take it in time.
  bool send(const std::string& bytes, Clock::time_point deadline) {
    size_t sent = 0;
    while (open() && sent < bytes.size()) {
      const ssize_t some = ::send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (some > 0) {
        sent += static_cast<size_t>(some);
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        pollfd entry{socket_, POLLOUT, 0};
        if (Clock::now() > deadline) return false;
        ::poll(&entry, 1, 100);
      } else if (errno != EINTR) {
        return false;
      }
    }
    return open();
  }

  /// Takes in what has arrived, without waiting. False when the peer has closed.
  bool receive() {
    char buffer[16384];
    while (open()) {
      const ssize_t some = ::recv(socket_, buffer, sizeof buffer, 0);
      if (some > 0) {
        in_.append(buffer, static_cast<size_t>(some));
      } else if (some == 0) {
        return false;
      } else if (errno != EINTR) {
        return errno == EAGAIN || errno == EWOULDBLOCK;
      }
    }
    return false;
  }

  /// The next whole frame. Throws Error for what is none, or longer than `longest`.
  std::optional<Frame> next(size_t longest) {
    const size_t seen = std::min(in_.size(), sizeof kMagic);
    if (in_.compare(0, seen, kMagic, seen) != 0) malformed("bytes that begin no frame");
    if (in_.size() < kHeadBytes) return {};
    const uint32_t kind = get_number(in_, 4), length = get_number(in_, 12);
    if (kind < static_cast<uint32_t>(Kind::kGreet) || kind > static_cast<uint32_t>(Kind::kBye)) {
      malformed(fmt::format("a frame of kind {}", kind));
    }
    if (length > longest) malformed(fmt::format("a frame of {} bytes", length));
    if (in_.size() < kHeadBytes + length) return {};
    Frame frame{static_cast<Kind>(kind), static_cast<int32_t>(get_number(in_, 8)),
                in_.substr(kHeadBytes, length)};
    in_.erase(0, kHeadBytes + length);
    return frame;
  }

 private:
  [[noreturn]] static void malformed(const std::string& what) {
    throw Error("bootstrap: found " + what + ", expected a message of this job", ErrorKind::kWork);
  }

  int socket_ = -1;
  std::string in_;
};

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

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
  int family = 0;
};

Address resolve_address(const std::string& host, int32_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error != 0) fail("address " + quote(host), gai_strerror(error), "a host name or an address");
  Address address;
  std::memcpy(&address.storage, list->ai_addr, list->ai_addrlen);
  address.length = list->ai_addrlen;
  address.family = list->ai_family;
  freeaddrinfo(list);
  return address;
}

class TcpBootstrap final : public Bootstrap {
 public:
  explicit TcpBootstrap(const BootstrapOptions& options)
      : options_(options), links_(static_cast<size_t>(options.rank == 0 ? options.world : 1)) {
    blobs_.resize(links_.size());
    left_.resize(links_.size());
    options.rank == 0 ? meet_all() : meet_root();
  }
  ~TcpBootstrap() override {
    for (size_t i = 0; i < links_.size(); ++i) send(i, Kind::kBye, "");
  }

  int32_t rank() const override { return options_.rank; }
  int32_t world() const override { return options_.world; }

  std::vector<std::string> all_gather(std::string_view mine) override {
    if (std::ssize(mine) > kMaxBlobBytes) {
      fail("blob", fmt::format("{} bytes", mine.size()), fmt::format("at most {}", kMaxBlobBytes));
    }
    // Rank 0 knows who is missing, so it is the first to give up.
    const double patience_s =
        options_.timeout_s + (options_.rank == 0 ? 0 : std::min(options_.timeout_s, 5.0));
    const Clock::time_point deadline = from_now(patience_s);
    if (options_.rank != 0) {
      if (!send(0, Kind::kBlob, mine)) note_failure(gone(0));
      wait_for(
          deadline, [&] { return !blobs_[0].empty(); }, [] { return std::string("rank 0"); });
      const std::string all = std::move(blobs_[0].front());
      blobs_[0].pop_front();
      return cut_blobs(all, static_cast<size_t>(options_.world));
    }
    const auto missing = [&] {
      size_t i = 1;
      while (i < blobs_.size() && !blobs_[i].empty()) ++i;
      return i;
    };
    wait_for(
        deadline, [&] { return missing() == blobs_.size(); },
        [&] { return fmt::format("rank {}", missing()); });
    std::vector<std::string> blobs = {std::string(mine)};
    for (size_t i = 1; i < blobs_.size(); ++i) {
      blobs.push_back(std::move(blobs_[i].front()));
      blobs_[i].pop_front();
    }
    const std::string all = join_blobs(blobs);
    for (size_t i = 1; i < links_.size(); ++i) {
      if (!send(i, Kind::kAll, all)) note_failure(gone(i));
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
  std::string gone(size_t link) const {
    return fmt::format("rank {}: its connection is lost", options_.rank == 0 ? link : 0);
  }

  bool send(size_t link, Kind kind, std::string_view payload) {
    if (!links_[link].open()) return options_.rank == 0 && link == 0;
    return links_[link].send(print_frame(kind, options_.rank, payload),
                             Clock::now() + std::chrono::seconds(5));
  }

  /// The first reason stands, and everybody is told once.
  void note_failure(const std::string& reason) {
    if (!failure_.empty()) return;
    failure_ = reason.empty() ? "a rank has failed" : reason.substr(0, kMaxBlobBytes);
    for (size_t i = 0; i < links_.size(); ++i) send(i, Kind::kFail, failure_);
  }

  template <typename Done, typename Who>
  void wait_for(Clock::time_point deadline, const Done& done, const Who& who) {
    while (true) {
      poll_links(0);
      if (!failure_.empty()) throw Error(failure_, ErrorKind::kWork);
      if (done()) return;
      if (Clock::now() > deadline) {
        note_failure(fmt::format("rank {}: nothing from {} for {} s", options_.rank, who(),
                                 options_.timeout_s));
        throw Error(failure_, ErrorKind::kWork);
      }
      poll_links(50);
    }
  }

  /// Takes in what has arrived; waits for something for so long.
  void poll_links(int milliseconds) {
    std::vector<pollfd> entries;
    std::vector<size_t> of_entry;
    for (size_t i = 0; i < links_.size(); ++i) {
      if (!links_[i].open()) continue;
      entries.push_back({links_[i].socket(), POLLIN, 0});
      of_entry.push_back(i);
    }
    if (entries.empty() || ::poll(entries.data(), entries.size(), milliseconds) <= 0) return;
    for (size_t e = 0; e < entries.size(); ++e) {
      if (entries[e].revents != 0) take_in(of_entry[e]);
    }
  }

  void take_in(size_t i) {
    const bool there = links_[i].receive();
    try {
      // Rank 0 sends the blobs of all.
      const size_t longest = options_.rank == 0
                                 ? static_cast<size_t>(kMaxBlobBytes)
                                 : static_cast<size_t>(kMaxBlobBytes + 4) * links_.size() *
                                       static_cast<size_t>(options_.world);
      while (const std::optional<Frame> frame = links_[i].next(longest)) {
        const Kind expected = options_.rank == 0 ? Kind::kBlob : Kind::kAll;
        if (frame->kind == expected) {
          blobs_[i].push_back(frame->payload);
        } else if (frame->kind == Kind::kFail) {
          note_failure(frame->payload);
        } else if (frame->kind == Kind::kBye) {
          left_[i] = true;
        } else {
          throw Error("bootstrap: found a message out of turn", ErrorKind::kWork);
        }
      }
    } catch (const Error& error) {
      links_[i].close();
      note_failure(fmt::format("rank {}: {}", options_.rank == 0 ? i : 0, error.what()));
    }
    if (!there) {
      links_[i].close();
      if (!left_[i]) note_failure(gone(i));
    }
  }

  void meet_all();
  void meet_root();
  bool admit(Link& link, const std::string& nonce);

  const BootstrapOptions options_;
  std::vector<Link> links_;                     // by rank, on rank 0; else that to rank 0
  std::vector<std::deque<std::string>> blobs_;  // arrived, by link
  std::vector<char> left_;                      // said goodbye, by link
  std::string failure_;
};

/// Whether the link's hello is that of a rank that was still missing; it then becomes the rank's.
/// Throws Error for what is no hello of this job.
bool TcpBootstrap::admit(Link& link, const std::string& nonce) {
  const std::optional<Frame> frame = link.next(kLongestGreeting);
  if (!frame) return false;
  const std::string& payload = frame->payload;
  if (frame->kind != Kind::kHello || payload.size() != 4 + kNonceBytes + kProofBytes) {
    throw Error("bootstrap: found no hello", ErrorKind::kWork);
  }
  const std::string client = payload.substr(4, kNonceBytes);
  const std::string proof = payload.substr(4 + kNonceBytes);
  const auto world = static_cast<int32_t>(get_number(payload, 0));
  if (!equal_secrets(proof,
                     prove_role(options_.token, "client", nonce, client, frame->rank, world))) {
    throw Error("bootstrap: found a stranger", ErrorKind::kWork);
  }
  // From here on it is one of the job: what it says is wrong fails the job.
  if (world != options_.world) {
    note_failure(fmt::format("rank {}: found a world of {}, expected {}", frame->rank, world,
                             options_.world));
  } else if (frame->rank <= 0 || frame->rank >= options_.world) {
    note_failure(fmt::format("rank {}: expected 1..{}", frame->rank, options_.world - 1));
  } else if (links_[static_cast<size_t>(frame->rank)].open()) {
    note_failure(fmt::format("rank {}: there are two of it", frame->rank));
  }
  if (!failure_.empty()) {
    link.send(print_frame(Kind::kFail, 0, failure_), Clock::now() + std::chrono::seconds(1));
    throw Error(failure_, ErrorKind::kWork);
  }
  link.send(print_frame(Kind::kWelcome, 0,
                        prove_role(options_.token, "server", nonce, client, frame->rank, world)),
            Clock::now() + std::chrono::seconds(5));
  links_[static_cast<size_t>(frame->rank)] = std::move(link);
  return true;
}

void TcpBootstrap::meet_all() {
  if (options_.world == 1) {
    if (options_.announce) options_.announce(options_.port);
    return;
  }
  const std::string& host =
      options_.bind_address.empty() ? options_.address : options_.bind_address;
  const Address address = resolve_address(host, options_.port);
  Link listener(::socket(address.family, SOCK_STREAM, 0));
  const int yes = 1;
  setsockopt(listener.socket(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(listener.socket(), reinterpret_cast<const sockaddr*>(&address.storage),
             address.length) != 0 ||
      ::listen(listener.socket(), 1024) != 0) {
    throw system_error(fmt::format("rank 0 cannot listen on {} port {}", host, options_.port));
  }

  if (options_.announce) {
    sockaddr_storage bound{};
    socklen_t length = sizeof bound;
    getsockname(listener.socket(), reinterpret_cast<sockaddr*>(&bound), &length);
    options_.announce(ntohs(bound.ss_family == AF_INET6
                                ? reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port
                                : reinterpret_cast<const sockaddr_in*>(&bound)->sin_port));
  }

  struct Stranger {
    Link link;
    std::string nonce;
    Clock::time_point deadline;
  };
  std::vector<Stranger> strangers;
  const Clock::time_point deadline = from_now(options_.timeout_s);
  for (int32_t met = 1; met < options_.world;) {
    std::vector<pollfd> entries = {{listener.socket(), POLLIN, 0}};
    for (const Stranger& stranger : strangers) {
      entries.push_back({stranger.link.socket(), POLLIN, 0});
    }
    ::poll(entries.data(), entries.size(), 50);
    for (size_t i = strangers.size(); i-- > 0;) {
      Stranger& stranger = strangers[i];
      bool over = Clock::now() > stranger.deadline;
      if (entries[i + 1].revents != 0) {
        over |= !stranger.link.receive();
        try {
          if (admit(stranger.link, stranger.nonce)) {
            ++met;
            over = true;
          }
        } catch (const Error&) {
          if (!failure_.empty()) throw;
          over = true;  // whoever it is, it is none of us
        }
      }
      if (over) strangers.erase(strangers.begin() + static_cast<std::ptrdiff_t>(i));
    }
    while (strangers.size() < kMostStrangers) {
      const int socket = ::accept(listener.socket(), nullptr, nullptr);
      if (socket < 0) break;
      Stranger stranger{Link(socket), random_bytes(kNonceBytes), from_now(kStrangerPatience_s)};
      if (stranger.link.send(print_frame(Kind::kGreet, 0, stranger.nonce), Clock::now())) {
        strangers.push_back(std::move(stranger));
      }
    }
    if (Clock::now() > deadline) {
      std::string missing;
      int32_t named = 0;
      for (int32_t rank = 1; rank < options_.world; ++rank) {
        if (links_[static_cast<size_t>(rank)].open() || ++named > 8) continue;
        missing += fmt::format("{}{}", missing.empty() ? "" : ", ", rank);
      }
      note_failure(fmt::format("rank{} {}{} did not come within {} s", named == 1 ? "" : "s",
                               missing, named > 8 ? ", ..." : "", options_.timeout_s));
      throw Error(failure_, ErrorKind::kWork);
    }
  }
}

void TcpBootstrap::meet_root() {
  const Clock::time_point deadline = from_now(options_.timeout_s);
  const auto late = [&](const std::string& what) {
    return Error(fmt::format("rank {}: {} port {}: {} within {} s", options_.rank, options_.address,
                             options_.port, what, options_.timeout_s),
                 ErrorKind::kWork);
  };
  const Address address = resolve_address(options_.address, options_.port);
  Link& link = links_[0];
  while (true) {  // rank 0 may still be on its way
    const int socket = ::socket(address.family, SOCK_STREAM, 0);
    if (socket < 0) throw system_error("socket");
    if (::connect(socket, reinterpret_cast<const sockaddr*>(&address.storage), address.length) ==
        0) {
      link = Link(socket);
      break;
    }
    ::close(socket);
    if (Clock::now() > deadline) throw late("nobody listens");
    // Nothing to block on: a host that nobody listens on refuses at once.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const auto next = [&]() -> Frame {
    while (true) {
      if (std::optional<Frame> frame = link.next(static_cast<size_t>(kMaxBlobBytes))) return *frame;
      pollfd entry{link.socket(), POLLIN, 0};
      ::poll(&entry, 1, 50);
      if (!link.receive()) {
        // What it said before it closed counts.
        if (std::optional<Frame> frame = link.next(static_cast<size_t>(kMaxBlobBytes)))
          return *frame;
        throw Error(fmt::format("rank {}: {} port {} has refused this process: found another job "
                                "token or another program, expected rank 0 of this job",
                                options_.rank, options_.address, options_.port),
                    ErrorKind::kWork);
      }
      if (Clock::now() > deadline) throw late("no answer");
    }
  };
  const Frame greeting = next();
  if (greeting.kind != Kind::kGreet || greeting.payload.size() != kNonceBytes) {
    throw Error("bootstrap: found no greeting of rank 0", ErrorKind::kWork);
  }
  const std::string nonce = random_bytes(kNonceBytes);
  std::string hello;
  put_number(hello, static_cast<uint32_t>(options_.world));
  hello += nonce + prove_role(options_.token, "client", greeting.payload, nonce, options_.rank,
                              options_.world);
  link.send(print_frame(Kind::kHello, options_.rank, hello), deadline);
  const Frame welcome = next();
  if (welcome.kind == Kind::kFail) throw Error(welcome.payload, ErrorKind::kWork);
  if (welcome.kind != Kind::kWelcome ||
      !equal_secrets(welcome.payload, prove_role(options_.token, "server", greeting.payload, nonce,
                                                 options_.rank, options_.world))) {
    throw Error(fmt::format("rank {}: {} port {} cannot prove that it knows the job token",
                            options_.rank, options_.address, options_.port),
                ErrorKind::kWork);
  }
}

}  // namespace

std::unique_ptr<Bootstrap> make_tcp_bootstrap(const BootstrapOptions& options) {
  REFIT_CHECK(options.rank >= 0 && options.rank < options.world);
  return std::make_unique<TcpBootstrap>(options);
}

}  // namespace refit
