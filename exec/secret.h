#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace refit {

// How the ranks of a job show each other that they know its token, without sending it.

inline constexpr size_t kProofBytes = 32;

/// HMAC-SHA256 of the text under the token: kProofBytes bytes.
std::string make_proof(std::string_view token, std::string_view text);

/// Compares in a time that does not depend on the content.
bool equal_secrets(std::string_view a, std::string_view b);

/// Bytes that nobody can guess. Throws Error (kWork) when the system has none.
std::string random_bytes(size_t count);

/// Two digits a byte.
std::string print_hex(std::string_view bytes);

}  // namespace refit
