// `nvidia-smi topo -m` as people paste it.

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>

#include "base/error.h"
#include "sim/fabric/readers.h"

namespace refit {
namespace {

/// A cell: NVLinks, or how far PCIe has to go.
struct Connection {
  int nvlinks = 0;
  int distance = 0;
  bool operator==(const Connection&) const = default;
};

constexpr std::pair<std::string_view, int> kDistances[] = {
    {"X", 0}, {"PIX", 1}, {"PXB", 2}, {"PHB", 3}, {"NODE", 4}, {"SYS", 5}, {"SOC", 5}};
constexpr std::string_view kP2p[] = {"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"};

/// Reads one cell from the front of the text.
std::optional<Connection> take_cell(std::string_view& text) {
  if (text.starts_with("NV")) {
    size_t end = 2;
    while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end]))) ++end;
    if (end == 2 || end > 4) return std::nullopt;
    const int count = std::stoi(std::string(text.substr(2, end - 2)));
    text.remove_prefix(end);
    return Connection{.nvlinks = count, .distance = 0};
  }
  for (const auto& [name, distance] : kDistances)
    if (text.starts_with(name)) {
      text.remove_prefix(name.size());
      return Connection{.nvlinks = 0, .distance = distance};
    }
  return std::nullopt;
}

/// One cell, or several with the tab between them lost: "PIXNODE".
std::vector<Connection> read_cells(std::string_view text) {
  std::vector<Connection> cells;
  while (!text.empty()) {
    const std::optional<Connection> cell = take_cell(text);
    if (!cell) return {};
    cells.push_back(*cell);
  }
  return cells;
}

std::string strip_colours(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b' && i + 1 < text.size() && text[i + 1] == '[') {
      i += 2;
      while (i < text.size() && !std::isalpha(static_cast<unsigned char>(text[i]))) ++i;
    } else if (text[i] != '\r') {
      plain += text[i];
    }
  }
  return plain;
}

