#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace refit {

/// Names of a list in the style of Slurm, in its order: "node[01-04,7],gpu-a" is node01, node02,
/// node03, node04, node7, gpu-a. Several brackets in a name multiply. The first number of a range
/// gives the width. A list that never closes, runs backwards or makes more than 2^20 names is
/// refused; `place` names it.
std::vector<std::string> expand_names(std::string_view list, std::string_view place);

/// Such a list, order kept: neighbours of which one number rises by one share a bracket.
std::string fold_names(const std::vector<std::string>& names);

/// Whether the name is the pattern, in which each '*' stands for any text.
bool matches_name(std::string_view pattern, std::string_view name);

/// In double quotes, in which YAML and Graphviz read any name as a text.
std::string quoted(std::string_view text);

}  // namespace refit
