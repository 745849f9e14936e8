#include "exec/nccl_backend.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <deque>
#include <exception>
#include <set>
#include <thread>

#include "base/error.h"
#include "exec/clock.h"
#include "exec/device_blocks.h"

namespace refit {

namespace {

constexpr int64_t kLeastRegistered = int64_t{1} << 20;  // smaller ranges cost more than they save
constexpr int32_t kMostCtas = 32;  // of a kernel, as many as one NVLink peer can use

constexpr double kDrainTime_s = 5;

/// A step as it is enqueued; peers are ranks of the channel's communicator.
struct BoundStep {
  SweepView before, after;
  std::vector<WireMessage> sends, recvs;
  int32_t mark = 0;               // place in its channel, from 1
  GpuApi::Event ended = nullptr;  // only where another channel waits for it
};

struct ChannelState {
  GpuApi::Comm comm = nullptr;
  GpuApi::Stream stream = nullptr;
  GpuApi::Event joined = nullptr;
  int32_t* marker = nullptr;         // host memory: the step that runs, from 1
  std::vector<int32_t> comm_rank;    // by rank; -1 outside
  std::vector<const Group*> groups;  // bound, in order
  int32_t end_mark() const { return static_cast<int32_t>(groups.size()) + 1; }
};

/// NVLink domains are numbered by their first rank; a rank without a named domain is alone.
int32_t domain_of(const Plan& plan, int32_t rank) {
  int32_t first = 0;
  while (!same_domain(plan, first, rank)) ++first;
  return first;
}

}  // namespace

struct NcclBackend::State {
  State(GpuApi& the_gpu, int32_t the_rank, int32_t the_world, Bootstrap* the_bootstrap,
        const NcclOptions& the_options)
      : gpu(the_gpu),
        rank(the_rank),
        world(the_world),
        bootstrap(the_bootstrap),
        options(the_options),
        memory(the_gpu) {}
  ~State();

  void make_comms(const Plan& plan, GpuApi::Comm parent);
  void settle(GpuApi::Comm comm);
  void upload(const std::vector<DeviceStep>& device_steps);
  void register_memory();
  void connect();
  void gather(int64_t bytes);
  void drain();

  template <typename Done>
  void wait_until(const Done& done);
  void check_failure();
  int64_t progress() const;
  const BoundStep& step_of(const Group& group) const {
    return steps[static_cast<size_t>(&group - groups.data())];
  }
  std::string describe_stall() const;
  void refuse_aborted() const;

  GpuApi& gpu;
  const int32_t rank, world;
  Bootstrap* const bootstrap;
  const NcclOptions options;

  std::vector<ChannelState> channels;
  GpuApi::Comm control = nullptr;
  GpuApi::Stream origin = nullptr;
  GpuApi::Event start = nullptr;
  GpuApi::Graph graph = nullptr;
  std::byte* markers = nullptr;
  DeviceBlocks memory;
  std::vector<std::pair<GpuApi::Comm, void*>> registered;

