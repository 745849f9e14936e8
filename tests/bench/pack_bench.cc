// Packing on the host with the real tables of a big plan, as ratios against memcpy of as many bytes in
// the same run, and what a replay of it costs the host when GPUs do the work. The plan is DeepSeek-V3,
// EP16 PP16 to TP32 DP8, 512 ranks, made by the `refit` beside this program (REFIT_BENCH_PLAN: another
// plan, already made).
//
// A rank's 42 GB do not fit here: buffers are address space, and what a batch of steps touches is
// written before it is timed and given back after. Times are CPU times of this thread.

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "exec/copy_table.h"
#include "exec/device_step.h"
#include "exec/executor.h"
#include "exec/machine.h"
#include "exec/nccl_backend.h"
#include "plans/plan_io.h"
#include "tests/temporary_folder.h"

namespace refit {
namespace {

constexpr int64_t kBatchBytes = int64_t{256} << 20;
constexpr int64_t kMostBytes = int64_t{1} << 30;  // of a class, to be quick
constexpr int kRepeats = 4;
constexpr double kLeast = 0.70;  // of memcpy

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Takes what an executor binds, and moves nothing.
class Recorder final : public Backend {
 public:
  Recorder(int32_t rank, int32_t world) : rank_(rank), world_(world) {}
  std::string name() const override { return "recorder"; }
  int32_t rank() const override { return rank_; }
  int32_t world() const override { return world_; }
  std::byte* allocate(int64_t bytes) override { return memory_.emplace_back(bytes).data(); }
  void bind(std::span<const Group> groups) override { groups_ = groups; }
  void post(const Group&) override {}
  int32_t wait_any() override { return 0; }
  void barrier() override {}
  void abort(const std::string&) override {}
  std::span<const Group> groups() const { return groups_; }

 private:
  const int32_t rank_, world_;
  std::vector<Mapping> memory_;
  std::span<const Group> groups_;
};

/// A device on which everything is done at once, for nothing.
class NoGpu final : public GpuApi {
 public:
  int64_t calls = 0;
  void make_current() override {}
  std::string describe() const override { return "none"; }
  int32_t multiprocessors() const override { return 132; }
  std::byte* allocate(int64_t bytes) override { return memory_.emplace_back(bytes).data(); }
  void release(std::byte*) override {}
  std::byte* allocate_host(int64_t bytes) override { return allocate(bytes); }
  void release_host(std::byte*) override {}
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  Stream make_stream() override { return this; }
  void destroy_stream(Stream) override {}
  bool is_done(Stream) override { return true; }
  Event make_event() override { return this; }
  void destroy_event(Event) override {}
  void record(Event, Stream) override { ++calls; }
  void wait(Stream, Event) override { ++calls; }
  void begin_capture(Stream) override {}
  Graph end_capture(Stream) override { return this; }
  void launch(Graph, Stream) override { ++calls; }
  void destroy_graph(Graph) override {}
  void launch_sweep(const SweepView&, int32_t*, int32_t, Stream) override { ++calls; }
  std::string make_unique_id() override { return "id"; }
  Comm make_comm(const std::string&, int32_t, int32_t, const CommSettings&) override {
    return this;
  }
  Comm split_comm(Comm, int32_t, int32_t, const CommSettings&) override { return this; }
  bool is_settled(Comm) override { return true; }
  void begin_group() override { ++calls; }
  void end_group() override { ++calls; }
  void send(const std::byte*, int64_t, int32_t, Comm, Stream) override { ++calls; }
  void receive(std::byte*, int64_t, int32_t, Comm, Stream) override { ++calls; }
  void all_gather(const std::byte*, std::byte*, int64_t, Comm, Stream) override {}
  void* register_memory(Comm, std::byte*, int64_t) override { return nullptr; }
  void deregister_memory(Comm, void*) override {}
  void abort_comm(Comm) override {}
  void destroy_comm(Comm) override {}

