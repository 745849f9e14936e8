#pragma once

#include <string_view>

namespace refit {

/// A line on stderr: notes and errors. Never fails, whatever stderr is: losing a note must not lose
/// the work. On a terminal
/// it first clears what a progress bar has left on the line.
void log_line(std::string_view text);

/// Flushes stdout. Throws Error (kWork) when something printed there did not arrive.
void finish_output();

}  // namespace refit
