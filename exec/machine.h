#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace refit {

/// Zeroed, page-aligned memory of this process, in large pages where the system has them. Pages
/// that nobody touches cost nothing. Throws Error when the system refuses.
class Mapping {
 public:
  explicit Mapping(int64_t bytes);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

std::string host_name();

/// Bytes that this process can still take without swapping (MemAvailable of /proc/meminfo, and the
/// limit of its control group, where there is one); INT64_MAX when the system does not say.
int64_t available_memory();

/// Cores that this process may use.
int core_count();

/// What copying costs here, in bytes per second: `threads` threads copy blocks that no cache holds;
/// each byte counts once. Best of three.
double measure_memcpy(int threads);

}  // namespace refit
