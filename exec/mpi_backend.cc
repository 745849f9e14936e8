#include "exec/mpi_backend.h"

#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "exec/clock.h"
#include "exec/machine.h"
#include "exec/meeting.h"
#include "exec/mpi_invitation.h"
#include "exec/placement.h"
#include "exec/strided.h"

namespace refit {

namespace {

constexpr int64_t kFragment = int64_t{4} << 20;  // large enough for full rate, small enough to pack
constexpr int64_t kLargeRun = int64_t{1} << 16;
constexpr int kWindow = 4;  // fragments of a message in flight

void check_mpi(int code, const std::string& what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(fmt::format("{}: MPI: {}", what, std::string(text, static_cast<size_t>(length))),
              ErrorKind::kWork);
}

/// A part of a message that MPI has.
struct Fragment {
  std::byte* at = nullptr;  // in `block`, or in place where that is empty
  std::vector<std::byte> block;
  int64_t bytes = 0;
  bool done = false;
};

/// One message under way.
struct Flow {
  Flow(const Part& the_part, const Group& the_group, bool sends)
      : part(&the_part), group(&the_group), send(sends), ahead(the_part.boxes), behind(ahead) {
    large_runs = std::all_of(part->boxes.begin(), part->boxes.end(),
                             [](const Strided& box) { return box.run >= kLargeRun; });
  }

  const Part* part;
  const Group* group;
  bool send;
  bool large_runs;               // fragments that lie in one run travel in place
  Cursor ahead, behind;          // of what MPI gets next, and of what has arrived (receives)
  int64_t posted = 0, done = 0;  // bytes
  std::deque<Fragment> window;   // in the order of the message
  // Handing a message to MPI is not its arrival, with which a step ends.
  Fragment receipt;
  bool receipt_sent = false;
};

/// The channel's group that runs.
struct Running {
  const Group* group = nullptr;
  size_t left = 0;  // messages
};

/// Pauses that grow while nothing happens: ranks may outnumber cores. A blocking call of MPI would
/// neither let them in (it spins) nor hear of a failure elsewhere.
class Idle {
 public:
  explicit Idle(bool may_spin) : spins_(may_spin ? 2000 : 0) {}
  void reset() { count_ = 0; }
  void pause() {
    if (count_++ < spins_) return;
    const int doublings = std::min((count_ - spins_) / 8, 2);
    std::this_thread::sleep_for(std::chrono::microseconds(25 << doublings));  // up to 100 us
  }

 private:
  int spins_;
  int count_ = 0;
};

void skip(Cursor& cursor, int64_t bytes) {
  while (bytes > 0) {
    const int64_t now = std::min(bytes, cursor.left());
    cursor.pass_bytes(now);
    bytes -= now;
  }
}

std::string step_name(int32_t rank, const Group& group) {
  return fmt::format("rank {}, channel {}, step {}", rank, group.channel, group.step);
}

class MpiBackend final : public Backend {
 public:
  MpiBackend(Control& control, MPI_Comm world, int32_t channels, bool may_spin);
  ~MpiBackend() override;

  std::string name() const override { return "mpi"; }
  int32_t rank() const override { return rank_; }
  int32_t world() const override { return size_; }
  std::byte* allocate(int64_t bytes) override { return memory_.emplace_back(bytes).data(); }
  void connect(std::span<const int32_t> peers) override;
  void post(const Group& group) override;
  int32_t wait_any() override;
  void barrier() override;
  void abort(const std::string& reason) override { control_.abort(reason); }

 private:
  using Flows = std::list<Flow>;
  struct Request {
    Flows::iterator flow;
    Fragment* fragment;
    bool send;
  };
  struct Copy {
    const Part *to, *from;
    int32_t channel;
  };

  void fill_window(Flows::iterator flow);
  bool poll();
  void advance(Flows::iterator flow);
  void end_message(int32_t channel);
  void give(Flows::iterator flow, Fragment& fragment, bool send, int tag);
  /// Messages have odd tags and their receipts even ones; 0 is for connections.
  int tag(const Group& group) const { return 1 + 2 * (group.step % (highest_tag_ / 2 - 1)); }
  std::string describe_stall() const;

  Control& control_;
  int32_t rank_ = 0, size_ = 0;
  int highest_tag_ = 0;
  std::vector<MPI_Comm> comms_;  // by channel
  std::vector<Mapping> memory_;
  Idle idle_;

