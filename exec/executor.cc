#include "exec/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "exec/clock.h"
#include "exec/conversion.h"
#include "exec/strided.h"

namespace refit {

namespace {

/// Bytes of every buffer of a side on a rank, by buffer id; 0 where the rank has none.
std::vector<int64_t> buffer_bytes(const Plan& plan, Side side, int32_t rank) {
  std::vector<int64_t> bytes(plan.buffers.size());
  for (const PlanTensor& tensor : plan.tensors) {
    const bool train = side == Side::kTrain;
    const int32_t map = train ? tensor.train_map : tensor.gen_map;
    if (map < 0) continue;
    const std::vector<Shard>* shards = plan.maps[static_cast<size_t>(map)].find(rank);
    if (shards == nullptr) continue;
    const int64_t bits = dtype_bits(train ? tensor.train_dtype : tensor.gen_dtype);
    const int32_t buffer = train ? tensor.train_buffer : tensor.gen_buffer;
    REFIT_CHECK(buffer >= 0 && buffer < std::ssize(bytes));
    int64_t& most = bytes[static_cast<size_t>(buffer)];
    for (const Shard& shard : *shards) most = std::max(most, (shard_end(shard) * bits + 7) / 8);
  }
  return bytes;
}

int64_t slot_bytes(const Program& program) {
  int64_t bytes = 0;
  for (const Slot& slot : program.slots) bytes = std::max(bytes, slot.offset + slot.bytes);
  return bytes;
}

int64_t all_buffer_bytes(const Plan& plan, int32_t rank) {
  int64_t bytes = 0;
  for (const Side side : {Side::kTrain, Side::kGen}) {
    for (const int64_t of_buffer : buffer_bytes(plan, side, rank)) bytes += align(of_buffer);
  }
  return bytes;
}

/// Bytes that the casts of a rank pack for others or unpack, by channel: the most of any one step.
std::vector<int64_t> cast_bytes(const Plan& plan, int32_t rank) {
  const Program& program = plan.programs[static_cast<size_t>(rank)];
  std::vector<int64_t> most(plan.channels.size());
  for (const Step& step : program.steps) {
    if (step.channel < 0 || step.channel >= std::ssize(most)) continue;  // refused when bound
    int64_t bytes = 0;
    for (int32_t m = step.first_send; m < step.last_message; ++m) {
      const Message& message = program.messages[static_cast<size_t>(m)];
      if (message.peer == rank) continue;  // piece by piece, when it is copied
      for (int32_t p = message.first_piece; p < message.last_piece; ++p) {
        const Piece& piece = program.pieces[static_cast<size_t>(p)];
        if (is_cast(plan, rank, piece)) bytes += piece_bytes(program, piece);
      }
    }
    int64_t& of_channel = most[static_cast<size_t>(step.channel)];
    of_channel = std::max(of_channel, bytes);
  }
  return most;
}

}  // namespace

/// The bound program: groups in the order of the program's steps, that is by (channel, step).
struct Executor::State {
  /// The groups [next, last) of a channel are still to come; `next` may be running.
  struct Queue {
    size_t next = 0, last = 0;
    bool running = false;
  };

  State(const Plan& plan, Backend& the_backend, Buffers the_buffers, Hooks the_hooks,
        Weights* the_weights);

  void bind(const Plan& plan, size_t index);
  Part bind(const Plan& plan, const Message& message, std::vector<Conversion>& conversions);
  Strided bind(const Plan& plan, const Piece& piece, std::vector<Conversion>& conversions);
  bool bind_copies(const Plan& plan, size_t index);
  bool casts(const Plan& plan, const Message* message) const;
  std::vector<Conversion> list_conversions(const Plan& plan, const Message& message) const;
  std::byte* memory_of(const Plan& plan, const Piece& piece, const PieceArea& area) const;
  void allocate_casts(const Plan& plan);

  void connect();
  template <typename Hook, typename... Args>
  void call(const char* name, const Hook& hook, const Args&... args) const;
  void replay();
  bool post_ready();
  bool may_begin(size_t group) const;
  [[noreturn]] void report_stall() const;