 private:
  std::vector<Mapping> memory_;
};

/// What a class of boxes has cost.
struct Rate {
  int64_t bytes = 0, boxes = 0;
  double copy_s = 0, memcpy_s = 0;
  double ratio() const { return copy_s > 0 ? memcpy_s / copy_s : 0; }
  double gbps() const { return static_cast<double>(bytes) / copy_s * 1e-9; }
};

/// The pages of all runs of a table's one end.
void for_each_page_range(const CopyTable& table, bool from,
                         const std::function<void(std::byte*, int64_t)>& visit) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  for (const CopyBox& box : table.boxes) {
    int64_t extent = box.run_units * box.width;
    for (int32_t d = 0; d < box.dims; ++d) {
      extent += (box.count[d] - 1) * (from ? box.from_stride[d] : box.to_stride[d]);
    }
    auto begin = reinterpret_cast<uintptr_t>(from ? box.from : box.to);
    const uintptr_t end = begin + static_cast<uintptr_t>(extent);
    begin -= begin % static_cast<uintptr_t>(page);
    visit(reinterpret_cast<std::byte*>(begin), static_cast<int64_t>(end - begin));
  }
}

/// Extents of strided boxes may be far larger than what they copy: such a box is left out.
bool fits(const CopyBox& box) {
  int64_t from = 0, to = 0;
  for (int32_t d = 0; d < box.dims; ++d) {
    from += (box.count[d] - 1) * box.from_stride[d];
    to += (box.count[d] - 1) * box.to_stride[d];
  }
  return std::max(from, to) < int64_t{1} << 30;
}

void measure(const CopyTable& table, Rate& rate) {
  const int64_t bytes = table.bytes();
  if (bytes == 0) return;
  const Mapping source(bytes), target(bytes);
  std::memset(source.data(), 1, static_cast<size_t>(bytes));
  std::memset(target.data(), 2, static_cast<size_t>(bytes));
  for (const bool from : {true, false}) {
    for_each_page_range(table, from, [](std::byte* at, int64_t length) {
      for (int64_t i = 0; i < length; i += 4096) at[i] = std::byte{3};
    });
  }
  // In pieces of the mean size, as a plain program would copy them.
  const int64_t boxes = std::ssize(table.boxes);
  const auto copy_plainly = [&] {
    for (int64_t i = 0; i < boxes; ++i) {
      const int64_t at = bytes / boxes * i;
      const int64_t length = i + 1 == boxes ? bytes - at : bytes / boxes;
      std::memcpy(target.data() + at, source.data() + at, static_cast<size_t>(length));
    }
  };
  // One after the other and again, the best of each: whatever else the machine does, and the first
  // touch of memory, which a refit after the first does not see, hit both.
  double best_copy = 1e9, best_plain = 1e9;
  for (int i = 0; i < kRepeats; ++i) {
    double start = cpu_seconds();
    copy_boxes(table);
    best_copy = std::min(best_copy, cpu_seconds() - start);
    start = cpu_seconds();
    copy_plainly();
    best_plain = std::min(best_plain, cpu_seconds() - start);
  }
  rate.copy_s += best_copy;
  rate.memcpy_s += best_plain;
  rate.bytes += bytes;
  rate.boxes += boxes;
  for (const bool from : {true, false}) {
    for_each_page_range(table, from, [](std::byte* at, int64_t length) {
      madvise(at, static_cast<size_t>(length), MADV_DONTNEED);
    });
  }
}

/// Both sweeps of a rank's steps, in batches, boxes of one run and others apart.
void measure_rank(const Plan& plan, int32_t rank, Rate& runs, Rate& strided) {
  Recorder backend(rank, static_cast<int32_t>(plan.ranks.size()));
  const Executor executor(plan, backend, allocate_buffers(plan, backend));
  const Mapping packing(kBatchBytes * 16);
  CopyTable batch[2];
  int64_t bytes[2] = {0, 0};
  int64_t packed = 0;
  const auto flush = [&] {
    measure(batch[0], runs);
    measure(batch[1], strided);
    batch[0] = batch[1] = {};
    bytes[0] = bytes[1] = packed = 0;
  };
  for (const Group& group : backend.groups()) {
    const int64_t need = packing_bytes(group, rank);
    if (packed + need > packing.bytes()) flush();
    if (need > packing.bytes()) continue;
    const DeviceStep step = make_device_step(group, rank, packing.data() + packed);
    packed += need;
    for (const CopyTable* table : {&step.before.copies, &step.after.copies}) {
      for (const CopyBox& box : table->boxes) {
        if (!fits(box)) continue;
        const int kind = box.dims == 0 ? 0 : 1;
        if ((kind == 0 ? runs : strided).bytes + bytes[kind] >= kMostBytes) continue;
        batch[kind].boxes.push_back(box);
        bytes[kind] += box.bytes();
      }
    }
    if (bytes[0] + bytes[1] > kBatchBytes) flush();
    if (runs.bytes >= kMostBytes && strided.bytes >= kMostBytes) break;
  }
  flush();
}

void print_rate(const char* what, const Rate& rate) {
  if (rate.bytes == 0) {
    fmt::print("  {:<34} none\n", what);
    return;
  }
  fmt::print("  {:<34} {:>8} boxes of {:>9.0f} bytes {:>6.2f} GB/s  {:>4.0f} % of memcpy\n", what,
             rate.boxes, static_cast<double>(rate.bytes) / static_cast<double>(rate.boxes),
             rate.gbps(), 100 * rate.ratio());
}

void print_replay(const Plan& plan, int32_t rank) {
  NoGpu gpu;
  NcclOptions options;
  options.graph = false;
  NcclBackend backend(gpu, plan, rank, nullptr, &gpu, options);
  Executor executor(plan, backend, allocate_buffers(plan, backend));
  executor.run();
  std::vector<double> seconds;
  gpu.calls = 0;
  constexpr int kRuns = 21;
  for (int i = 0; i < kRuns; ++i) {
    const double start = cpu_seconds();
    executor.run();
    seconds.push_back(cpu_seconds() - start);
  }
  std::sort(seconds.begin(), seconds.end());
  const NcclBackend::Setup& setup = backend.setup();
  fmt::print(
      "  one replay, no graph: {:.3f} ms of ours on the host beside {} calls of CUDA and NCCL "
      "({} steps, {} sweeps, {} messages); packing {:.0f} MB, tables {:.1f} MB\n",
      1e3 * seconds[kRuns / 2], gpu.calls / kRuns, setup.steps, setup.sweeps, setup.messages,
      1e-6 * static_cast<double>(setup.packing_bytes),
      1e-6 * static_cast<double>(setup.table_bytes));
}

int run(const std::string& program) {
  std::string path;
  const testing::TemporaryFolder folder;
  if (const char* given = std::getenv("REFIT_BENCH_PLAN")) {
    path = given;
  } else {
    path = folder.path("deepseek-v3.plan");
    const std::string command = fmt::format(
        "'{}' plan --model deepseek-v3 --train megatron:ep=16,pp=16 --gen vllm:tp=32,dp=8 --fabric "
        "dgx-h100 --quiet -o '{}' >/dev/null",
        (std::filesystem::path(program).parent_path() / "refit").string(), path);
    fmt::print("planning DeepSeek-V3 on 512 ranks\n");
    if (std::system(command.c_str()) != 0) throw Error("refit plan failed", ErrorKind::kWork);
  }
  const int32_t ranks = static_cast<int32_t>(load_plan_for_rank(path, 0).plan.ranks.size());
  bool good = true;
  for (const bool train : {true, false}) {
    const int32_t rank = train ? 0 : ranks - 1;
    const LoadedPlan loaded = load_plan_for_rank(path, rank);
    fmt::print("{} rank {}\n", train ? "train" : "gen", rank);
    Rate runs, strided;
    measure_rank(loaded.plan, rank, runs, strided);
    print_rate("pieces of one run", runs);
    print_rate("strided pieces", strided);
    Rate all{runs.bytes + strided.bytes, runs.boxes + strided.boxes, runs.copy_s + strided.copy_s,
             runs.memcpy_s + strided.memcpy_s};
    print_rate("all", all);
    good &= (train ? runs : all).bytes == 0 || (train ? runs : all).ratio() >= kLeast;
    print_replay(loaded.plan, rank);
  }
  fmt::print(
      "{}: a gen rank, and a train rank's pieces of one run, at {:.0f} % of memcpy or more\n",
      good ? "held" : "missed", 100 * kLeast);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace refit

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // it takes a while: show what there is
  try {
    return refit::run(argc > 0 ? argv[0] : "");
  } catch (const std::exception& error) {
    fmt::print(stderr, "refit_bench_pack: {}\n", error.what());
    return 1;
  }
}