  std::span<const Group> groups;
  std::vector<BoundStep> steps;  // by group
  std::deque<int32_t> posted;    // channels
  int64_t replays = 0;
  bool capturing = false, replaying = false;
  std::string doing = "making communicators";  // for the report of a stall outside of a replay
  std::string aborted;                         // the reason
  std::byte* gathered = nullptr;               // device memory of all_gather
  int64_t gathered_bytes = 0;
  Setup setup;
};

NcclBackend::State::~State() {
  try {
    if (aborted.empty()) {
      for (const auto& [comm, handle] : registered) gpu.deregister_memory(comm, handle);
      for (const ChannelState& channel : channels) {
        if (channel.comm != nullptr) gpu.destroy_comm(channel.comm);
      }
      if (control != nullptr) gpu.destroy_comm(control);
    }
    if (graph != nullptr) gpu.destroy_graph(graph);
    for (const BoundStep& step : steps) {
      if (step.ended != nullptr) gpu.destroy_event(step.ended);
    }
    for (const ChannelState& channel : channels) {
      if (channel.joined != nullptr) gpu.destroy_event(channel.joined);
      if (channel.stream != nullptr) gpu.destroy_stream(channel.stream);
    }
    if (start != nullptr) gpu.destroy_event(start);
    if (origin != nullptr) gpu.destroy_stream(origin);
    memory.release_all();
    if (markers != nullptr) gpu.release_host(markers);
  } catch (const std::exception&) {
    // A device that has failed cannot be tidied up; its process is about to end.
  }
}

// Waiting

void NcclBackend::State::check_failure() {
  if (bootstrap == nullptr) return;
  const std::string reason = bootstrap->failure();
  if (!reason.empty()) throw Error(reason, ErrorKind::kWork);
}

int64_t NcclBackend::State::progress() const {
  int64_t sum = 0;
  for (const ChannelState& channel : channels) {
    // Written by the device.
    if (channel.marker != nullptr) sum += *static_cast<volatile int32_t*>(channel.marker);
  }
  return sum;
}

template <typename Done>
void NcclBackend::State::wait_until(const Done& done) {
  Clock::time_point deadline = from_now(options.timeout_s);
  int64_t seen = progress();
  for (int64_t polls = 1; !done(); ++polls) {
    if (polls % 64 == 0) check_failure();
    if (const int64_t now = progress(); now != seen) {
      seen = now;
      deadline = from_now(options.timeout_s);
    } else if (Clock::now() > deadline) {
      check_failure();
      throw Error(describe_stall(), ErrorKind::kWork);
    }
    // Nothing to block on: a wait of the runtime's would not end when another rank fails.
    if (polls < 1000) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
}

std::string NcclBackend::State::describe_stall() const {
  std::string text = fmt::format("rank {}: no progress for {} s", rank, options.timeout_s);
  if (!replaying) return text + " while " + doing;
  bool found = false;
  for (size_t c = 0; c < channels.size(); ++c) {
    const ChannelState& channel = channels[c];
    const int32_t mark = *static_cast<volatile int32_t*>(channel.marker);
    if (mark <= 0 || mark >= channel.end_mark()) continue;
    const Group& group = *channel.groups[static_cast<size_t>(mark) - 1];
    std::set<int32_t> peers;
    for (const Part& part : group.sends) peers.insert(part.peer);
    for (const Part& part : group.recvs) peers.insert(part.peer);
    peers.erase(rank);
    text += fmt::format("; channel {}, step {} waits for rank{} {}", c, group.step,
                        peers.size() == 1 ? "" : "s", fmt::join(peers, ", "));
    found = true;
  }
  return found ? text : text + "; no step of this rank has begun";
}

void NcclBackend::State::refuse_aborted() const {
  if (!aborted.empty()) throw Error(aborted, ErrorKind::kWork);
}

void NcclBackend::State::settle(GpuApi::Comm comm) {
  wait_until([&] { return gpu.is_settled(comm); });
}

// Making

void NcclBackend::State::make_comms(const Plan& plan, GpuApi::Comm parent) {
  // Kernels of all channels have to fit on the device at once: else one that waits for a peer could
  // keep out the one that the peer waits for.
  const int32_t lanes = std::max(static_cast<int32_t>(plan.channels.size()), 1);
  const int32_t share = std::max((gpu.multiprocessors() - 1) / lanes, 1);
  const auto ctas =
      static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(std::min(share, kMostCtas))));
  const CommSettings control_settings{1, 0};
  if (parent != nullptr) {
    control = gpu.split_comm(parent, 0, rank, control_settings);
  } else {
    REFIT_CHECK(bootstrap != nullptr);
    const std::string id =
        bootstrap->all_gather(rank == 0 ? gpu.make_unique_id() : std::string()).front();
    control = gpu.make_comm(id, world, rank, control_settings);
  }
  settle(control);
  for (size_t c = 0; c < channels.size(); ++c) {
    ChannelState& channel = channels[c];
    const bool nvlink = plan.channels[c].lane == Lane::kNvlink;
    channel.comm_rank.assign(static_cast<size_t>(world), -1);
    int32_t members = 0;
    for (int32_t other = 0; other < world; ++other) {
      if (!nvlink || same_domain(plan, other, rank)) {
        channel.comm_rank[static_cast<size_t>(other)] = members++;
      }
    }
    const CommSettings settings{ctas, nvlink ? 0 : options.net_channels_per_peer};
    channel.comm = gpu.split_comm(control, nvlink ? domain_of(plan, rank) : 0, rank, settings);
    settle(control);
    settle(channel.comm);
  }
  // Making one may put those made before it back in progress.
  for (const ChannelState& channel : channels) settle(channel.comm);
  settle(control);
}

/// Where `work` fails, communicators may be half made or at work: they cannot be destroyed any
/// more.
template <typename Work>
void NcclBackend::or_abort(const Work& work) {
  try {
    work();
  } catch (const std::exception& error) {
    abort(error.what());
    throw;
  }
}