bool is_gpu(std::string_view label) {
  return label.size() > 3 && label.starts_with("GPU") &&
         std::ranges::all_of(label.substr(3), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_label(std::string_view word) {
  if (is_gpu(word)) return true;
  for (const std::string_view prefix :
       {"NIC", "mlx4_", "mlx5_", "bnxt_re", "rdmap", "irdma", "hsi"})
    if (word.size() > prefix.size() && word.starts_with(prefix) &&
        std::isdigit(static_cast<unsigned char>(word.back())))
      return true;
  return false;
}

struct Row {
  std::string label;
  std::vector<Connection> cells;
  int line = 0;
};

struct Matrix {
  std::vector<std::string> columns;
  std::vector<Row> rows;
  int line = 0;
};

class SmiReader {
 public:
  SmiReader(const ImportFile& file, const ImportOptions& options, Notes& notes)
      : file_(file), options_(options), notes_(notes), text_(strip_colours(file.text)) {}

  std::vector<NodeKind> read() {
    split();
    std::vector<NodeKind> kinds;
    for (const Matrix& matrix : matrices_)
      if (!matrix.rows.empty()) kinds.push_back(make_kind(matrix));
    if (kinds.empty()) fail(file_.name, "no matrix of GPUs", "the output of nvidia-smi topo -m");
    return kinds;
  }

 private:
  std::string place(int line) const { return fmt::format("{}:{}", file_.name, line); }

  /// The columns that a header names, up to what is no GPU or NIC; empty when it is none.
  static std::vector<std::string> read_header(std::string_view line) {
    std::vector<std::string> columns;
    for (const std::string_view word : split_words(line)) {
      if (!is_label(word)) {
        if (word != "CPU" && word != "NUMA") return {};
        break;
      }
      columns.emplace_back(word);
    }
    return !columns.empty() && is_gpu(columns[0]) ? columns : std::vector<std::string>();
  }

  void split() {
    int number = 0;
    bool p2p = false;
    for (const std::string_view line : split_lines(text_)) {
      ++number;
      const std::vector<std::string_view> words = split_words(line);
      if (words.empty()) continue;
      if (const std::vector<std::string> columns = read_header(line); !columns.empty()) {
        matrices_.push_back({.columns = columns, .rows = {}, .line = number});
        p2p = false;
      } else if (words.size() == 2 && words[0].starts_with("NIC") && words[0].ends_with(":")) {
        nic_name_[std::string(words[0].substr(0, words[0].size() - 1))] = std::string(words[1]);
      } else if (is_label(words[0]) && words.size() > 1) {
        const bool is_p2p =
            std::ranges::find(kP2p, words[1]) != std::end(kP2p) ||
            (words.size() > 2 && std::ranges::find(kP2p, words[2]) != std::end(kP2p));
        if (is_p2p && !p2p) notes_.push_back(place(number) + ": left out a matrix of topo -p2p");
        p2p = p2p || is_p2p;
        if (p2p) {
          if (!matrices_.empty() && matrices_.back().rows.empty()) matrices_.pop_back();
          continue;
        }
        if (matrices_.empty()) matrices_.push_back({.columns = {}, .rows = {}, .line = number});
        add_row(line, words, number);
      }
    }
  }

  /// Cells between tabs; without tabs, words. Stops at the first that is no connection: what
  /// follows are affinities.
  void add_row(std::string_view line, const std::vector<std::string_view>& words, int number) {
    Matrix& matrix = matrices_.back();
    Row row{.label = std::string(words[0]), .cells = {}, .line = number};
    const bool tabs = line.find('\t') != std::string_view::npos;
    std::vector<std::string_view> texts;
    if (tabs) {
      const std::string_view rest = line.substr(line.find(words[0]) + words[0].size());
      size_t start = rest.find('\t');
      while (start != std::string_view::npos) {
        const size_t end = rest.find('\t', start + 1);
        texts.push_back(
            trim(rest.substr(start + 1, end == std::string_view::npos ? end : end - start - 1)));
        start = end;
      }
    } else {
      texts.assign(words.begin() + 1, words.end());
    }
    for (const std::string_view text : texts) {
      const std::vector<Connection> cells = read_cells(text);
      if (cells.empty()) break;
      row.cells.insert(row.cells.end(), cells.begin(), cells.end());
    }
    if (!matrix.columns.empty() && row.cells.size() > matrix.columns.size())
      fail(place(number), fmt::format("{} connections of {}", row.cells.size(), row.label),
           fmt::format("at most the {} columns of line {}", matrix.columns.size(), matrix.line));
    for (const Row& other : matrix.rows)
      if (other.label == row.label) fail(place(number), quote(row.label) + " twice", "a row once");
    matrix.rows.push_back(std::move(row));
  }

  NodeKind make_kind(Matrix matrix) {
    if (matrix.columns.empty())
      for (const Row& row : matrix.rows) matrix.columns.push_back(row.label);
    const auto row_of = [&](const std::string& label) -> const Row* {
      const auto it = std::ranges::find(matrix.rows, label, &Row::label);
      return it == matrix.rows.end() ? nullptr : &*it;
    };
    const auto column_of = [&](const std::string& label) {
      return static_cast<size_t>(std::ranges::find(matrix.columns, label) - matrix.columns.begin());
    };
    // A cut row is completed by its mirror image.
    const auto cell = [&](const std::string& a, const std::string& b) -> std::optional<Connection> {
      for (const auto& [from, to] : {std::pair(&a, &b), std::pair(&b, &a)}) {
        const Row* row = row_of(*from);
        const size_t column = column_of(*to);
        if (row != nullptr && column < row->cells.size()) return row->cells[column];
      }
      return std::nullopt;
    };
    const auto need = [&](const std::string& a, const std::string& b) {
      const std::optional<Connection> found = cell(a, b);
      if (!found)
        fail(place(row_of(a) ? row_of(a)->line : matrix.line),
             fmt::format("no connection of {} and {}", a, b),
             fmt::format("a cell for each of the {} columns of line {}", matrix.columns.size(),
                         matrix.line));
      return *found;
    };

    std::vector<std::string> gpus, nics;
    for (const std::string& label : matrix.columns) (is_gpu(label) ? gpus : nics).push_back(label);
    for (const Row& row : matrix.rows) {
      const size_t self = column_of(row.label);
      if (self == matrix.columns.size())
        fail(place(row.line), quote(row.label), fmt::format("a column of line {}", matrix.line));
      if (self < row.cells.size() && !(row.cells[self] == Connection{}))
        fail(place(row.line), fmt::format("a connection of {} with itself", row.label),
             "X: columns are shifted against rows");
      for (size_t c = 0; c < row.cells.size(); ++c) {
        const Row* mirror = row_of(matrix.columns[c]);
        if (c != self && row.cells[c] == Connection{})
          fail(place(row.line), fmt::format("X for {} and {}", row.label, matrix.columns[c]),
               "X on the diagonal only");
        if (mirror != nullptr && self < mirror->cells.size() &&
            !(mirror->cells[self] == row.cells[c]))
          fail(place(row.line),
               fmt::format("{} to {} unlike the way back", row.label, matrix.columns[c]),
               "the same connection both ways");
      }
    }
    NodeKind kind;
    kind.gpus = static_cast<int32_t>(gpus.size());
    std::vector<Bridge> links;  // rate: number of links, for now
    for (size_t a = 0; a < gpus.size(); ++a)
      for (size_t b = a + 1; b < gpus.size(); ++b)
        if (const int count = need(gpus[a], gpus[b]).nvlinks; count > 0)
          links.push_back({static_cast<int32_t>(a), static_cast<int32_t>(b), double(count)});
    set_nvlink(links, kind, matrix.line);

    std::vector<std::vector<int>> distance(gpus.size());
    for (const std::string& label : nics) {
      const auto name = nic_name_.find(label);
      kind.nics.push_back({name == nic_name_.end() ? label : name->second,
                           0,
                           static_cast<int32_t>(kind.nics.size()),
                           {}});
      for (size_t g = 0; g < gpus.size(); ++g) distance[g].push_back(need(gpus[g], label).distance);
    }
    if (!kind.nics.empty()) kind.nic_latency = kNicLatency;
    give_nearest(distance, kind);
    return kind;
  }

  /// All pairs alike, with more links than a GPU has: an NVSwitch. Else every pair has its own.
  void set_nvlink(const std::vector<Bridge>& links, NodeKind& kind, int line) const {
    if (links.empty()) return;
    const double rate = nvlink_rate(options_.gpu, place(line),
                                    fmt::format("NV{}", static_cast<int>(links[0].rate)));
    const int most = most_nvlinks(options_.gpu);
    std::vector<double> count(static_cast<size_t>(kind.gpus), 0);
    for (const Bridge& link : links) {
      count[static_cast<size_t>(link.first)] += link.rate;
      count[static_cast<size_t>(link.second)] += link.rate;
    }
    const auto on = std::ranges::count_if(count, [](double links_of) { return links_of > 0; });
    const bool alike =
        std::ranges::all_of(links, [&](const Bridge& link) { return link.rate == links[0].rate; });
    if (*std::ranges::max_element(count) <= most) {
      kind.nvlink.latency = kNvlinkLatency;
      for (const Bridge& link : links)
        kind.bridges.push_back({link.first, link.second, link.rate * rate});
      return;
    }
    if (!alike || std::ssize(links) != on * (on - 1) / 2)
      fail(place(line), fmt::format("more than {} NVLinks of a GPU, not alike for all pairs", most),
           "an NVSwitch (all pairs alike) or direct NVLinks");
    kind.nvswitch = true;
    kind.nvlink = {links[0].rate * rate, kNvlinkLatency};
    for (size_t g = 0; g < count.size(); ++g)
      if (count[g] == 0) kind.nvlink_off.push_back(static_cast<int32_t>(g));
  }

  const ImportFile& file_;
  const ImportOptions& options_;
  Notes& notes_;
  const std::string text_;
  std::vector<Matrix> matrices_;
  std::map<std::string, std::string> nic_name_;
};

}  // namespace

std::vector<NodeKind> read_smi_topo(const ImportFile& file, const ImportOptions& options,
                                    Notes& notes) {
  return SmiReader(file, options, notes).read();
}

}  // namespace refit
