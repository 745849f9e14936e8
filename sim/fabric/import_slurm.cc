// Slurm's topology.conf (topology/tree, topology/block), or what `scontrol show topology` prints.

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "sim/fabric/names.h"
#include "sim/fabric/readers.h"

namespace refit {
namespace {

struct Line {
  std::map<std::string, std::string> values;  // by key in lower case
  int number = 0;
};

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

std::vector<Line> read_lines(const ImportFile& file) {
  constexpr std::string_view kKnown[] = {"switchname", "switches",  "nodes",
                                         "linkspeed",  "level",     "blockname",
                                         "blockindex", "blocksize", "blocksizes"};
  std::vector<Line> lines;
  int number = 0;
  std::string joined;
  for (const std::string_view raw : split_lines(file.text)) {
    ++number;
    joined += trim(raw.substr(0, raw.find('#')));
    if (joined.ends_with('\\')) {
      joined.pop_back();
      continue;
    }
    Line line{.values = {}, .number = number};
    for (const std::string_view word : split_words(joined)) {
      const size_t equals = word.find('=');
      const std::string key = lower(word.substr(0, equals));
      if (equals == std::string_view::npos || std::ranges::find(kKnown, key) == std::end(kKnown))
        fail(fmt::format("{}:{}", file.name, number), quote(word),
             "SwitchName=, Switches=, Nodes=, BlockName= or BlockSizes=");
      line.values[key] = word.substr(equals + 1);
    }
    joined.clear();
    if (!line.values.empty()) lines.push_back(std::move(line));
  }
  return lines;
}

class SlurmReader {
 public:
  SlurmReader(const ImportFile& file, Notes& notes) : file_(file), notes_(notes) {}

  Network read() {
    for (const Line& line : read_lines(file_)) {
      if (line.values.contains("switchname"))
        add_switch(line);
      else if (line.values.contains("blockname"))
        add_block(line);
      else if (!line.values.contains("blocksizes"))
        fail(place(line.number), "neither SwitchName nor BlockName", "one of them");
    }
    if (switches_.empty() && network_.hosts.empty())
      fail(file_.name, "no SwitchName and no BlockName",
           "switches or blocks that are not commented out");
    if (!switches_.empty() && blocks_ > 0)
      fail(file_.name, "switches and blocks", "one of them: topology/tree or topology/block");
    order_switches();
    if (!switches_.empty())
      notes_.push_back(file_.name +
                       ": Slurm does not say how fast switches are joined: taken as never binding");
    return std::move(network_);
  }

 private:
  struct TreeSwitch {
    std::string name;
    std::vector<std::string> below;
    std::string parent;
    int line = 0;
    int state = 0;  // of order_switches: 1 while its parents are looked at, 2 done
  };

  std::string place(int line) const { return fmt::format("{}:{}", file_.name, line); }

  std::vector<std::string> names(const Line& line, const std::string& key) const {
    const auto it = line.values.find(key);
    if (it == line.values.end() || it->second.empty()) return {};
    return expand_names(it->second, place(line.number));
  }

  void add_hosts(const Line& line, const std::string& leaf, const std::string& domain) {
    for (const std::string& name : names(line, "nodes")) {
      const auto [it, added] = host_line_.try_emplace(name, line.number);
      // `scontrol show topology` lists the hosts of a switch again at those above.
      if (!added && line.values.contains("level")) continue;
      if (!added)
        fail(place(line.number), fmt::format("node {} again", quote(name)),
             fmt::format("it once, as in line {}", it->second));
      network_.hosts.push_back({name, domain, {}});
      if (!leaf.empty()) network_.hosts.back().nics.push_back({"", leaf, 0, place(line.number)});
    }
  }

  void add_switch(const Line& line) {
    TreeSwitch item{.name = line.values.at("switchname"),
                    .below = names(line, "switches"),
                    .parent = "",
                    .line = line.number};
    if (item.name.empty()) fail(place(line.number), "an empty SwitchName", "a name");
    if (!position_.try_emplace(item.name, switches_.size()).second)
      fail(place(line.number), quote(item.name) + " twice", "a switch once");
    add_hosts(line, item.name, "");
    switches_.push_back(std::move(item));
  }

  void add_block(const Line& line) {
    ++blocks_;
    const std::string& name = line.values.at("blockname");
    if (name.empty()) fail(place(line.number), "an empty BlockName", "a name");
    if (!position_.try_emplace(name, 0).second)
      fail(place(line.number), quote(name) + " twice", "a block once");
    if (names(line, "nodes").empty())
      fail(place(line.number), "no Nodes", "the nodes of the block");
    add_hosts(line, "", name);
  }

  void order_switches() {
    for (const TreeSwitch& item : switches_)
      for (const std::string& below : item.below) {
        const auto it = position_.find(below);
        if (it == position_.end())
          fail(place(item.line), "switch " + quote(below), "a SwitchName of the file");
        TreeSwitch& child = switches_[it->second];
        if (!child.parent.empty())
          fail(place(item.line), fmt::format("{} below {} too", quote(below), quote(child.parent)),
               "one switch above each");
        child.parent = item.name;
      }
    for (TreeSwitch& item : switches_) put(item);
  }

  int32_t put(TreeSwitch& item) {
    if (item.state == 1) fail(place(item.line), quote(item.name) + " above itself", "a tree");
    if (item.state == 0) {
      item.state = 1;
      int32_t parent = -1;
      if (!item.parent.empty()) parent = put(switches_[position_.at(item.parent)]);
      item.state = 2;
      put_.try_emplace(item.name, static_cast<int32_t>(network_.switches.size()));
      network_.switches.push_back({.name = item.name, .parent = parent});
    }
    return put_.at(item.name);
  }

  const ImportFile& file_;
  Notes& notes_;
  Network network_;
  std::vector<TreeSwitch> switches_;
  std::map<std::string, size_t> position_;
  std::map<std::string, int> host_line_;
  std::map<std::string, int32_t> put_;
  int blocks_ = 0;
};

}  // namespace

Network read_slurm(const ImportFile& file, Notes& notes) { return SlurmReader(file, notes).read(); }

}  // namespace refit
