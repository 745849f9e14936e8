// InfiniBand as its tools print it: ibnetdiscover (records, or -p: a line per port) and iblinkinfo.

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <regex>
#include <set>

#include "base/error.h"
#include "base/units.h"
#include "sim/fabric/readers.h"

namespace refit {
namespace {

/// Nominal data rate of a lane, Gbit/s, as the speed's name stands for.
constexpr std::pair<std::string_view, double> kLaneRates[] = {
    {"SDR", 2.5}, {"DDR", 5},  {"QDR", 10},  {"FDR10", 10}, {"FDR", 14},
    {"EDR", 25},  {"HDR", 50}, {"NDR", 100}, {"XDR", 200}};

/// "4xNDR", "4x EDR" -> bytes/s; 0 when it is no known speed.
double read_speed(const std::string& width, const std::string& speed) {
  for (const auto& [name, lane] : kLaneRates)
    if (name == speed) return std::stod(width) * lane * 1e9 / 8;
  return 0;
}

/// iblinkinfo prints what a lane signals, encoding included: 25.78125 for EDR, 53.125 for HDR.
double lane_rate(double signalled) {
  for (const auto& [name, lane] : kLaneRates)
    if (signalled >= lane && signalled < lane * 1.07) return lane;
  return signalled;
}

/// "MF0;A-IBLEAF-04-04:MQM9701/U1" -> "A-IBLEAF-04-04".
std::string short_name(const std::string& description) {
  const size_t start = description.find(';') + 1;
  const size_t end = description.find(':', start);
  std::string name(trim(
      std::string_view(description).substr(start, end == std::string::npos ? end : end - start)));
  std::ranges::replace(name, ',', ' ');
  return name;
}

/// "gpunode-001 mlx5_5" -> host and NIC. No host: a vendor's text, or a name many machines have.
std::pair<std::string, std::string> split_host(const std::string& description) {
  static const std::regex kForm(R"((\S+)\s+((?:mlx|bnxt|HCA|hfi|ibp)\S*))");
  std::smatch match;
  if (!std::regex_match(description, match, kForm)) return {};
  const std::string host = match[1];
  if (host == "localhost" || host.starts_with("MT4")) return {};
  return {host, match[2]};
}

/// A text without the quotes that should be around it: up to what the tools print next.
std::string before_lid(const std::string& rest) {
  size_t end = rest.size();
  for (const char* next : {" enhanced port", " base port", " lid "})
    end = std::min(end, rest.find(next));
  return std::string(trim(std::string_view(rest).substr(0, end)));
}

/// "host-2" before "host-10".
bool comes_before(std::string_view a, std::string_view b) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  while (!a.empty() && !b.empty()) {
    if (!is_digit(a[0]) || !is_digit(b[0])) {
      if (a[0] != b[0]) return a[0] < b[0];
      a.remove_prefix(1);
      b.remove_prefix(1);
      continue;
    }
    const auto take = [&](std::string_view& text) {
      const size_t length =
          static_cast<size_t>(std::ranges::find_if_not(text, is_digit) - text.begin());
      std::string_view number = text.substr(0, length);
      text.remove_prefix(length);
      number.remove_prefix(std::min(number.find_first_not_of('0'), number.size()));
      return number;
    };
    const std::string_view x = take(a), y = take(b);
    if (x != y) return x.size() != y.size() ? x.size() < y.size() : x < y;
  }
  return a.size() < b.size();
}

struct End {
  std::string id;  // GUID, or what else the file tells ends apart by
  int port = 0;
  bool is_switch = false;
  std::string description;
  auto key() const { return std::pair(id, port); }
};

class InfinibandReader {
 public:
  InfinibandReader(const ImportFile& file, Notes& notes) : file_(file), notes_(notes) {}

  Network read() {
    if (file_.text.find("==(") != std::string::npos)
      read_linkinfo();
    else
      read_discovered();
    return make_network();
  }

 private:
  struct Seen {
    End first, second;
    double rate = 0;
    int line = 0;
    bool both = false;
  };

  /// Lines that regular expressions are safe on.
  std::string short_line(std::string_view raw, int number) const {
    if (raw.size() > 2000)
      fail(place(number), fmt::format("a line of {} characters", raw.size()), "at most 2000");
    return std::string(trim(raw));
  }

  std::string place(int line) const { return fmt::format("{}:{}", file_.name, line); }

