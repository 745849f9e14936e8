#pragma once

#include <string_view>
#include <vector>

namespace refit {

// Parts of a text; they live as long as it does.

/// Between separators: one more part than there are of them.
std::vector<std::string_view> split_text(std::string_view text, char separator);

/// Without the ends of lines; what follows the last end is a line where it is not empty.
std::vector<std::string_view> split_lines(std::string_view text);

/// Between blanks, of which there may be several.
std::vector<std::string_view> split_words(std::string_view text);

/// Without blanks around it.
std::string_view trim(std::string_view text);

}  // namespace refit
