#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <optional>

namespace refit {

/// What `work` returns, called in a process of its own: SimGrid allows one engine in each. None
/// when that process failed.
template <size_t kCount, typename Work>
std::optional<std::array<double, kCount>> run_apart(const Work& work) {
  std::array<double, kCount> numbers{};
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return std::nullopt;
  const pid_t child = fork();
  if (child == 0) {
    numbers = work();
    const bool written = write(ends[1], &numbers, sizeof(numbers)) == sizeof(numbers);
    _exit(written ? 0 : 1);
  }
  close(ends[1]);
  const bool read_all = child > 0 && read(ends[0], &numbers, sizeof(numbers)) == sizeof(numbers);
  close(ends[0]);
  int status = 1;
  if (child > 0) waitpid(child, &status, 0);
  if (!read_all || status != 0) return std::nullopt;
  return numbers;
}

}  // namespace refit