NcclBackend::NcclBackend(GpuApi& gpu, const Plan& plan, int32_t rank, Bootstrap* bootstrap,
                         GpuApi::Comm parent, const NcclOptions& options)
    : state_(std::make_unique<State>(gpu, rank, static_cast<int32_t>(plan.ranks.size()), bootstrap,
                                     options)) {
  State& state = *state_;
  REFIT_CHECK(rank >= 0 && rank < state.world);
  state.channels.resize(plan.channels.size());
  state.origin = gpu.make_stream();
  state.start = gpu.make_event();
  or_abort([&] { state.make_comms(plan, parent); });
  state.gathered_bytes = state.world + 1;  // what barriers need
  state.gathered = allocate(state.gathered_bytes);
  state.markers = gpu.allocate_host(kAlignment * std::max<int64_t>(std::ssize(plan.channels), 1));
  for (size_t c = 0; c < state.channels.size(); ++c) {
    ChannelState& channel = state.channels[c];
    channel.stream = gpu.make_stream();
    channel.joined = gpu.make_event();
    // A cache line of its own: the device writes it while the host reads others.
    channel.marker =
        reinterpret_cast<int32_t*>(state.markers + kAlignment * static_cast<int64_t>(c));
  }
}

NcclBackend::~NcclBackend() = default;

int32_t NcclBackend::rank() const { return state_->rank; }
int32_t NcclBackend::world() const { return state_->world; }
const NcclBackend::Setup& NcclBackend::setup() const { return state_->setup; }

std::byte* NcclBackend::allocate(int64_t bytes) { return state_->memory.allocate(bytes); }

void NcclBackend::copy(std::byte* to, const std::byte* from, int64_t bytes) {
  state_->gpu.copy(to, from, bytes);
}

// Binding

void NcclBackend::State::upload(const std::vector<DeviceStep>& device_steps) {
  std::vector<const Sweep*> sweeps;
  for (const DeviceStep& step : device_steps) {
    sweeps.insert(sweeps.end(), {&step.before, &step.after});
    setup.copied_bytes += step.before.copies.bytes() + step.after.copies.bytes();
  }
  const DeviceBlocks::Sweeps uploaded = memory.upload(sweeps);
  setup.table_bytes = uploaded.bytes;
  for (size_t g = 0; g < steps.size(); ++g) {
    steps[g].before = uploaded.views[2 * g];
    steps[g].after = uploaded.views[2 * g + 1];
  }
  for (const SweepView& sweep : uploaded.views) {
    setup.sweeps += sweep.tiles() > 0 ? 1 : 0;
    setup.casts += sweep.casts.tiles > 0 ? 1 : 0;
  }
}

void NcclBackend::State::register_memory() {
  if (!options.register_buffers) return;
  for (const ChannelState& channel : channels) {
    std::vector<WireMessage> messages;
    for (const Group* group : channel.groups) {
      const BoundStep& step = step_of(*group);
      messages.insert(messages.end(), step.sends.begin(), step.sends.end());
      messages.insert(messages.end(), step.recvs.begin(), step.recvs.end());
    }
    for (const MemoryRange& range : memory.find_ranges(messages)) {
      if (range.bytes() < kLeastRegistered) continue;
      void* handle = gpu.register_memory(channel.comm, range.first, range.bytes());
      if (handle == nullptr) continue;
      registered.emplace_back(channel.comm, handle);
      setup.registered_bytes += range.bytes();
    }
  }
}

/// One byte to and from every peer that a channel will see, all in one group: so NCCL's connections
/// are made before the first replay, in no order that ranks could disagree on.
void NcclBackend::State::connect() {
  const auto begin = Clock::now();
  doing = "connecting to peers";
  const int64_t bytes = 2 * int64_t{world};
  std::byte* scratch = memory.allocate(bytes);
  for (const ChannelState& channel : channels) {
    std::set<int32_t> to, from;
    for (const Group* group : channel.groups) {
      const BoundStep& step = step_of(*group);
      for (const WireMessage& message : step.sends) to.insert(message.peer);
      for (const WireMessage& message : step.recvs) from.insert(message.peer);
    }
    if (to.empty() && from.empty()) continue;
    gpu.begin_group();
    for (const int32_t peer : to) gpu.send(scratch + peer, 1, peer, channel.comm, channel.stream);
    for (const int32_t peer : from) {
      gpu.receive(scratch + world + peer, 1, peer, channel.comm, channel.stream);
    }
    gpu.end_group();
    settle(channel.comm);
    wait_until([&] { return gpu.is_done(channel.stream); });
  }
  setup.connect_s = seconds_since(begin);
}