  Backend& backend;
  const Program& program;
  Buffers buffers;
  std::byte* staging = nullptr;
  int64_t staging_bytes = 0;
  int64_t bytes_received = 0, bytes_copied = 0;
  Hooks hooks;
  Weights own_weights;
  Weights& weights;
  std::vector<int32_t> written;  // tensors with gen shards here, ascending

  std::vector<Group> groups;
  // Of each group: what its sends need before it is posted, what its receives need when it has
  // ended.
  std::vector<std::vector<Conversion>> packs, unpacks;
  std::vector<std::vector<std::pair<Conversion, Conversion>>> copies;  // with casts
  std::vector<std::byte*> packing;   // by channel: where casts pack
  std::byte* next_packed = nullptr;  // while binding a group
  std::vector<Queue> first_queues;   // by channel, as a replay starts
  std::vector<size_t> waits,
      first_wait = {0};  // of group g: waits[first_wait[g] .. first_wait[g + 1]), groups

  // Of the replay that runs.
  std::vector<Queue> queues;
  std::vector<char> ended;
  std::vector<StepTimes> times;
  Clock::time_point start;
};

Executor::State::State(const Plan& plan, Backend& the_backend, Buffers the_buffers, Hooks the_hooks,
                       Weights* the_weights)
    : backend(the_backend),
      program(plan.programs[static_cast<size_t>(the_backend.rank())]),
      buffers(std::move(the_buffers)),
      hooks(std::move(the_hooks)),
      weights(the_weights == nullptr ? own_weights : *the_weights) {
  staging_bytes = slot_bytes(program);
  staging = backend.allocate(staging_bytes);
  allocate_casts(plan);
  groups.resize(program.steps.size());
  packs.resize(groups.size());
  unpacks.resize(groups.size());
  copies.resize(groups.size());
  first_queues.resize(plan.channels.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    const Step& step = program.steps[g];
    try {
      bind(plan, g);
    } catch (const Error& error) {
      fail(fmt::format("rank {}, channel {}, step {}", backend.rank(), step.channel, step.id),
           error.what());
    }
  }
  times.resize(groups.size());
  for (int32_t t = 0; t < std::ssize(plan.tensors); ++t) {
    const int32_t map = plan.tensors[static_cast<size_t>(t)].gen_map;
    if (map < 0) continue;
    const auto* shards = plan.maps[static_cast<size_t>(map)].find(backend.rank());
    if (shards != nullptr && !shards->empty()) written.push_back(t);
  }
  connect();
  backend.bind(groups);
}

void Executor::State::connect() {
  std::set<int32_t> peers;
  for (const Group& group : groups) {
    for (const Part& part : group.sends) peers.insert(part.peer);
    for (const Part& part : group.recvs) peers.insert(part.peer);
  }
  peers.erase(backend.rank());
  backend.connect(std::vector<int32_t>(peers.begin(), peers.end()));
}

void Executor::State::bind(const Plan& plan, size_t index) {
  const Step& step = program.steps[index];
  Group& group = groups[index];
  group.channel = step.channel;
  group.step = step.id;
  if (index > 0) {
    const Step& before = program.steps[index - 1];
    if (std::pair(before.channel, before.id) >= std::pair(step.channel, step.id)) {
      fail("step", "one that does not come after the one before it", "steps by (channel, id)");
    }
  }
  if (step.channel < 0 || step.channel >= std::ssize(first_queues)) {
    fail("channel", std::to_string(step.channel), fmt::format("0..{}", first_queues.size() - 1));
  }
  next_packed = packing[static_cast<size_t>(step.channel)];
  Queue& queue = first_queues[static_cast<size_t>(step.channel)];
  if (queue.last == 0) queue.next = index;
  queue.last = index + 1;

  const Message* local_send = find_send(program, step, backend.rank());
  const Message* local_recv = find_recv(program, step, backend.rank());
  const bool local_casts = casts(plan, local_send) || casts(plan, local_recv);
  const bool copies_here = local_casts && !backend.casts() && bind_copies(plan, index);
  for (int32_t m = step.first_send; m < step.last_message; ++m) {
    const Message& message = program.messages[static_cast<size_t>(m)];
    if (copies_here && message.peer == backend.rank()) continue;
    Part part = bind(plan, message, m < step.first_recv ? packs[index] : unpacks[index]);
    if (backend.casts() && (message.peer == backend.rank() ? local_casts : casts(plan, &message))) {
      part.conversions = list_conversions(plan, message);
    }
    if (m < step.first_recv) {
      group.sends.push_back(std::move(part));
    } else {
      (message.peer == backend.rank() ? bytes_copied : bytes_received) += part.bytes;
      group.recvs.push_back(std::move(part));
    }
  }
  for (int32_t w = step.first_wait; w < step.last_wait; ++w) {
    const Wait& wait = program.waits[static_cast<size_t>(w)];
    const auto at = std::lower_bound(
        program.steps.begin(), program.steps.end(), wait, [](const Step& a, const Wait& b) {
          return std::pair(a.channel, a.id) < std::pair(b.channel, b.step);
        });
    if (at == program.steps.end() || at->channel != wait.channel || at->id != wait.step) {
      fail(fmt::format("wait for channel {}, step {}", wait.channel, wait.step),
           "the rank has no such step");
    }
    waits.push_back(static_cast<size_t>(at - program.steps.begin()));
    if (wait.channel != step.channel) group.after.push_back(static_cast<int32_t>(waits.back()));
  }
  first_wait.push_back(waits.size());
}

void Executor::State::allocate_casts(const Plan& plan) {
  packing.resize(plan.channels.size());
  if (backend.casts()) return;
  const std::vector<int64_t> bytes = cast_bytes(plan, backend.rank());
  for (size_t channel = 0; channel < bytes.size(); ++channel) {
    if (bytes[channel] > 0) packing[channel] = backend.allocate(bytes[channel]);
  }
}

/// Does some piece of the message have other values in memory than on the wire?
bool Executor::State::casts(const Plan& plan, const Message* message) const {
  return message != nullptr &&
         std::any_of(program.pieces.begin() + message->first_piece,
                     program.pieces.begin() + message->last_piece,
                     [&](const Piece& piece) { return is_cast(plan, backend.rank(), piece); });
}

/// For a backend that casts; it says where the pieces are packed.
std::vector<Conversion> Executor::State::list_conversions(const Plan& plan,
                                                          const Message& message) const {
  std::vector<Conversion> conversions;
  for (int32_t p = message.first_piece; p < message.last_piece; ++p) {
    const Piece& piece = program.pieces[static_cast<size_t>(p)];
    std::byte* memory = memory_of(plan, piece, find_area(plan, backend.rank(), piece));
    conversions.push_back(make_conversion(plan, backend.rank(), piece, memory, nullptr));
  }
  return conversions;
}

/// Local copies with casts are done here, piece by piece. Returns whether the step has such.
bool Executor::State::bind_copies(const Plan& plan, size_t index) {
  const int32_t rank = backend.rank();
  const Step& step = program.steps[index];
  const Message* send = find_send(program, step, rank);
  const Message* recv = find_recv(program, step, rank);
  if (send == nullptr || recv == nullptr) return false;
  const int32_t pieces = send->last_piece - send->first_piece;
  if (pieces != recv->last_piece - recv->first_piece) fail("local copy", "ends that do not match");
  std::vector<std::pair<Conversion, Conversion>> pairs;
  for (int32_t i = 0; i < pieces; ++i) {
    const auto end = [&](int32_t first) {
      const Piece& piece = program.pieces[static_cast<size_t>(first + i)];
      const PieceArea area = find_area(plan, rank, piece);
      return make_conversion(plan, rank, piece, memory_of(plan, piece, area), nullptr);
    };
    pairs.emplace_back(end(send->first_piece), end(recv->first_piece));
  }
  for (const auto& [from, to] : pairs) {
    if (from.box != to.box || from.wire != to.wire) fail("local copy", "ends that do not match");
    bytes_copied += dtype_bytes(from.wire, from.box.volume());
  }
  copies[index] = std::move(pairs);
  return true;
}

Part Executor::State::bind(const Plan& plan, const Message& message,
                           std::vector<Conversion>& conversions) {
  if (message.peer < 0 || message.peer >= backend.world()) {
    fail("peer", std::to_string(message.peer), fmt::format("0..{}", backend.world() - 1));
  }
  Part part;
  part.peer = message.peer;
  part.boxes.reserve(static_cast<size_t>(message.last_piece - message.first_piece));
  for (int32_t p = message.first_piece; p < message.last_piece; ++p) {
    const Piece& piece = program.pieces[static_cast<size_t>(p)];
    try {
      part.boxes.push_back(bind(plan, piece, conversions));
    } catch (const Error& error) {
      fail("tensor " + plan.tensors[static_cast<size_t>(piece.tensor)].name, error.what());
    }
    part.bytes += part.boxes.back().bytes();
  }
  return part;
}

std::byte* Executor::State::memory_of(const Plan& plan, const Piece& piece,
                                      const PieceArea& area) const {
  const PlanTensor& tensor = plan.tensors[static_cast<size_t>(area.tensor)];
  std::byte* base = nullptr;
  switch (piece.place) {
    case Place::kTrain:
      base = buffers.train.at(static_cast<size_t>(tensor.train_buffer));
      break;
    case Place::kGen:
      base = buffers.gen.at(static_cast<size_t>(tensor.gen_buffer));
      break;
    case Place::kStaging: {
      const Slot& slot = program.slots[static_cast<size_t>(piece.area)];
      const int64_t bytes = dtype_bytes(slot.dtype, area.shard.box.volume());
      if (bytes > slot.bytes) {
        fail(fmt::format("slot {}", piece.area), fmt::format("{} bytes", slot.bytes),
             fmt::format("at least {}", bytes));
      }
      base = staging + slot.offset;
      break;
    }
  }
  if (base == nullptr) fail("buffer", "none on this rank", "an address");
  return base;
}

Strided Executor::State::bind(const Plan& plan, const Piece& piece,
                              std::vector<Conversion>& conversions) {
  const Box& box = program.boxes[static_cast<size_t>(piece.box)];
  const PieceArea area = find_area(plan, backend.rank(), piece);
  std::byte* base = memory_of(plan, piece, area);
  if (!is_cast(plan, backend.rank(), piece)) return resolve(area.shard, box, area.dtype, base);
  const PlanTensor& tensor = plan.tensors[static_cast<size_t>(piece.tensor)];
  if (tensor.format == Format::kNone && !is_convertible(piece.wire, area.dtype)) {
    fail("wire dtype", dtype_name(piece.wire),
         fmt::format("{} as in the buffer, or one that converts to it", dtype_name(area.dtype)));
  }
  const int64_t bytes = piece_bytes(program, piece);
  if (backend.casts()) return {.run = bytes};
  const Conversion& conversion =
      conversions.emplace_back(make_conversion(plan, backend.rank(), piece, base, next_packed));
  next_packed += bytes;
  return {.base = conversion.packed, .run = bytes};
}

bool Executor::State::may_begin(size_t group) const {
  return std::all_of(waits.begin() + static_cast<std::ptrdiff_t>(first_wait[group]),
                     waits.begin() + static_cast<std::ptrdiff_t>(first_wait[group + 1]),
                     [&](size_t wait) { return ended[wait] != 0; });
}

/// Posts all that may begin. Returns whether anything is still to end.
bool Executor::State::post_ready() {
  bool work_left = true, again = true;
  while (again) {  // a group without messages ends at once and may release others
    work_left = again = false;
    bool running = false;
    for (Queue& queue : queues) {
      while (!queue.running && queue.next < queue.last && may_begin(queue.next)) {
        const Group& group = groups[queue.next];
        times[queue.next].begin_s = seconds_since(start);
        KnownScales known;  // nothing that the group reads changes until it ends
        for (const auto& [from, to] : copies[queue.next]) copy_piece(from, to, &known);
        if (group.sends.empty() && group.recvs.empty()) {
          times[queue.next].end_s = seconds_since(start);
          ended[queue.next++] = 1;
          again = true;
        } else {
          for (const Conversion& conversion : packs[queue.next]) pack(conversion, &known);
          backend.post(group);
          queue.running = true;
        }
      }
      running |= queue.running;
      work_left |= queue.next < queue.last;
    }
    if (work_left && !running && !again) report_stall();
  }
  return work_left;
}

void Executor::State::report_stall() const {
  const auto stuck = std::find_if(queues.begin(), queues.end(),
                                  [](const Queue& queue) { return queue.next < queue.last; });
  const Group& group = groups[stuck->next];
  fail(fmt::format("rank {}, channel {}, step {}", backend.rank(), group.channel, group.step),
       "waits for steps that wait for it");
}

/// What a hook throws names the rank from here on.
template <typename Hook, typename... Args>
void Executor::State::call(const char* name, const Hook& hook, const Args&... args) const {
  if (!hook) return;
  try {
    hook(args...);
  } catch (const std::exception& error) {
    throw Error(fmt::format("rank {}, hook {}, nothing is committed: {}", backend.rank(), name,
                            error.what()),
                ErrorKind::kWork);
  }
}

void Executor::State::replay() {
  queues = first_queues;
  ended.assign(groups.size(), 0);
  while (post_ready()) {
    Queue& queue = queues[static_cast<size_t>(backend.wait_any())];
    REFIT_CHECK(queue.running);
    for (const Conversion& conversion : unpacks[queue.next]) unpack(conversion);
    times[queue.next].end_s = seconds_since(start);
    ended[queue.next++] = 1;
    queue.running = false;
  }
}

Executor::Executor(const Plan& plan, Backend& backend, Buffers buffers, Hooks hooks,
                   Weights* weights)
    : state_(
          std::make_unique<State>(plan, backend, std::move(buffers), std::move(hooks), weights)) {}

Executor::~Executor() = default;

ReplayTimes Executor::run(int64_t version) {
  State& state = *state_;
  const bool writes = !state.written.empty();
  ReplayTimes times{0, state.bytes_received, state.bytes_copied};
  try {
    if (writes) state.call("before_write", state.hooks.before_write);
    state.backend.barrier();
    state.weights.torn = writes;
    state.start = Clock::now();
    if (state.backend.begin_replay()) state.replay();
    state.backend.end_replay();
    times.refit_s = seconds_since(state.start);
    if (writes) state.call("finalize", state.hooks.finalize, state.written);
    state.backend.barrier();  // success means that every rank finished: the commit
  } catch (const std::exception& error) {
    state.backend.abort(error.what());
    throw;
  }
  state.weights = {version > 0 ? version : state.weights.version + 1, false};
  if (writes && state.hooks.after_commit) state.hooks.after_commit(state.weights.version);
  return times;
}

const Weights& Executor::weights() const { return state_->weights; }

std::span<const StepTimes> Executor::step_times() const { return state_->times; }

int64_t Executor::staging_bytes() const { return state_->staging_bytes; }

MemoryUse memory_use(const Plan& plan, int32_t rank) {
  MemoryUse use;
  use.buffers = all_buffer_bytes(plan, rank);
  use.staging = slot_bytes(plan.programs[static_cast<size_t>(rank)]);
  for (const int64_t bytes : cast_bytes(plan, rank)) use.staging += bytes;
  return use;
}

Executor::Buffers allocate_buffers(const Plan& plan, Backend& backend) {
  // One block for all: a process that plays hundreds of ranks would run out of mappings otherwise.
  std::byte* next = backend.allocate(all_buffer_bytes(plan, backend.rank()));
  const auto cut = [&](Side side) {
    std::vector<std::byte*> buffers;
    for (const int64_t bytes : buffer_bytes(plan, side, backend.rank())) {
      buffers.push_back(bytes == 0 ? nullptr : next);
      next += align(bytes);
    }
    return buffers;
  };
  Executor::Buffers buffers;
  buffers.train = cut(Side::kTrain);
  buffers.gen = cut(Side::kGen);
  return buffers;
}

}  // namespace refit
