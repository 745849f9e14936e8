#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace refit {

/// What the Error says that `action` ends with; "" when it does its work.
template <typename Action>
std::string error_of(Action action, ErrorKind kind = ErrorKind::kInput) {
  try {
    action();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.kind(), kind) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
  return "";
}

/// `action` ends with an Error that has all the words.
template <typename Action>
void expect_refused(Action action, const std::vector<std::string>& words,
                    ErrorKind kind = ErrorKind::kInput) {
  const std::string message = error_of(action, kind);
  if (message.empty()) ADD_FAILURE() << "accepted";
  for (const std::string& word : words) {
    EXPECT_NE(message.find(word), std::string::npos) << "no \"" << word << "\" in: " << message;
  }
}

/// The text with the first `before`, which it has, replaced.
inline std::string with_change(std::string text, const std::string& before,
                               const std::string& after) {
  const size_t at = text.find(before);
  EXPECT_NE(at, std::string::npos) << "no \"" << before << "\" in the text to change";
  return at == std::string::npos ? text : text.replace(at, before.size(), after);
}

}  // namespace refit
