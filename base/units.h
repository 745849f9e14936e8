#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace refit {

// Inside the programs: bytes are int64_t, times are seconds, rates are bytes per second, all
// unscaled. Text carries units; a number without one is refused, as is a sign, an infinity or
// anything after the unit; blanks may stand between number and unit. Prefixes: k, M, G, T are
// powers of 1000, Ki, Mi, Gi, Ti of 1024. The last argument names the place for the error message.

/// "400Gbps" (10^9 bits/s), "50GB/s", "1.5TB/s", "46GiB/s", "100MB/s" -> bytes per second, > 0.
double parse_rate(std::string_view text, std::string_view place);

/// "64MiB", "1GiB", "512KiB", "2GB", "128B" -> bytes, >= 0, a whole number of at most 2^53.
int64_t parse_bytes(std::string_view text, std::string_view place);

/// "2us", "25ns", "1.5ms", "10s" -> seconds, >= 0.
double parse_time(std::string_view text, std::string_view place);

/// A decimal integer with nothing around it, within [lo, hi].
int64_t parse_int(std::string_view text, int64_t lo, int64_t hi, std::string_view place);

/// Short forms for people, decimal prefixes; two decimals below 10 and one above, without trailing
/// zeros: "1.34 TB", "61.1 GB", "400 GB/s", "152.7 ms".
std::string print_bytes(double bytes);
std::string print_rate(double bytes_per_second);
std::string print_time(double seconds);

}  // namespace refit
