#pragma once

#include <string>
#include <vector>

#include "sim/search/search.h"

namespace refit::cli {

/// A table with a header line, for people. First column to the left, the others to the right. A row
/// of a name and a note instead of numbers has the note behind the name, in lines of 100 columns.
void print_table(const std::vector<std::string>& header,
                 const std::vector<std::vector<std::string>>& rows);

/// Text for people, in lines of at most 100 columns.
void print_text(const std::string& text);

/// "1.114", "11.4 %".
std::string print_ratio(double ratio);
std::string print_percent(double part);

/// What binds, a line for each group of links.
void print_binding(const std::vector<PriceGroup>& binding);

/// Progress on stderr: a bar when it is a terminal, nothing else otherwise.
Progress make_progress(bool quiet);

/// Does the work, whose length nobody knows, and says meanwhile what it is, as progress does.
template <typename Work>
auto during(bool quiet, const char* what, const Work& work) {
  struct Shown {
    Shown(bool quiet, const char* what) : progress(make_progress(quiet)) {
      if (progress) progress(what, 0);
    }
    ~Shown() {
      if (progress) progress("", 1);
    }
    Progress progress;
  } const shown(quiet, what);
  return work();
}

/// Choices made for the user, as lines on stderr; none when quiet.
void log_notes(bool quiet, const std::vector<std::string>& notes);

/// Path of a program that the shell would run, or "".
std::string find_program(const std::string& name);

/// Peak resident memory of this process, bytes.
int64_t peak_memory();

}  // namespace refit::cli