  std::vector<Running> running_;  // by channel
  Flows flows_;
  std::deque<Copy> copies_;
  std::deque<int32_t> ended_;                   // channels whose group has ended
  std::vector<std::vector<std::byte>> blocks_;  // to be used again
  std::vector<MPI_Request> requests_;
  std::vector<Request> request_of_;  // beside requests_
};

MpiBackend::MpiBackend(Control& control, MPI_Comm world, int32_t channels, bool may_spin)
    : control_(control), idle_(may_spin), running_(static_cast<size_t>(channels)) {
  MPI_Comm_rank(world, &rank_);
  MPI_Comm_size(world, &size_);
  for (int32_t channel = 0; channel < channels; ++channel) {
    MPI_Comm comm = MPI_COMM_NULL;
    check_mpi(MPI_Comm_dup(world, &comm), fmt::format("rank {}, channel {}", rank_, channel));
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    comms_.push_back(comm);
  }
  int* bound = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&bound), &found);
  highest_tag_ = found != 0 ? *bound - 1 : 32766;  // what MPI promises at least
}

MpiBackend::~MpiBackend() {
  if (control_.failed()) return;  // a call into MPI might not return
  for (MPI_Comm& comm : comms_) MPI_Comm_free(&comm);
}

void MpiBackend::connect(std::span<const int32_t> peers) {
  if (comms_.empty()) return;
  std::vector<MPI_Request> requests;
  for (const int32_t peer : peers) {
    if (peer == rank_) continue;
    const std::string what = fmt::format("rank {}, connection with rank {}", rank_, peer);
    check_mpi(MPI_Irecv(nullptr, 0, MPI_BYTE, peer, 0, comms_[0], &requests.emplace_back()), what);
    check_mpi(MPI_Isend(nullptr, 0, MPI_BYTE, peer, 0, comms_[0], &requests.emplace_back()), what);
  }
  for (int done = 0; done == 0;) {
    control_.check();
    check_mpi(
        MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
        fmt::format("rank {}, connections", rank_));
    if (done == 0) idle_.pause();
  }
  idle_.reset();
}

void MpiBackend::post(const Group& group) {
  Running& running = running_[static_cast<size_t>(group.channel)];
  REFIT_CHECK(running.left == 0);
  running = {&group, group.sends.size() + group.recvs.size()};
  const Part* copied = nullptr;
  for (const bool send : {false, true}) {  // receives first: nothing arrives unexpected
    for (const Part& part : send ? group.sends : group.recvs) {
      if (part.peer != rank_) {
        const auto flow = flows_.emplace(flows_.end(), part, group, send);
        fill_window(flow);
        if (send) give(flow, flow->receipt, false, tag(group) + 1);
      } else if (send) {
        REFIT_CHECK(copied != nullptr && copied->bytes == part.bytes);
        copies_.push_back({copied, &part, group.channel});
      } else {
        copied = &part;
      }
    }
  }
  if (running.left == 0) ended_.push_back(group.channel);
}

/// Gives MPI as much of the message as it may have.
void MpiBackend::fill_window(Flows::iterator flow) {
  while (flow->posted < flow->part->bytes && std::ssize(flow->window) < kWindow) {
    Fragment& fragment = flow->window.emplace_back();
    fragment.bytes = std::min(kFragment, flow->part->bytes - flow->posted);
    if (flow->large_runs && flow->ahead.left() >= fragment.bytes) {
      fragment.at = flow->ahead.at();
      flow->ahead.pass_bytes(fragment.bytes);
    } else {
      if (!blocks_.empty()) {
        fragment.block = std::move(blocks_.back());
        blocks_.pop_back();
      }
      if (std::ssize(fragment.block) < fragment.bytes) {
        fragment.block.resize(static_cast<size_t>(fragment.bytes));
      }
      fragment.at = fragment.block.data();
      if (flow->send) {
        pack(flow->ahead, fragment.at, fragment.bytes);
      } else if (flow->large_runs) {
        skip(flow->ahead, fragment.bytes);
      }
    }
    flow->posted += fragment.bytes;
    give(flow, fragment, flow->send, tag(*flow->group));
  }
}

