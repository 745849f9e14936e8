#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "exec/clock.h"

namespace refit {

// How the processes of a job meet: a star of TCP connections around its root, for all that they
// tell each other beside the data (exec/control.h, exec/bootstrap.h).
//
// Every number is a 32-bit big-endian integer. A frame is the magic "RFT1", a kind, the sender's
// rank, the length of the payload, and the payload. Who connects is greeted with a fresh nonce of
// the root, answers with hello (rank, world, a nonce of its own, proof), and is welcomed with the
// root's proof. The proofs are HMAC-SHA256 under the job token of the role, both nonces, rank and
// world: neither end can be played by someone without the token, nor by a replay, and the token
// does not travel. Strangers are turned away; what one of the job says that cannot be fails the
// meeting.

/// The first three belong to the meeting, the others to those who use its connections; kFail to
/// both.
enum class FrameKind : uint32_t {
  kGreet = 1,
  kHello,
  kWelcome,
  kBlob,
  kAll,
  kFail,
  kBye,
  kBeat,
  kArrive,
  kRelease,
  kGather,
};

struct Frame {
  FrameKind kind = FrameKind::kBye;
  int32_t rank = 0;
  std::string payload;
};

void put_number(std::string& out, uint32_t value);
uint32_t get_number(std::string_view text, size_t at);
std::string print_frame(FrameKind kind, int32_t rank, std::string_view payload);

/// A socket that frames go into and come out of. Nothing blocks but send.
class Connection {
 public:
  Connection() = default;
  explicit Connection(int socket);
  Connection(Connection&& other) noexcept;
  Connection& operator=(Connection&& other) noexcept;
  ~Connection() { close(); }

  bool open() const { return socket_ >= 0; }
  int socket() const { return socket_; }
  void close();

  /// Sends what can be sent now, and keeps the rest. False when the peer is gone.
  bool queue(std::string_view bytes);
  bool flush();
  bool has_queued() const { return !out_.empty(); }
  /// Sends everything. False when the peer is gone or does not take it in time.
  bool send(std::string_view bytes, Clock::time_point deadline);

  /// Takes in what has arrived. False when the peer has closed.
  bool receive(bool* heard = nullptr);
  /// The next whole frame. Throws Error for what is none, or longer than `longest`.
  std::optional<Frame> next(size_t longest);

 private:
  int socket_ = -1;
  std::string in_, out_;
};

/// Where the root waits. Listens from construction on, until it is closed.
class Listener {
 public:
  /// On the one address of the host, "": on all of this machine; port 0: a free one. Throws Error.
  Listener(const std::string& host, int32_t port);
  int socket() const { return connection_.socket(); }
  int32_t port() const { return port_; }

 private:
  Connection connection_;
  int32_t port_ = 0;
};

/// Numeric addresses of this host that another may reach, those of the loopback last.
std::vector<std::string> own_addresses();

struct Meeting {
  int32_t rank = -1, world = 0;
  int32_t root = 0;  // rank of the one that listens
  std::string token;
  double timeout_s = 60;
};

/// On the root: connections by rank, its own closed. Throws Error (kWork) that names who did not
/// come or cannot be, after telling the others.
std::vector<Connection> meet_all(const Listener& listener, const Meeting& meeting);

/// On the others: the connection to the root, which listens at one of the hosts.
Connection meet_root(const std::vector<std::string>& hosts, int32_t port, const Meeting& meeting);

}  // namespace refit
