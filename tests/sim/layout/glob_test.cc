#include "sim/layout/glob.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace refit {
namespace {

TEST(Glob, Matches) {
  struct Case {
    const char* pattern;
    const char* name;
    bool matches;
  };
  for (const Case& c : {
           Case{"w", "w", true},
           Case{"w", "ww", false},
           Case{"w", "", false},
           Case{"*", "", true},
           Case{"*", "a.b", true},
           Case{"*.weight", "a.weight", true},
           Case{"*.weight", "a.weight.scale", false},
           Case{"*.weight", "a.weight.weight", true},
           Case{"a*b*c", "a-b-b-c", true},
           Case{"a*b*c", "a-c-b", false},
           Case{"*a", "ba", true},
           Case{"a**b", "ab", true},
           Case{"?.w", "1.w", true},
           Case{"?.w", "12.w", false},
           Case{"layers.{0-11}.w", "layers.11.w", true},
           Case{"layers.{0-11}.w", "layers.12.w", false},
           Case{"layers.{0-11}.w", "layers.01.w", false},
           Case{"layers.{0-11}.w", "layers..w", false},
           Case{"layers.{2-2}*", "layers.2.x.w", true},
           Case{"layers.{2-2}*", "layers.21.x.w", false},
           Case{"*.{1-3}.w", "layers.12.w", false},
           Case{"*{1-3}.w", "layers.12.w", false},
           Case{"*{1-3}.w", "layers.3.w", true},
           Case{"*.{0-1}.{5-9}", "a.0.4.1.7", true},
           Case{"{0-9}", "99999999999999999999", false},
       }) {
    EXPECT_EQ(match_glob(c.pattern, c.name), c.matches) << c.pattern << " and " << c.name;
  }
}

TEST(Glob, BadPatternsAreRefused) {
  for (const char* pattern : {"", "{", "a{", "{}", "{1}", "{1-}", "{-2}", "{3-2}", "{1-2", "{a-b}",
                              "{01-2}", "{1-99999999999999999999}", "a{1,2}"}) {
    EXPECT_THROW(check_glob(pattern, "x"), Error) << pattern;
  }
  EXPECT_NO_THROW(check_glob("a.{0-15}.*.?", "x"));
}

}  // namespace
}  // namespace refit
