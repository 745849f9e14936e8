#pragma once

#include <cstdint>
#include <string_view>

namespace refit {

/// A bijection of 64-bit numbers: splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom
/// number generators, 2014).
inline uint64_t mix(uint64_t x) {
  x *= 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

/// A number for a tensor in a round.
inline uint64_t seed_of(std::string_view tensor, int64_t round) {
  uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a
  for (const char c : tensor) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return mix(hash + mix(static_cast<uint64_t>(round)));
}

}  // namespace refit