void NcclBackend::bind(std::span<const Group> groups) {
  State& state = *state_;
  REFIT_CHECK(state.steps.empty());
  state.gpu.make_current();
  state.groups = groups;
  state.steps.resize(groups.size());
  std::vector<int64_t> packing(state.channels.size());
  for (const Group& group : groups) {
    int64_t& most = packing[static_cast<size_t>(group.channel)];
    most = std::max(most, align(packing_bytes(group, state.rank)));
  }
  for (const int64_t bytes : packing) state.setup.packing_bytes += bytes;
  std::byte* next = allocate(state.setup.packing_bytes);
  std::vector<std::byte*> packing_at;
  for (const int64_t bytes : packing) {
    packing_at.push_back(next);
    next += bytes;
  }

  std::vector<DeviceStep> device_steps;
  for (size_t g = 0; g < groups.size(); ++g) {
    const Group& group = groups[g];
    ChannelState& channel = state.channels[static_cast<size_t>(group.channel)];
    device_steps.push_back(
        make_device_step(group, state.rank, packing_at[static_cast<size_t>(group.channel)]));
    DeviceStep& device_step = device_steps.back();
    BoundStep& step = state.steps[g];
    channel.groups.push_back(&group);
    step.mark = static_cast<int32_t>(channel.groups.size());
    const auto to_comm_ranks = [&](std::vector<WireMessage>& messages) {
      for (WireMessage& message : messages) {
        const int32_t peer = channel.comm_rank[static_cast<size_t>(message.peer)];
        if (peer < 0) {
          fail(fmt::format("rank {}, channel {}, step {}", state.rank, group.channel, group.step),
               fmt::format("a message with rank {} of another NVLink domain", message.peer),
               "messages inside the domain on an nvlink channel");
        }
        message.peer = peer;
      }
      state.setup.messages += std::ssize(messages);
    };
    to_comm_ranks(device_step.sends);
    to_comm_ranks(device_step.recvs);
    step.sends = std::move(device_step.sends);
    step.recvs = std::move(device_step.recvs);
    for (const int32_t other : group.after) {
      GpuApi::Event& ended = state.steps[static_cast<size_t>(other)].ended;
      if (ended == nullptr) ended = state.gpu.make_event();
    }
  }
  state.setup.steps = std::ssize(groups);
  state.upload(device_steps);
  or_abort([&] {
    state.register_memory();
    state.connect();
  });
  state.doing = "meeting all ranks";
}

// Replaying

void NcclBackend::begin_after(GpuApi::Stream stream) {
  state_->gpu.make_current();
  // The event is used again by begin_replay: the wait refers to this record of it.
  state_->gpu.record(state_->start, stream);
  state_->gpu.wait(state_->origin, state_->start);
}

bool NcclBackend::begin_replay() {
  State& state = *state_;
  state.refuse_aborted();
  state.gpu.make_current();
  state.posted.clear();
  for (const ChannelState& channel : state.channels) {
    *static_cast<volatile int32_t*>(channel.marker) = 0;
  }
  state.replaying = true;
  ++state.replays;
  if (state.graph != nullptr) {
    state.setup.graph = true;
    state.gpu.launch(state.graph, state.origin);
    return false;
  }
  // The first replay runs as it is enqueued: what NCCL does on first use may not be captured.
  state.capturing = state.options.graph && state.replays == 2;
  if (state.capturing) state.gpu.begin_capture(state.origin);
  state.gpu.record(state.start, state.origin);
  for (const ChannelState& channel : state.channels) state.gpu.wait(channel.stream, state.start);
  return true;
}

void NcclBackend::post(const Group& group) {
  State& state = *state_;
  GpuApi& gpu = state.gpu;
  const ChannelState& channel = state.channels[static_cast<size_t>(group.channel)];
  const BoundStep& step = state.step_of(group);
  for (const int32_t other : group.after) {
    gpu.wait(channel.stream, state.steps[static_cast<size_t>(other)].ended);
  }
  gpu.launch_sweep(step.before, channel.marker, step.mark, channel.stream);
  if (!step.sends.empty() || !step.recvs.empty()) {
    gpu.begin_group();
    for (const WireMessage& message : step.sends) {
      gpu.send(message.at, message.bytes, message.peer, channel.comm, channel.stream);
    }
    for (const WireMessage& message : step.recvs) {
      gpu.receive(message.at, message.bytes, message.peer, channel.comm, channel.stream);
    }
    gpu.end_group();
    state.settle(channel.comm);
  }
  if (step.after.tiles() > 0) gpu.launch_sweep(step.after, nullptr, 0, channel.stream);
  if (step.ended != nullptr) gpu.record(step.ended, channel.stream);
  state.posted.push_back(group.channel);
}

