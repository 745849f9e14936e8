#include "plans/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string_view>
#include <tuple>

#include "base/error.h"
#include "plans/meetings.h"
#include "plans/order.h"

namespace refit {
namespace {

std::string_view place_name(Place place) {
  switch (place) {
    case Place::kTrain:
      return "train";
    case Place::kGen:
      return "gen";
    case Place::kStaging:
      return "staging";
  }
  return "";
}

std::string quote(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// JSON knows no NaN or infinity.
std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

std::string print_list(const Dims& dims) {
  return fmt::format("[{}]", fmt::join(dims.value.begin(), dims.value.begin() + dims.count, ", "));
}

std::string print_ranges(const Box& box) {
  std::string text = "[";
  for (int dim = 0; dim < box.dims(); ++dim) {
    text += fmt::format("{}[{}, {}]", dim > 0 ? ", " : "", box.lo[dim], box.hi[dim]);
  }
  return text + "]";
}

// A document of scalars and lists, in JSON or in YAML. Items are in JSON's syntax, which is YAML's
// flow style.
class Writer {
 public:
  enum class Format { kJson, kYaml };
  Writer(std::ostream& out, Format format) : out_(out), json_(format == Format::kJson) {
    if (json_) out_ << "{";
  }

  void scalar(std::string_view key, std::string_view value) {
    begin(key);
    out_ << " " << value;
    if (!json_) out_ << "\n";
  }
  void begin_list(std::string_view key) {
    begin(key);
    if (json_) out_ << " [";
    first_item_ = true;
  }
  void item(std::string_view value) {
    if (json_) {
      out_ << (first_item_ ? "\n  " : ",\n  ") << value;
    } else {
      out_ << (first_item_ ? "\n  - " : "  - ") << value << "\n";
    }
    first_item_ = false;
  }
  void end_list() {
    if (json_) out_ << "]";
    if (!json_ && first_item_) out_ << " []\n";
  }
  void finish() {
    if (json_) out_ << "}\n";
  }

 private:
  void begin(std::string_view key) {
    if (json_) {
      out_ << (first_key_ ? "" : ",\n ") << '"' << key << "\":";
    } else {
      out_ << key << ":";
    }
    first_key_ = false;
  }

  std::ostream& out_;
  const bool json_;
  bool first_key_ = true;
  bool first_item_ = true;
};

std::string print_rank(size_t index, const PlanRank& rank) {
  std::vector<std::string_view> sides;
  if (rank.train) sides.push_back("\"train\"");
  if (rank.gen) sides.push_back("\"gen\"");
  std::vector<std::string> nics;
  for (const int32_t rail : rank.rails) nics.push_back(fmt::format("{{\"rail\": {}}}", rail));
  return fmt::format(
      "{{\"rank\": {}, \"sides\": [{}], \"node\": {}, \"nvlink_domain\": {}, \"device\": {}, "
      "\"nics\": [{}]}}",
      index, fmt::join(sides, ", "), quote(rank.node), quote(rank.nvlink_domain), rank.device,
      fmt::join(nics, ", "));
}

std::string print_map(const RankMap& map) {
  std::string text = "{";
  for (const auto& [rank, shards] : map.shards) {
    std::vector<std::string> boxes;
    for (const Shard& shard : shards) boxes.push_back(print_ranges(shard.box));
    text +=
        fmt::format("{}\"{}\": [{}]", text.size() > 1 ? ", " : "", rank, fmt::join(boxes, ", "));
  }
  return text + "}";
}

// Of quantised weights and their companions only: format, what of it, and of a companion the
// weight.
std::string print_format(const PlanTensor& tensor) {
  if (tensor.format == Format::kNone) return "";
  const std::string source =
      tensor.source < 0 ? "" : fmt::format(", \"made_of\": {}", tensor.source);
  return fmt::format(", \"format\": \"{}\", \"output\": \"{}\"{}", format_name(tensor.format),
                     output_name(tensor.output), source);
}

std::string print_tensor(const PlanTensor& tensor) {
  return fmt::format(
      "{{\"name\": {}, \"shape\": {}, \"train_dtype\": \"{}\", \"gen_dtype\": \"{}\", "
      "\"train\": {}, \"gen\": {}{}}}",
      quote(tensor.name), print_list(tensor.shape), dtype_name(tensor.train_dtype),
      dtype_name(tensor.gen_dtype), tensor.train_map, tensor.gen_map, print_format(tensor));
}

std::string print_transfer(const Plan& plan, size_t id, const PairedTransfer& transfer) {
  const Program& sender = plan.programs[static_cast<size_t>(transfer.from)];
  const Program& receiver = plan.programs[static_cast<size_t>(transfer.to)];
  std::string text = fmt::format(
      "{{\"id\": {}, \"from\": {}, \"to\": {}, \"channel\": {}, \"step\": {}, \"after\": [{}], "
      "\"pieces\": [",
      id, transfer.from, transfer.to, transfer.channel, transfer.step,
      fmt::join(transfer.after, ", "));
  const int32_t pieces = transfer.send->last_piece - transfer.send->first_piece;
  for (int32_t i = 0; i < pieces; ++i) {
    const Piece& out = sender.pieces[static_cast<size_t>(transfer.send->first_piece + i)];
    const Piece& in = receiver.pieces[static_cast<size_t>(transfer.recv->first_piece + i)];
    text += fmt::format(
        "{}{{\"tensor\": {}, \"box\": {}, \"wire_dtype\": \"{}\", \"src\": \"{}\", \"dst\": "
        "\"{}\"}}",
        i > 0 ? ", " : "", out.tensor, print_ranges(sender.boxes[static_cast<size_t>(out.box)]),
        dtype_name(out.wire), place_name(out.place), place_name(in.place));
  }
  return text + "]}";
}

void export_document(const Plan& plan, const std::string& digest, Writer writer) {
  writer.scalar("format", "\"refit-plan\"");
  writer.scalar("version", "1");
  writer.scalar("digest", quote(digest));
  writer.scalar("predicted_s", number(plan.prediction.predicted_s));
  writer.scalar("lower_bound_s", number(plan.prediction.lower_bound_s));
  writer.begin_list("ranks");
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    writer.item(print_rank(rank, plan.ranks[rank]));
  }
  writer.end_list();
  writer.begin_list("channels");
  for (size_t id = 0; id < plan.channels.size(); ++id) {
    writer.item(
        fmt::format("{{\"id\": {}, \"lane\": \"{}\"}}", id, lane_name(plan.channels[id].lane)));
  }
  writer.end_list();
  writer.begin_list("maps");
  for (const RankMap& map : plan.maps) writer.item(print_map(map));
  writer.end_list();
  writer.begin_list("tensors");
  for (const PlanTensor& tensor : plan.tensors) writer.item(print_tensor(tensor));
  writer.end_list();
  writer.begin_list("transfers");
  const std::vector<PairedTransfer> transfers = pair_transfers(plan);
  for (size_t id = 0; id < transfers.size(); ++id) {
    writer.item(print_transfer(plan, id, transfers[id]));
  }
  writer.end_list();
  writer.finish();
}

}  // namespace

std::vector<PairedTransfer> pair_transfers(const Plan& plan) {
  const Meetings meetings(plan);
  const Order order(plan, meetings);
  struct Entry {
    int32_t position;  // of the later begin of the two ends
    PairedTransfer transfer;
    int32_t send_group, recv_group;
  };
  std::vector<Entry> entries;
  for (int32_t rank = 0; rank < std::ssize(plan.programs); ++rank) {
    const Program& program = plan.programs[static_cast<size_t>(rank)];
    for (int32_t index = 0; index < std::ssize(program.steps); ++index) {
      const Step& step = program.steps[static_cast<size_t>(index)];
      for (int32_t m = step.first_send; m < step.first_recv; ++m) {
        const Message& send = program.messages[static_cast<size_t>(m)];
        const int32_t from = meetings.group(rank, index);
        const Meetings::Partner& partner =
            meetings.partners(from)[static_cast<size_t>(m - step.first_send)];
        const int32_t to = partner.group;
        const Message* recv = find_message(plan, meetings, partner);
        REFIT_CHECK(recv != nullptr);
        entries.push_back({std::max(order.position(from), order.position(to)),
                           {rank, send.peer, step.channel, step.id, &send, recv, {}},
                           from,
                           to});
      }
    }
  }
  // All of a step come after all that its begin comes after: those begin before it does.
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.position, a.transfer.from, a.transfer.to) <
           std::tie(b.position, b.transfer.from, b.transfer.to);
  });

  std::vector<std::vector<int64_t>> of_group(static_cast<size_t>(meetings.groups()));
  for (size_t id = 0; id < entries.size(); ++id) {
    const Entry& entry = entries[id];
    of_group[static_cast<size_t>(entry.send_group)].push_back(static_cast<int64_t>(id));
    if (entry.recv_group != entry.send_group) {
      of_group[static_cast<size_t>(entry.recv_group)].push_back(static_cast<int64_t>(id));
    }
  }
  std::vector<PairedTransfer> transfers;
  transfers.reserve(entries.size());
  for (Entry& entry : entries) {
    std::vector<int64_t>& after = entry.transfer.after;
    for (const int32_t group : {entry.send_group, entry.recv_group}) {
      const int32_t rank = group == entry.send_group ? entry.transfer.from : entry.transfer.to;
      const Program& program = plan.programs[static_cast<size_t>(rank)];
      const Step& step = find_step(plan, meetings, group);
      for (int32_t w = step.first_wait; w < step.last_wait; ++w) {
        const Wait& wait = program.waits[static_cast<size_t>(w)];
        const int32_t awaited = meetings.group(rank, find_step(program, wait.channel, wait.step));
        const std::vector<int64_t>& ids = of_group[static_cast<size_t>(awaited)];
        after.insert(after.end(), ids.begin(), ids.end());
      }
    }
    std::sort(after.begin(), after.end());
    after.erase(std::unique(after.begin(), after.end()), after.end());
    transfers.push_back(std::move(entry.transfer));
  }
  return transfers;
}

void export_json(const Plan& plan, const std::string& digest, std::ostream& out) {
  export_document(plan, digest, Writer(out, Writer::Format::kJson));
}

void export_yaml(const Plan& plan, const std::string& digest, std::ostream& out) {
  export_document(plan, digest, Writer(out, Writer::Format::kYaml));
}

void export_csv(const Plan& plan, std::ostream& out) {
  out << "id,from,to,channel,step,bytes,pieces,lane,same_domain\n";
  const std::vector<PairedTransfer> transfers = pair_transfers(plan);
  for (size_t id = 0; id < transfers.size(); ++id) {
    const PairedTransfer& transfer = transfers[id];
    const Program& sender = plan.programs[static_cast<size_t>(transfer.from)];
    out << fmt::format("{},{},{},{},{},{},{},{},{}\n", id, transfer.from, transfer.to,
                       transfer.channel, transfer.step, message_bytes(sender, *transfer.send),
                       transfer.send->last_piece - transfer.send->first_piece,
                       lane_name(plan.channels[static_cast<size_t>(transfer.channel)].lane),
                       same_domain(plan, transfer.from, transfer.to));
  }
}

}  // namespace refit