void MpiBackend::give(Flows::iterator flow, Fragment& fragment, bool send, int tag) {
  const MPI_Comm comm = comms_[static_cast<size_t>(flow->group->channel)];
  const int bytes = static_cast<int>(fragment.bytes), peer = flow->part->peer;
  MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
  request_of_.push_back({flow, &fragment, send});
  check_mpi(send ? MPI_Isend(fragment.at, bytes, MPI_BYTE, peer, tag, comm, &request)
                 : MPI_Irecv(fragment.at, bytes, MPI_BYTE, peer, tag, comm, &request),
            fmt::format("{}: rank {}", step_name(rank_, *flow->group), peer));
}

int32_t MpiBackend::wait_any() {
  auto moved_at = Clock::now();
  int64_t progress = control_.progress();
  int polls = 0;
  while (true) {
    control_.check();
    if (!ended_.empty()) {
      const int32_t channel = ended_.front();
      ended_.pop_front();
      return channel;
    }
    if (poll()) {
      idle_.reset();
      polls = 0;
      continue;
    }
    if (!copies_.empty()) {
      const Copy copy = copies_.front();
      copies_.pop_front();
      copy_strided(copy.to->boxes, copy.from->boxes);
      control_.add_progress(copy.to->bytes);
      end_message(copy.channel);
      end_message(copy.channel);
      continue;
    }
    idle_.pause();
    if (++polls % 64 != 0) continue;
    const int64_t now = control_.progress();
    if (now != progress) {
      progress = now;
      moved_at = Clock::now();
    } else if (seconds_since(moved_at) > control_.timeout_s() + control_.delay_s()) {
      throw Error(describe_stall(), ErrorKind::kWork);
    }
  }
}

/// Takes what MPI has finished. False when that is nothing.
bool MpiBackend::poll() {
  if (requests_.empty()) return false;
  std::vector<int> indices(requests_.size());
  std::vector<MPI_Status> statuses(requests_.size());
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                indices.data(), statuses.data());
  if (code != MPI_ERR_IN_STATUS) check_mpi(code, fmt::format("rank {}", rank_));
  if (count == MPI_UNDEFINED || count == 0) return false;
  std::vector<Flows::iterator> flows;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const Request& request = request_of_[static_cast<size_t>(indices[i])];
    const Flow& flow = *request.flow;
    const std::string at = step_name(rank_, *flow.group);
    if (code == MPI_ERR_IN_STATUS) {
      check_mpi(statuses[i].MPI_ERROR, fmt::format("{}: rank {}", at, flow.part->peer));
    }
    int bytes = 0;
    MPI_Get_count(&statuses[i], MPI_BYTE, &bytes);
    if (!request.send && bytes != request.fragment->bytes) {
      throw Error(fmt::format("{}: rank {} sends {} bytes, expected {}", at, flow.part->peer, bytes,
                              request.fragment->bytes),
                  ErrorKind::kWork);
    }
    request.fragment->done = true;
    if (std::find(flows.begin(), flows.end(), request.flow) == flows.end()) {
      flows.push_back(request.flow);
    }
  }
  std::sort(indices.begin(), indices.begin() + count, std::greater<>());
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const size_t index = static_cast<size_t>(indices[i]);
    requests_[index] = requests_.back();
    request_of_[index] = request_of_.back();
    requests_.pop_back();
    request_of_.pop_back();
  }
  for (const Flows::iterator flow : flows) advance(flow);
  return true;
}

void MpiBackend::advance(Flows::iterator flow) {
  while (!flow->window.empty() && flow->window.front().done) {
    Fragment& fragment = flow->window.front();
    if (!fragment.block.empty()) {
      if (!flow->send) unpack(flow->behind, fragment.at, fragment.bytes);
      blocks_.push_back(std::move(fragment.block));
    } else if (!flow->send) {
      skip(flow->behind, fragment.bytes);
    }
    flow->done += fragment.bytes;
    control_.add_progress(fragment.bytes);
    flow->window.pop_front();
    fill_window(flow);
  }
  if (flow->done < flow->part->bytes) return;
  if (!flow->send && !flow->receipt_sent) {
    flow->receipt_sent = true;
    give(flow, flow->receipt, true, tag(*flow->group) + 1);
  }
  if (!flow->receipt.done) return;
  end_message(flow->group->channel);
  flows_.erase(flow);
}

/// What MPI has taken may still need its hands: it works only while it is called.
void MpiBackend::barrier() {
  const int64_t number = control_.arrive();
  while (!control_.passed(number)) {
    int found = 0;
    if (!comms_.empty()) {
      MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comms_[0], &found, MPI_STATUS_IGNORE);
    }
    idle_.pause();
  }
  idle_.reset();
}