int32_t NcclBackend::wait_any() {
  // In the order of the streams a posted step has ended for whatever is enqueued after it.
  REFIT_CHECK(!state_->posted.empty());
  const int32_t channel = state_->posted.front();
  state_->posted.pop_front();
  return channel;
}

void NcclBackend::end_replay() {
  State& state = *state_;
  GpuApi& gpu = state.gpu;
  const bool enqueued = state.graph == nullptr;
  if (enqueued) {
    for (const ChannelState& channel : state.channels) {
      gpu.launch_sweep({}, channel.marker, channel.end_mark(), channel.stream);
      gpu.record(channel.joined, channel.stream);
      gpu.wait(state.origin, channel.joined);
    }
  }
  if (state.capturing) {
    state.capturing = false;
    state.graph = gpu.end_capture(state.origin);
    gpu.launch(state.graph, state.origin);
  }
  state.wait_until([&] { return gpu.is_done(state.origin); });
  state.replaying = false;
}

void NcclBackend::barrier() {
  State& state = *state_;
  state.refuse_aborted();
  state.gpu.make_current();
  or_abort([&] { state.gather(1); });
}

/// Gathers `bytes` bytes of every rank behind the first `bytes` of the buffer.
void NcclBackend::State::gather(int64_t bytes) {
  gpu.all_gather(gathered, gathered + bytes, bytes, control, origin);
  settle(control);
  wait_until([&] { return gpu.is_done(origin); });
}

std::vector<std::string> NcclBackend::all_gather(const std::string& mine) {
  State& state = *state_;
  GpuApi& gpu = state.gpu;
  state.refuse_aborted();
  gpu.make_current();
  const int64_t bytes = std::ssize(mine);
  REFIT_CHECK(bytes > 0);
  const int64_t needed = bytes * (state.world + 1);
  if (needed > state.gathered_bytes) {
    state.gathered = allocate(needed);
    state.gathered_bytes = needed;
  }
  gpu.copy(state.gathered, reinterpret_cast<const std::byte*>(mine.data()), bytes);
  or_abort([&] { state.gather(bytes); });
  std::string all(static_cast<size_t>(bytes * state.world), '\0');
  gpu.copy(reinterpret_cast<std::byte*>(all.data()), state.gathered + bytes, std::ssize(all));
  std::vector<std::string> blobs;
  for (int32_t rank = 0; rank < state.world; ++rank) {
    blobs.push_back(all.substr(static_cast<size_t>(rank * bytes), static_cast<size_t>(bytes)));
  }
  return blobs;
}

void NcclBackend::abort(const std::string& reason) {
  State& state = *state_;
  if (!state.aborted.empty()) return;
  state.aborted = reason.empty() ? fmt::format("rank {} has aborted", state.rank) : reason;
  if (state.bootstrap != nullptr) state.bootstrap->publish_failure(state.aborted);
  if (state.capturing) {
    state.capturing = false;
    try {
      state.gpu.destroy_graph(state.gpu.end_capture(state.origin));
    } catch (const Error&) {
      // Nobody has joined the streams back: that ends the capture as well.
    }
  }
  // Ends kernels that wait for peers; those of the peers end when their own hosts abort.
  for (ChannelState& channel : state.channels) {
    if (channel.comm != nullptr) state.gpu.abort_comm(channel.comm);
    channel.comm = nullptr;
  }
  if (state.control != nullptr) state.gpu.abort_comm(state.control);
  state.control = nullptr;
  state.registered.clear();
  state.drain();
}

/// After an abort nothing waits for peers any more: what is on the streams runs to its end, so that
/// nothing touches the caller's memory later.
void NcclBackend::State::drain() {
  const Clock::time_point deadline = from_now(kDrainTime_s);
  std::vector<GpuApi::Stream> streams = {origin};
  for (const ChannelState& channel : channels) streams.push_back(channel.stream);
  try {
    for (const GpuApi::Stream stream : streams) {
      if (stream == nullptr) continue;
      while (!gpu.is_done(stream) && Clock::now() < deadline) std::this_thread::yield();
    }
  } catch (const Error&) {
    // The device itself has failed: it touches nothing.
  }
}

}  // namespace refit
