#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "sim/layout/layout.h"

namespace refit {

/// The layout is refused in one line that has all the words.
inline void expect_layout_refused(const std::string& text, const Model& model, Side side,
                                  const std::vector<std::string>& words) {
  try {
    load_layout(text, model, side, 0);
    ADD_FAILURE() << "accepted: " << text;
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const std::string& word : words) {
      EXPECT_NE(message.find(word), std::string::npos) << "no \"" << word << "\" in: " << message;
    }
  }
}

}  // namespace refit
