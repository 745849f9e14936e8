#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace refit {

/// What a program does about a failure: the exit code it ends with.
enum class ErrorKind {
  kInput,  // bad usage or input: exit 2
  kWork,   // the work itself failed: exit 1
};

/// Bad input, or a failing call into a library or the system. The message is one line and stands on
/// its own: it names the place (file, line or key), what was found and what was expected.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, ErrorKind kind = ErrorKind::kInput)
      : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

/// Throws Error("PLACE: found FOUND, expected EXPECTED").
[[noreturn]] void fail(std::string_view place, std::string_view found, std::string_view expected);

/// Throws Error("PLACE: WHAT").
[[noreturn]] void fail(std::string_view place, std::string_view what);

/// The text in double quotes, fit for a one-line message: control characters become '?', long texts
/// are shortened.
std::string quote(std::string_view text);

/// Ends the program: a broken invariant, never reachable from input.
[[noreturn]] void check_failed(const char* condition, const char* file, int line);

}  // namespace refit

#define REFIT_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::refit::check_failed(#condition, __FILE__, __LINE__))