  void add(const End& a, const End& b, double rate, int line) {
    for (const End* end : {&a, &b}) {
      std::string& known = description_[end->id];
      if (known.empty()) known = end->description;
      if (end->is_switch) is_switch_.insert(end->id);
    }
    if (a.id == b.id) {
      notes_.push_back(place(line) + ": left out a switch that is cabled to itself");
      return;
    }
    const bool ordered = a.key() < b.key();
    Seen cable{ordered ? a : b, ordered ? b : a, rate, line, false};
    for (const End* end : {&a, &b}) {
      const End& other = end == &a ? b : a;
      const auto [it, added] = peer_.try_emplace(end->key(), other.key());
      if (!added && it->second != other.key())
        fail(place(line), fmt::format("port {} of {} at another cable", end->port, quote(end->id)),
             "one cable a port");
    }
    const auto [it, added] = cables_.try_emplace({cable.first.key(), cable.second.key()}, cable);
    if (added) return;
    if (it->second.rate != rate)
      fail(place(line),
           fmt::format("{} here, {} from the other end in line {}", print_rate(rate),
                       print_rate(it->second.rate), it->second.line),
           "the same rate both ways");
    it->second.both = true;
  }

  void read_discovered() {
    static const std::regex kRecord(R"re((Switch|Ca|Rt)\s+\d+\s+"([^"]+)"\s*(?:#\s*(.*))?)re");
    static const std::regex kPort(
        R"re(\[(\d+)\](?:\([^)]*\))?\s+"([^"]+)"\[(\d+)\](?:\([^)]*\))?\s*#\s*(.*))re");
    static const std::regex kQuoted(R"re(.*"([^"]*)".*)re");
    static const std::regex kSpeed(R"(.*\b(\d+)x([A-Z]+\d*)\s*)");
    static const std::regex kLine(
        R"((CA|SW)\s+\d+\s+(\d+)\s+(0x[0-9a-f]+)\s+(\d+)x\s+(\S+)(?:\s+-\s+(CA|SW)\s+\d+\s+(\d+)\s+(0x[0-9a-f]+))?\s+(.*))");
    static const std::regex kNames(R"(\(\s*'([^']*)'\s*-\s*'([^']*)'\s*\))");
    End record;
    bool inside = false;
    int number = 0, skipped = 0;
    for (const std::string_view raw : split_lines(file_.text)) {
      ++number;
      const std::string line = short_line(raw, number);
      if (line.empty()) {
        inside = false;
        continue;
      }
      if (line[0] == '#' || line.starts_with("vendid=") || line.starts_with("devid=") ||
          line.find("guid=") != std::string::npos)
        continue;
      std::smatch match;
      if (std::regex_match(line, match, kRecord)) {
        record = {.id = match[2], .port = 0, .is_switch = match[1] == "Switch", .description = ""};
        const std::string rest = match[3];
        std::smatch name;
        record.description =
            std::regex_match(rest, name, kQuoted) ? name[1].str() : before_lid(rest);
        inside = true;
      } else if (inside && std::regex_match(line, match, kPort)) {
        End here = record;
        here.port = std::stoi(match[1]);
        End there{
            .id = match[2], .port = std::stoi(match[3]), .is_switch = false, .description = ""};
        there.is_switch = there.id.starts_with("S-");
        const std::string rest = match[4];
        std::smatch name, speed;
        if (std::regex_match(rest, name, kQuoted))
          there.description = name[1];
        else if (record.is_switch)
          there.description = before_lid(rest);
        if (!std::regex_match(rest, speed, kSpeed))
          fail(place(number), quote(rest), "a width and speed, as in 4xNDR");
        add(here, there, speed_of(speed[1], speed[2], number), number);
      } else if (std::regex_match(line, match, kLine)) {
        if (!match[6].matched) continue;  // nothing plugged in
        const std::string rest = match[9];
        std::smatch names;
        if (!std::regex_match(rest, names, kNames))
          fail(place(number), quote(rest), "( 'name' - 'name' )");
        add({match[3], std::stoi(match[2]), match[1] == "SW", names[1]},
            {match[8], std::stoi(match[7]), match[6] == "SW", names[2]},
            speed_of(match[4], match[5], number), number);
      } else if (cables_.empty() && !inside) {
        ++skipped;  // what tools say before the header
      } else {
        fail(place(number), quote(line), "a record or port of ibnetdiscover");
      }
    }
    if (skipped > 0)
      notes_.push_back(
          fmt::format("{}: left out {} lines before the first record", file_.name, skipped));
  }

  double speed_of(const std::string& width, const std::string& speed, int line) const {
    const double rate = read_speed(width, speed);
    if (!(rate > 0)) fail(place(line), quote(width + "x" + speed), "a speed, SDR to XDR");
    return rate;
  }

  void read_linkinfo() {
    static const std::regex kBlock(R"((Switch|CA):\s+(?:(0x[0-9a-f]+)\s+)?(.*?):?)");
    static const std::regex kPort(
        R"re((?:0x[0-9a-f]+\s+)?(?:"[^"]*"\s+)?(\d+)\s+(\d+)\[\s*\]\s*==\(\s*(\d+)X\s+([0-9.]+)\s+Gbps\s+Active/\s*LinkUp\)==>\s*(?:0x[0-9a-f]+\s+)?(\d+)\s+(\d+)\[\s*\]\s*"([^"]*)".*)re");
    std::set<std::string> switches;
    for (const std::string_view raw : split_lines(file_.text)) {
      const std::string line = short_line(raw, 0);
      std::smatch match;
      if (line.starts_with("Switch:") && std::regex_match(line, match, kBlock))
        switches.insert(match[3]);
    }
    End block;
    int number = 0;
    for (const std::string_view raw : split_lines(file_.text)) {
      ++number;
      const std::string line = short_line(raw, number);
      std::smatch match;
      if (line.find("==(") == std::string::npos) {
        if (!std::regex_match(line, match, kBlock)) continue;
        block = {.id = "", .port = 0, .is_switch = match[1] == "Switch", .description = match[3]};
        continue;
      }
      if (line.find("LinkUp)") == std::string::npos) continue;  // Down, Polling
      if (block.description.empty())
        fail(place(number), "a port", "a line 'Switch: ...' before it");
      if (!std::regex_match(line, match, kPort))
        fail(place(number), quote(line), "a port of iblinkinfo");
      End here = block;
      here.id = "lid " + match[1].str();
      here.port = std::stoi(match[2]);
      End there{.id = "lid " + match[5].str(),
                .port = std::stoi(match[6]),
                .is_switch = switches.contains(match[7]),
                .description = match[7]};
      add(here, there, std::stod(match[3]) * lane_rate(std::stod(match[4])) * 1e9 / 8, number);
    }
  }

  Network make_network() {
    if (cables_.empty()) fail(file_.name, "no cable", "switches and what they are cabled to");
    std::map<std::string, std::string> switch_name;
    std::set<std::string> taken;
    for (const std::string& id : is_switch_) {
      std::string name = short_name(description_[id]);
      if (name.empty()) name = id;
      if (!taken.insert(name).second) taken.insert(name += " " + id);
      switch_name[id] = name;
    }
    Network network;
    std::map<std::string, size_t> host_of;
    std::vector<std::string> leaves;
    std::vector<Cable> cables;
    size_t nameless = 0, aggregation = 0, one_sided = 0;
    for (const auto& [key, cable] : cables_) {
      one_sided += cable.both ? 0 : 1;
      const bool a = is_switch_.contains(cable.first.id), b = is_switch_.contains(cable.second.id);
      if (a && b) {
        cables.push_back({switch_name[cable.first.id], switch_name[cable.second.id], cable.rate});
        continue;
      }
      if (!a && !b) fail(place(cable.line), "two hosts cabled to each other", "a switch between");
      const End& host = a ? cable.second : cable.first;
      const std::string& leaf = switch_name[(a ? cable.first : cable.second).id];
      const std::string& description = description_[host.id];
      if (description.find("Aggregation Node") != std::string::npos) {
        ++aggregation;
        continue;
      }
      const auto [name, nic] = split_host(description);
      if (name.empty()) {
        ++nameless;
        continue;
      }
      const auto [it, added] = host_of.try_emplace(name, network.hosts.size());
      if (added) network.hosts.push_back({name, "", {}});
      NetworkHost& entry = network.hosts[it->second];
      // A second port of the same card is a NIC of its own.
      std::string nic_name = nic;
      const auto same = [&](const NetworkNic& other) { return other.name == nic_name; };
      if (std::ranges::any_of(entry.nics, same)) nic_name += fmt::format(".{}", host.port);
      if (std::ranges::any_of(entry.nics, same))
        fail(place(cable.line), fmt::format("{} of host {} twice", nic, quote(name)), "it once");
      entry.nics.push_back({nic_name, leaf, cable.rate, place(cable.line)});
      leaves.push_back(leaf);
    }
    const auto note = [&](size_t count, const char* what) {
      if (count > 0) notes_.push_back(fmt::format("{}: {} {}", file_.name, count, what));
    };
    note(aggregation, "aggregation nodes left out");
    note(nameless, "NICs left out: their text names no host");
    note(one_sided, "cables that only one end lists");
    if (network.hosts.empty()) fail(file_.name, "no host", "NICs whose text names their host");
    std::ranges::stable_sort(network.hosts, [](const NetworkHost& a, const NetworkHost& b) {
      return comes_before(a.name, b.name);
    });
    network.switches = make_tree(leaves, cables, file_.name, notes_);
    return network;
  }

  using Key = std::pair<std::string, int>;
  const ImportFile& file_;
  Notes& notes_;
  std::map<std::string, std::string> description_;
  std::set<std::string> is_switch_;
  std::map<Key, Key> peer_;
  std::map<std::pair<Key, Key>, Seen> cables_;
};

}  // namespace

Network read_infiniband(const ImportFile& file, Notes& notes) {
  return InfinibandReader(file, notes).read();
}

std::vector<SwitchEntry> make_tree(const std::vector<std::string>& leaves,
                                   const std::vector<Cable>& cables, const std::string& place,
                                   Notes& notes) {
  std::map<std::string, std::vector<std::pair<std::string, double>>> near;
  for (const Cable& cable : cables) {
    near[cable.first].emplace_back(cable.second, cable.rate);
    near[cable.second].emplace_back(cable.first, cable.rate);
  }
  // Tier of a switch: cables to the nearest leaf.
  std::map<std::string, int> tier;
  std::vector<std::string> queue;
  for (const std::string& leaf : std::set<std::string>(leaves.begin(), leaves.end())) {
    tier[leaf] = 0;
    queue.push_back(leaf);
  }
  for (size_t i = 0; i < queue.size(); ++i)
    for (const auto& [next, rate] : near[queue[i]])
      if (tier.try_emplace(next, tier[queue[i]] + 1).second) queue.push_back(next);
  const int tiers = tier[queue.back()];
  size_t level = 0;
  for (const Cable& cable : cables) level += tier[cable.first] == tier[cable.second] ? 1 : 0;

  // Groups of a tier: every leaf, and above it what shares a group below.
  std::vector<SwitchEntry> from_below;   // parent: position in this list, for now after it
  std::map<std::string, int32_t> group;  // by switch
  std::vector<std::vector<std::string>> members;
  for (int t = 0; t <= tiers; ++t) {
    std::map<std::string, std::string> leader;
    const auto find = [&](std::string s) {
      while (leader[s] != s) s = leader[s];
      return s;
    };
    for (const auto& [name, of] : tier)
      if (of == t) leader[name] = name;
    for (size_t g = 0; t > 0 && g < members.size(); ++g) {
      std::string first;
      for (const std::string& below : members[g])
        for (const auto& [next, rate] : near[below])
          if (tier[next] == t && tier[below] == t - 1) {
            if (first.empty())
              first = find(next);
            else
              leader[std::max(find(next), find(first))] = std::min(find(next), find(first));
          }
    }
    for (const auto& [name, of] : tier) {
      if (of != t) continue;
      const std::string head = find(name);
      if (head == name) {
        group[name] = static_cast<int32_t>(members.size());
        members.push_back({name});
        from_below.push_back({.name = name});
      } else {
        group[name] = group[head];
        members[static_cast<size_t>(group[head])].push_back(name);
      }
    }
  }
  for (size_t g = 0; g < members.size(); ++g) {
    if (members[g].size() > 1)
      from_below[g].name += fmt::format(" and {} more", members[g].size() - 1);
    for (const std::string& name : members[g])
      for (const auto& [next, rate] : near[name]) {
        if (tier[next] == tier[name] + 1) {
          from_below[g].parent = group[next];
        } else if (!(tiers == 0 && tier[next] == 0)) {
          continue;
        }
        from_below[g].up.rate += rate;
        from_below[g].up.latency = kNicLatency;
      }
  }
  if (tiers == 0 && level > 0) {
    // Leaves cabled to one another: one switch in the middle lets through no less.
    if (members.size() > 2)
      notes.push_back(place +
                      ": leaves cabled to one another are taken as one switch between them");
    for (SwitchEntry& leaf : from_below)
      if (leaf.up.rate > 0) leaf.parent = static_cast<int32_t>(from_below.size());
    from_below.push_back({.name = "between leaves"});
  } else if (level > 0) {
    notes.push_back(
        fmt::format("{}: {} cables between switches of one tier left out", place, level));
  }
  size_t unreached = near.size();
  for (const auto& [name, of] : tier) unreached -= near.contains(name) ? 1 : 0;
  if (unreached > 0)
    notes.push_back(fmt::format("{}: {} switches without hosts below left out", place, unreached));

  // Parents first: the tiers from the top.
  std::vector<size_t> order(from_below.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto tier_of = [&](size_t g) { return g < members.size() ? tier[members[g][0]] : 1; };
  std::ranges::stable_sort(order, std::greater(), tier_of);
  std::vector<int32_t> position(order.size());
  for (size_t i = 0; i < order.size(); ++i) position[order[i]] = static_cast<int32_t>(i);
  std::vector<SwitchEntry> switches;
  for (const size_t g : order) {
    SwitchEntry& item = switches.emplace_back(from_below[g]);
    if (item.parent >= 0) item.parent = position[static_cast<size_t>(item.parent)];
  }
  return switches;
}

}  // namespace refit
