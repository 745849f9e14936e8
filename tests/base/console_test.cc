#include "base/console.h"

#include <gtest/gtest.h>

#include <string>

namespace refit {
namespace {

const std::string kWord = "123456789";  // 10 columns with its blank

std::string words(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += (i == 0 ? "" : " ") + kWord;
  return text;
}

TEST(FitColumns, ShortLinesStay) {
  for (const std::string text : {"", "\n", "a", "a\nb\n", "a\n\n  b  c\n"}) {
    EXPECT_EQ(fit_columns(text), text);
  }
  EXPECT_EQ(fit_columns(words(10)), words(10));                                          // 99
  EXPECT_EQ(fit_columns("1 " + words(9) + " 12345678"), "1 " + words(9) + " 12345678");  // 100
}

TEST(FitColumns, BreaksAtTheLastBlankThatFits) {
  EXPECT_EQ(fit_columns(words(11) + "\nb\n"), words(10) + "\n  " + kWord + "\nb\n");
  EXPECT_EQ(fit_columns("    " + words(10)), "    " + words(9) + "\n      " + kWord);
  // 100 columns and one more blank: the blank goes.
  EXPECT_EQ(fit_columns("1" + words(10) + " x"), "1" + words(10) + "\n  x");
}

TEST(FitColumns, BlanksAtTheEndAreNoWord) {
  EXPECT_EQ(fit_columns(words(10) + "     \nb"), words(10) + "\nb");
  EXPECT_EQ(fit_columns(std::string(120, ' ') + "\nb"), "\nb");
  EXPECT_EQ(fit_columns(words(12) + "   "), words(10) + "\n  " + words(2));
}

TEST(FitColumns, GoesOnBelowTheSecondColumn) {
  // 14 + 99 columns: 8 words of 10 fit behind the first 14 within 100.
  const std::string line = "  --option    " + words(10);
  EXPECT_EQ(fit_columns(line),
            "  --option    " + words(8) + "\n" + std::string(14, ' ') + words(2));
}

TEST(FitColumns, LongWordsStayWhole) {
  const std::string path(150, 'x');
  EXPECT_EQ(fit_columns(path), path);
  EXPECT_EQ(fit_columns("in " + path + " here"), "in " + path + "\n  here");
}

}  // namespace
}  // namespace refit
