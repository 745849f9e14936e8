#pragma once

#include <string>
#include <string_view>

namespace refit {

/// What a terminal shows of a line without breaking it.
inline constexpr size_t kColumns = 100;

/// The text with lines broken at blanks, none longer than kColumns where its words allow. What is
/// broken off begins below the second column of its line (text behind two blanks), where it has one
/// in the left half, else two blanks further in than the line.
std::string fit_columns(std::string_view text);

/// A line on stderr: notes and errors. Never fails, whatever stderr is: losing a note must not lose
/// the work. On a terminal it first clears what a progress bar has left on the line.
void log_line(std::string_view text);

/// Flushes stdout. Throws Error (kWork) when something printed there did not arrive.
void finish_output();

}  // namespace refit
