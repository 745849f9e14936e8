#pragma once

// What a piece of work takes: seconds of CPU, since the machine may be shared, and memory.

#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <type_traits>

namespace refit {

inline double cpu_seconds(const rusage& usage) {
  return static_cast<double>(usage.ru_utime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec) * 1e-6;
}

/// Of this process so far.
inline double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return cpu_seconds(usage);
}

template <typename Result>
struct Measured {
  Result result;
  double cpu_s = 0, memory_gib = 0;  // memory at its peak
};

/// Does the work in a process of its own. Nothing when it fails; why is on stderr then, behind the
/// name.
template <typename Work, typename Result = std::invoke_result_t<Work>>
std::optional<Measured<Result>> measure(const std::string& name, const Work& work) {
  static_assert(std::is_trivially_copyable_v<Result>);
  int ends[2];
  if (pipe(ends) != 0) return std::nullopt;
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    bool done = false;
    try {
      const Result result = work();
      done = write(ends[1], &result, sizeof result) == ssize_t{sizeof result};
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}: {}\n", name, error.what());
    }
    _exit(done ? 0 : 1);
  }
  close(ends[1]);
  Measured<Result> measured;
  const bool done = child > 0 && read(ends[0], &measured.result, sizeof measured.result) ==
                                     ssize_t{sizeof measured.result};
  close(ends[0]);
  rusage usage{};
  if (child > 0) wait4(child, nullptr, 0, &usage);
  if (!done) return std::nullopt;
  measured.cpu_s = cpu_seconds(usage);
  measured.memory_gib = static_cast<double>(usage.ru_maxrss) / (1 << 20);
  return measured;
}

}  // namespace refit
