#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sim/layout/layout.h"
#include "tests/refused.h"

namespace refit {

/// The layout is refused in one line that has all the words.
inline void expect_layout_refused(const std::string& text, const Model& model, Side side,
                                  const std::vector<std::string>& words) {
  SCOPED_TRACE(text);
  expect_refused([&] { load_layout(text, model, side, 0); }, words);
}

}  // namespace refit
