#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>

namespace refit {

/// The whole file, or an Error that names it and the system's reason.
std::string read_file(const std::string& path);

/// Writes to a temporary file in the same folder, syncs it, then renames it over `path`: never
/// half-written.
void write_file(const std::string& path, std::string_view content);

/// The same for content that is made while it is written.
void write_stream(const std::string& path, const std::function<void(std::ostream&)>& write);

/// Looks up a file of ours (a named model, fabric or cost model): NAME.yaml in `folder` of the data
/// directory ($REFIT_DATA, else the one next to the program, else the source tree's), else `name`
/// itself if such a file exists; so a file that happens to lie around does not shadow a name of
/// ours (./NAME does). Returns "" when there is none.
std::string find_data_file(std::string_view folder, std::string_view name);

/// The names that find_data_file knows in `folder`, sorted.
std::string list_data_files(std::string_view folder);

}  // namespace refit