void MpiBackend::end_message(int32_t channel) {
  Running& running = running_[static_cast<size_t>(channel)];
  if (--running.left == 0) ended_.push_back(channel);
}

std::string MpiBackend::describe_stall() const {
  std::string text =
      fmt::format("rank {}: no progress for {}", rank_, print_time(control_.timeout_s()));
  for (const Running& running : running_) {
    if (running.left == 0) continue;
    const Group& group = *running.group;
    text += fmt::format("; channel {}, step {} waits", group.channel, group.step);
    for (const Flow& flow : flows_) {
      if (flow.group != &group) continue;
      const int32_t peer = flow.part->peer;
      text += flow.send ? fmt::format(" for rank {} to receive,", peer)
                        : fmt::format(" for data from rank {},", peer);
    }
    text.pop_back();
  }
  return text;
}

}  // namespace

struct MpiWorld::State {
  void meet(double timeout_s);

  MPI_Comm comm = MPI_COMM_NULL;
  bool initialised = false;  // by us
  int32_t rank = 0, world = 0;
  bool may_spin = false;
  std::unique_ptr<Control> control;
  std::unique_ptr<Backend> backend;
};

MpiWorld::MpiWorld(const std::vector<int32_t>& process_of, double timeout_s)
    : state_(std::make_unique<State>()) {
  State& state = *state_;
  int level = 0, process = 0, processes = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
  state.initialised = true;
  MPI_Comm_rank(MPI_COMM_WORLD, &process);
  MPI_Comm_size(MPI_COMM_WORLD, &processes);
  int32_t rank = process;
  if (!process_of.empty()) {
    rank = invert_rank_map(process_of, processes)[static_cast<size_t>(process)];
  }
  MPI_Comm_split(MPI_COMM_WORLD, 0, rank, &state.comm);
  state.meet(timeout_s);
}

MpiWorld::MpiWorld(const MpiCommunicator& communicator, double timeout_s)
    : state_(std::make_unique<State>()) {
  int initialised = 0;
  MPI_Initialized(&initialised);
  if (initialised == 0) fail("MPI", "not initialised", "MPI_Init before");
  const MPI_Comm given = communicator.address == nullptr
                             ? MPI_Comm_f2c(communicator.fortran)
                             : *static_cast<const MPI_Comm*>(communicator.address);
  if (given == MPI_COMM_NULL) fail("communicator", "MPI_COMM_NULL", "one of all ranks");
  check_mpi(MPI_Comm_dup(given, &state_->comm), "MPI_Comm_dup");
  state_->meet(timeout_s);
}

void MpiWorld::State::meet(double timeout_s) {
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &world);

  MPI_Comm local = MPI_COMM_NULL;
  MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &local);
  int neighbours = 0;
  MPI_Comm_size(local, &neighbours);
  MPI_Comm_free(&local);
  may_spin = neighbours <= core_count();

  Invitation invitation;
  std::optional<Listener> listener;
  if (rank == 0) {
    listener.emplace("", 0);
    invitation = make_invitation(own_addresses());
    invitation.port = listener->port();
  }
  share_invitation(invitation, 0, comm);
  const Meeting meeting{rank, world, 0, invitation.token.data(), timeout_s};
  std::vector<Connection> connections;
  if (rank == 0) {
    connections = meet_all(*listener, meeting);
  } else {
    connections.push_back(meet_root(list_hosts(invitation), invitation.port, meeting));
  }
  control = std::make_unique<Control>(rank, world, std::move(connections), timeout_s);
}

MpiWorld::~MpiWorld() {
  State& state = *state_;
  state.backend.reset();
  const bool failed = state.control->failed();
  if (!failed) {
    MPI_Comm_free(&state.comm);
    // Before the control connections end: a rank that leaves early is not missed.
    if (state.initialised) MPI_Finalize();
  }
}

int32_t MpiWorld::rank() const { return state_->rank; }
int32_t MpiWorld::world() const { return state_->world; }
Control& MpiWorld::control() { return *state_->control; }

Backend& MpiWorld::open_backend(int32_t channels) {
  REFIT_CHECK(state_->backend == nullptr);
  state_->backend =
      std::make_unique<MpiBackend>(*state_->control, state_->comm, channels, state_->may_spin);
  return *state_->backend;
}

}  // namespace refit
