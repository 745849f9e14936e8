#include "base/text.h"

#include <gtest/gtest.h>

namespace refit {
namespace {

using Parts = std::vector<std::string_view>;

TEST(Text, OneMorePartThanSeparators) {
  EXPECT_EQ(split_text("", ','), (Parts{""}));
  EXPECT_EQ(split_text("a", ','), (Parts{"a"}));
  EXPECT_EQ(split_text(",a,,b c,", ','), (Parts{"", "a", "", "b c", ""}));
}

TEST(Text, LinesEndOrAreTheLast) {
  EXPECT_EQ(split_lines(""), Parts{});
  EXPECT_EQ(split_lines("a"), (Parts{"a"}));
  EXPECT_EQ(split_lines("a\n\nb\n"), (Parts{"a", "", "b"}));
}

TEST(Text, WordsAreBetweenBlanks) {
  EXPECT_EQ(split_words(" \t\r\n"), Parts{});
  EXPECT_EQ(split_words(" a  b\tc\r"), (Parts{"a", "b", "c"}));
}

TEST(Text, TrimTakesBlanksAtBothEnds) {
  EXPECT_EQ(trim(" \t a b\r\n"), "a b");
  EXPECT_EQ(trim(" \n"), "");
  EXPECT_EQ(trim(""), "");
}

}  // namespace
}  // namespace refit
