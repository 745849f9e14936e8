#include "exec/machine.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/units.h"

namespace refit {

Mapping::Mapping(int64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    throw Error(fmt::format("memory: cannot map {}: {}", print_bytes(static_cast<double>(bytes)),
                            std::strerror(errno)),
                ErrorKind::kWork);
  }
  madvise(data, static_cast<size_t>(bytes),
          MADV_HUGEPAGE);  // a hint: systems without it lose speed only
  data_ = static_cast<std::byte*>(data);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
}

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

int64_t available_memory() {
  int64_t available = std::numeric_limits<int64_t>::max();
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key; meminfo >> key;) {
    int64_t kib = 0;
    if (key == "MemAvailable:" && meminfo >> kib) available = kib * 1024;
    meminfo.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  // Control groups v2, as a container sees its own; "max" means no limit and does not read as a
  // number.
  int64_t limit = 0, used = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit &&
      std::ifstream("/sys/fs/cgroup/memory.current") >> used) {
    available = std::min(available, std::max<int64_t>(limit - used, 0));
  }
  return available;
}

int core_count() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

double measure_memcpy(int threads) {
  // More than the caches hold: 64 MiB a core, at least 256 MiB, and little enough to be quick.
  const int64_t wanted =
      std::clamp<int64_t>(int64_t{threads} << 26, int64_t{1} << 28, int64_t{1} << 31);
  const int64_t total = std::min(wanted, available_memory() / 8);
  const int64_t share = std::max<int64_t>(total / threads, 4096);
  const int64_t bytes = share * threads;
  const Mapping from(bytes), to(bytes);
  double best_s = std::numeric_limits<double>::infinity();
  auto start = std::chrono::steady_clock::now();
  constexpr int kRounds = 3;
  int round = -1;  // the first phase touches the pages
  std::barrier phase(threads, [&]() noexcept {
    const auto now = std::chrono::steady_clock::now();
    if (++round > 0) best_s = std::min(best_s, std::chrono::duration<double>(now - start).count());
    start = now;
  });
  {
    std::vector<std::jthread> workers;
    for (int thread = 0; thread < threads; ++thread) {
      workers.emplace_back([&, thread] {
        std::byte* source = from.data() + thread * share;
        std::byte* target = to.data() + thread * share;
        std::memset(source, 1, static_cast<size_t>(share));
        std::memset(target, 2, static_cast<size_t>(share));
        phase.arrive_and_wait();
        for (int i = 0; i < kRounds; ++i) {
          std::memcpy(target, source, static_cast<size_t>(share));
          phase.arrive_and_wait();
        }
      });
    }
  }
  return static_cast<double>(bytes) / best_s;
}

}  // namespace refit
