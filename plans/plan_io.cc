#include "plans/plan_io.h"

#include <fcntl.h>
#include <flatbuffers/flatbuffers.h>
#include <fmt/core.h>
#include <openssl/evp.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "inputs_generated.h"
#include "plans/form.h"
#include "program_generated.h"
#include "root_generated.h"

namespace refit {
namespace {

using Hash = std::array<uint8_t, 32>;
using Bytes = std::span<const uint8_t>;
using Builder = flatbuffers::FlatBufferBuilder;

constexpr std::string_view kMagic = "REFITPLN";
constexpr size_t kAlignment = 8;  // of sections: FlatBuffers reads its 64-bit numbers in place

struct Header {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t reserved;  // 0
  uint64_t root_size;
  Hash root_hash;
};
static_assert(sizeof(Header) == 56 && sizeof(Header) % kAlignment == 0);

size_t padded(size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

Hash sha256(Bytes bytes) {
  Hash hash;
  REFIT_CHECK(EVP_Digest(bytes.data(), bytes.size(), hash.data(), nullptr, EVP_sha256(), nullptr));
  return hash;
}

std::string print_hash(const Hash& hash) {
  std::string text;
  for (const uint8_t byte : hash) text += fmt::format("{:02x}", byte);
  return text;
}

// The digest of a plan: over the hashes of the root and of all other sections.
std::string make_digest(const Hash& root, const flatbuffers::Vector<const file::Section*>& table) {
  std::vector<uint8_t> hashes(root.begin(), root.end());
  for (const file::Section* section : table) {
    hashes.insert(hashes.end(), section->sha256()->begin(), section->sha256()->end());
  }
  return print_hash(sha256(hashes));
}

std::string section_name(size_t index, size_t ranks) {
  return index == ranks ? "inputs" : fmt::format("rank {}", index);
}

// ---- Writing

template <typename T>
void append_dims(std::vector<T>& to, const Dims& dims) {
  to.insert(to.end(), dims.value.begin(), dims.value.begin() + dims.count);
}

// A FlatBuffer takes 2 GiB; the library asserts beyond.
void refuse_large(const std::string& name, size_t bytes) {
  constexpr size_t kLimit = size_t{2000} << 20;
  if (bytes > kLimit) {
    fail("section '" + name + "'", fmt::format("{} bytes", bytes), "at most 2000 MiB");
  }
}

std::vector<uint8_t> finished(const Builder& builder) {
  return {builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize()};
}

std::vector<uint8_t> write_program(const Program& program, const std::string& name) {
  refuse_large(name, program.boxes.size() * (1 + 2 * sizeof(int64_t) * kMaxDims) +
                         program.slots.size() * sizeof(file::Slot) +
                         program.pieces.size() * sizeof(file::Piece) +
                         program.messages.size() * sizeof(file::Message) +
                         program.waits.size() * sizeof(file::Wait) +
                         program.steps.size() * sizeof(file::Step));
  std::vector<uint8_t> box_dims;
  std::vector<int64_t> bounds;
  for (const Box& box : program.boxes) {
    box_dims.push_back(static_cast<uint8_t>(box.dims()));
    for (int dim = 0; dim < box.dims(); ++dim) {
      bounds.push_back(box.lo[dim]);
      bounds.push_back(box.hi[dim]);
    }
  }
  std::vector<file::Slot> slots;
  for (const Slot& slot : program.slots) {
    slots.emplace_back(slot.tensor, slot.box, slot.offset, slot.bytes,
                       static_cast<uint8_t>(slot.dtype));
  }
  std::vector<file::Piece> pieces;
  pieces.reserve(program.pieces.size());
  for (const Piece& piece : program.pieces) {
    pieces.emplace_back(piece.tensor, piece.box, piece.area, static_cast<uint8_t>(piece.place),
                        static_cast<uint8_t>(piece.wire));
  }
  std::vector<file::Message> messages;
  for (const Message& message : program.messages) {
    messages.emplace_back(message.peer, message.first_piece, message.last_piece);
  }
  std::vector<file::Wait> waits;
  for (const Wait& wait : program.waits) waits.emplace_back(wait.channel, wait.step);
  std::vector<file::Step> steps;
  for (const Step& step : program.steps) {
    steps.emplace_back(step.id, step.channel, step.first_send, step.first_recv, step.last_message,
                       step.first_wait, step.last_wait);
  }
  Builder builder;
  const auto box_dims_at = builder.CreateVector(box_dims);
  const auto bounds_at = builder.CreateVector(bounds);
  const auto slots_at = builder.CreateVectorOfStructs(slots);
  const auto pieces_at = builder.CreateVectorOfStructs(pieces);
  const auto messages_at = builder.CreateVectorOfStructs(messages);
  const auto waits_at = builder.CreateVectorOfStructs(waits);
  const auto steps_at = builder.CreateVectorOfStructs(steps);
  builder.Finish(file::CreateProgram(builder, box_dims_at, bounds_at, slots_at, pieces_at,
                                     messages_at, waits_at, steps_at));
  return finished(builder);
}

std::vector<uint8_t> write_inputs(const Inputs& inputs) {
  size_t bytes = 0;
  for (const auto& [name, text] : inputs) bytes += name.size() + text.size();
  refuse_large("inputs", bytes);
  Builder builder;
  std::vector<flatbuffers::Offset<file::Input>> entries;
  for (const auto& [name, text] : inputs) {
    const auto name_at = builder.CreateString(name);
    entries.push_back(file::CreateInput(builder, name_at, builder.CreateString(text)));
  }
  builder.Finish(file::CreateInputs(builder, builder.CreateVector(entries)));
  return finished(builder);
}

flatbuffers::Offset<file::Map> write_map(Builder& builder, const RankMap& map) {
  std::vector<file::Holding> holdings;
  std::vector<uint8_t> dims;
  std::vector<int64_t> numbers;
  for (const auto& [rank, shards] : map.shards) {
    holdings.emplace_back(rank, static_cast<int32_t>(shards.size()));
    for (const Shard& shard : shards) {
      dims.push_back(static_cast<uint8_t>(shard.box.dims()));
      for (int dim = 0; dim < shard.box.dims(); ++dim) {
        numbers.insert(numbers.end(), {shard.box.lo[dim], shard.box.hi[dim], shard.stride[dim]});
      }
      numbers.push_back(shard.offset);
    }
  }
  const auto holdings_at = builder.CreateVectorOfStructs(holdings);
  const auto dims_at = builder.CreateVector(dims);
  return file::CreateMap(builder, holdings_at, dims_at, builder.CreateVector(numbers));
}

std::vector<uint8_t> write_root(const Plan& plan, const std::vector<file::Section>& sections) {
  Builder builder;
  std::vector<uint8_t> lanes;
  for (const Channel& channel : plan.channels) lanes.push_back(static_cast<uint8_t>(channel.lane));
  std::vector<flatbuffers::Offset<file::Rank>> ranks;
  for (const PlanRank& rank : plan.ranks) {
    const auto node = builder.CreateSharedString(rank.node);
    const auto domain = builder.CreateSharedString(rank.nvlink_domain);
    const auto rails = builder.CreateVector(rank.rails);
    ranks.push_back(file::CreateRank(builder, rank.train, rank.gen, node, domain, rank.gpu,
                                     rank.device, rails));
  }
  std::vector<flatbuffers::Offset<file::Tensor>> tensors;
  for (const PlanTensor& tensor : plan.tensors) {
    std::vector<int64_t> shape;
    append_dims(shape, tensor.shape);
    const auto name = builder.CreateString(tensor.name);
    const auto shape_at = builder.CreateVector(shape);
    tensors.push_back(file::CreateTensor(
        builder, name, shape_at, static_cast<uint8_t>(tensor.train_dtype),
        static_cast<uint8_t>(tensor.gen_dtype), tensor.train_map, tensor.gen_map,
        tensor.train_buffer, tensor.gen_buffer, static_cast<uint8_t>(tensor.format),
        static_cast<uint8_t>(tensor.output), tensor.source));
  }
  std::vector<flatbuffers::Offset<file::Map>> maps;
  for (const RankMap& map : plan.maps) maps.push_back(write_map(builder, map));
  const auto strategy = builder.CreateString(plan.strategy);
  const auto lanes_at = builder.CreateVector(lanes);
  const auto ranks_at = builder.CreateVector(ranks);
  const auto buffers = builder.CreateVectorOfStrings(plan.buffers);
  const auto tensors_at = builder.CreateVector(tensors);
  const auto maps_at = builder.CreateVector(maps);
  const auto reason = builder.CreateString(plan.prediction.bound_reason);
  const auto sections_at = builder.CreateVectorOfStructs(sections);
  builder.Finish(file::CreateRoot(builder, strategy, plan.seed, plan.staging_bytes, plan.max_peers,
                                  lanes_at, ranks_at, buffers, tensors_at, maps_at,
                                  plan.prediction.predicted_s, plan.prediction.estimated_s,
                                  plan.prediction.lower_bound_s, reason, sections_at));
  return finished(builder);
}

template <typename T>
void append(std::string& to, const T& bytes) {
  to.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  to.append(padded(to.size()) - to.size(), '\0');
}

// Content of the file and its digest.
std::pair<std::string, std::string> write_plan(const Plan& plan) {
  if (plan.ranks.size() != plan.programs.size()) {
    fail("plan", fmt::format("{} programs", plan.programs.size()),
         fmt::format("one for each of {} ranks", plan.ranks.size()));
  }
  std::string malformed = find_malformed(plan);
  if (!malformed.empty()) fail("plan", malformed);

  std::string body;
  std::vector<file::Section> sections;
  const auto add = [&](const std::vector<uint8_t>& bytes) {
    const Hash hash = sha256(bytes);
    sections.emplace_back(body.size(), bytes.size(),
                          flatbuffers::span<const uint8_t, 32>(hash.data(), hash.size()));
    append(body, bytes);
  };
  for (size_t rank = 0; rank < plan.programs.size(); ++rank) {
    const std::string name = section_name(rank, plan.programs.size());
    malformed = find_malformed(plan, static_cast<int32_t>(rank));
    if (!malformed.empty()) fail("plan: " + name, malformed);
    add(write_program(plan.programs[rank], name));
  }
  add(write_inputs(plan.inputs));

  const std::vector<uint8_t> root = write_root(plan, sections);
  Header header{};
  std::memcpy(header.magic.data(), kMagic.data(), kMagic.size());
  header.version = kPlanVersion;
  header.root_size = root.size();
  header.root_hash = sha256(root);
  std::string content(reinterpret_cast<const char*>(&header), sizeof(header));
  append(content, root);
  content += body;
  const std::string digest = make_digest(header.root_hash, *file::GetRoot(root.data())->sections());
  return {std::move(content), digest};
}

// ---- Reading

class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail(path, fmt::format("cannot be read: {}", std::strerror(errno)));
    struct stat status {};
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
      close(fd);
      fail(path, "not a plan file (not a regular file)");
    }
    size_ = static_cast<size_t>(status.st_size);
    if (size_ > 0) data_ = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    const int error = errno;
    close(fd);
    if (data_ == MAP_FAILED) fail(path, fmt::format("cannot be read: {}", std::strerror(error)));
  }
  ~MappedFile() {
    if (size_ > 0) munmap(data_, size_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  Bytes bytes() const { return {static_cast<const uint8_t*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// An opened plan file: header and root are verified, the other sections on demand.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), mapped_(path) { open_root(); }

  size_t ranks() const { return root_->ranks()->size(); }
  SavedPlan saved() const {
    return {make_digest(header_.root_hash, *root_->sections()),
            static_cast<int64_t>(mapped_.bytes().size())};
  }

  void read_root(Plan& plan) const;
  void read_program(Plan& plan, size_t rank) const;
  void read_inputs(Plan& plan) const;

  // What no hash covers: the bytes between the sections.
  void verify_padding() const {
    size_t end = sizeof(Header) + header_.root_size;
    for (size_t index = 0; index <= root_->sections()->size(); ++index) {
      for (const uint8_t byte : mapped_.bytes().subspan(end, padded(end) - end)) {
        if (byte != 0) damaged(fmt::format("found a stray byte before offset {}", padded(end)));
      }
      if (index == root_->sections()->size()) break;
      const file::Section& entry = *root_->sections()->Get(static_cast<uint32_t>(index));
      end = body_ + entry.offset() + entry.size();
    }
  }

 private:
  [[noreturn]] void damaged(const std::string& what) const { fail(path_, "damaged: " + what); }

  void verify_hash(const std::string& name, Bytes bytes, const Hash& expected) const {
    const Hash found = sha256(bytes);
    if (found == expected) return;
    damaged(fmt::format("section '{}': found SHA-256 {}, expected {}", name, print_hash(found),
                        print_hash(expected)));
  }

  template <typename T>
  const T* verified(const std::string& name, Bytes bytes) const {
    constexpr flatbuffers::uoffset_t kDepth = 16;
    constexpr flatbuffers::uoffset_t kTables = std::numeric_limits<int32_t>::max();
    flatbuffers::Verifier verifier(bytes.data(), bytes.size(), kDepth, kTables);
    if (bytes.size() >= FLATBUFFERS_MAX_BUFFER_SIZE || !verifier.VerifyBuffer<T>(nullptr)) {
      damaged(fmt::format("section '{}': found no FlatBuffer of its schema", name));
    }
    return flatbuffers::GetRoot<T>(bytes.data());
  }

  // The library's verifier checks where a vector's length lies, but not its 64-bit elements.
  template <typename T>
  const flatbuffers::Vector<T>& aligned(const flatbuffers::Vector<T>* vector) const {
    if (reinterpret_cast<uintptr_t>(vector->Data()) % kAlignment != 0 && vector->size() > 0) {
      damaged("found a vector that is not aligned");
    }
    return *vector;
  }

  void open_root();
  Bytes section(size_t index) const;

  std::string path_;
  MappedFile mapped_;
  Header header_{};
  size_t body_ = 0;  // where section offsets count from
  const file::Root* root_ = nullptr;
};

void Reader::open_root() {
  const Bytes bytes = mapped_.bytes();
  const std::string_view start(reinterpret_cast<const char*>(bytes.data()),
                               std::min(bytes.size(), kMagic.size()));
  if (start != kMagic) {
    fail(path_, fmt::format("not a plan file (does not start with '{}')", kMagic));
  }
  if (bytes.size() < sizeof(Header)) {
    damaged(fmt::format("found {} bytes, expected a header of {}", bytes.size(), sizeof(Header)));
  }
  std::memcpy(&header_, bytes.data(), sizeof(Header));
  if (header_.version < kOldestPlanVersion || header_.version > kPlanVersion) {
    fail(path_, fmt::format("too {}: version {}, this program reads {}..{}",
                            header_.version > kPlanVersion ? "new" : "old", header_.version,
                            kOldestPlanVersion, kPlanVersion));
  }
  if (header_.reserved != 0) damaged("found a reserved word in use");
  if (header_.root_size > bytes.size() - sizeof(Header)) {
    damaged(fmt::format("found {} bytes, expected a root section of {}", bytes.size(),
                        header_.root_size));
  }
  const Bytes root = bytes.subspan(sizeof(Header), header_.root_size);
  verify_hash("root", root, header_.root_hash);
  root_ = verified<file::Root>("root", root);
  body_ = padded(sizeof(Header) + header_.root_size);

  const auto& table = aligned(root_->sections());
  if (table.size() != ranks() + 1) {
    damaged(fmt::format("found {} sections, expected {}", table.size(), ranks() + 1));
  }
  uint64_t end = 0;
  for (const file::Section* entry : table) {
    if (entry->offset() != padded(end) || entry->size() > bytes.size()) {
      damaged("found a section table with gaps");
    }
    end = entry->offset() + entry->size();
  }
  if (body_ + padded(end) != bytes.size()) {
    damaged(fmt::format("found {} bytes, expected {}", bytes.size(), body_ + padded(end)));
  }
}

Bytes Reader::section(size_t index) const {
  const file::Section& entry = *root_->sections()->Get(static_cast<uint32_t>(index));
  const Bytes bytes = mapped_.bytes().subspan(body_ + entry.offset(), entry.size());
  Hash expected;
  std::copy(entry.sha256()->begin(), entry.sha256()->end(), expected.begin());
  verify_hash(section_name(index, ranks()), bytes, expected);
  return bytes;
}

// Takes numbers one by one from a vector of them; says no when they run out.
class Numbers {
 public:
  explicit Numbers(const flatbuffers::Vector<int64_t>& from) : from_(from) {}
  bool has(size_t count) const { return from_.size() - next_ >= count; }
  int64_t take() { return from_.Get(next_++); }
  bool done() const { return next_ == from_.size(); }

 private:
  const flatbuffers::Vector<int64_t>& from_;
  uint32_t next_ = 0;
};

void Reader::read_root(Plan& plan) const {
  plan.strategy = root_->strategy()->str();
  plan.seed = root_->seed();
  plan.staging_bytes = root_->staging_bytes();
  plan.max_peers = root_->max_peers();
  for (const uint8_t lane : *root_->lanes()) plan.channels.push_back({static_cast<Lane>(lane)});
  for (const file::Rank* rank : *root_->ranks()) {
    plan.ranks.push_back({rank->train(),
                          rank->gen(),
                          rank->node()->str(),
                          rank->nvlink_domain()->str(),
                          rank->gpu(),
                          rank->device(),
                          {rank->rails()->begin(), rank->rails()->end()}});
  }
  for (const flatbuffers::String* buffer : *root_->buffers()) plan.buffers.push_back(buffer->str());
  for (const file::Tensor* tensor : *root_->tensors()) {
    const flatbuffers::Vector<int64_t>& shape = aligned(tensor->shape());
    if (shape.size() > kMaxDims) damaged("section 'root': found too many dimensions");
    plan.tensors.push_back({tensor->name()->str(), Dims(std::span(shape.data(), shape.size())),
                            static_cast<Dtype>(tensor->train_dtype()),
                            static_cast<Dtype>(tensor->gen_dtype()), tensor->train_map(),
                            tensor->gen_map(), tensor->train_buffer(), tensor->gen_buffer(),
                            static_cast<Format>(tensor->format()),
                            static_cast<Output>(tensor->output()), tensor->source()});
  }
  for (const file::Map* from : *root_->maps()) {
    Numbers numbers(aligned(from->numbers()));
    uint32_t shard_index = 0;
    RankMap map;
    for (const file::Holding* holding : *from->holdings()) {
      auto& shards = map.shards.emplace_back(holding->rank(), std::vector<Shard>()).second;
      for (int32_t i = 0; i < holding->shards(); ++i, ++shard_index) {
        const size_t dims =
            shard_index < from->dims()->size() ? from->dims()->Get(shard_index) : size_t{255};
        if (dims > kMaxDims || !numbers.has(3 * dims + 1)) {
          damaged("section 'root': found an incomplete map");
        }
        Shard shard;
        shard.box.lo.count = shard.box.hi.count = shard.stride.count = static_cast<int32_t>(dims);
        for (size_t dim = 0; dim < dims; ++dim) {
          shard.box.lo.value[dim] = numbers.take();
          shard.box.hi.value[dim] = numbers.take();
          shard.stride.value[dim] = numbers.take();
        }
        shard.offset = numbers.take();
        shards.push_back(shard);
      }
    }
    if (shard_index != from->dims()->size() || !numbers.done()) {
      damaged("section 'root': found a map with a tail");
    }
    plan.maps.push_back(std::move(map));
  }
  plan.prediction = {root_->predicted_s(), root_->estimated_s(), root_->lower_bound_s(),
                     root_->bound_reason()->str()};
  plan.programs.resize(ranks());
  const std::string malformed = find_malformed(plan);
  if (!malformed.empty()) damaged("section 'root': " + malformed);
}

void Reader::read_program(Plan& plan, size_t rank) const {
  const std::string name = section_name(rank, ranks());
  const file::Program& from = *verified<file::Program>(name, section(rank));
  Program& program = plan.programs[rank];
  Numbers bounds(aligned(from.bounds()));
  program.boxes.reserve(from.box_dims()->size());
  for (const uint8_t dims : *from.box_dims()) {
    if (dims > kMaxDims || !bounds.has(2 * size_t{dims})) {
      damaged(fmt::format("section '{}': found an incomplete box", name));
    }
    Box& box = program.boxes.emplace_back();
    box.lo.count = box.hi.count = dims;
    for (int dim = 0; dim < dims; ++dim) {
      box.lo[dim] = bounds.take();
      box.hi[dim] = bounds.take();
    }
  }
  if (!bounds.done()) damaged(fmt::format("section '{}': found boxes with a tail", name));
  for (const file::Slot* slot : aligned(from.slots())) {
    program.slots.push_back({slot->tensor(), slot->box(), slot->offset(), slot->bytes(),
                             static_cast<Dtype>(slot->dtype())});
  }
  program.pieces.reserve(from.pieces()->size());
  for (const file::Piece* piece : *from.pieces()) {
    program.pieces.push_back({piece->tensor(), piece->box(), piece->area(),
                              static_cast<Place>(piece->place()),
                              static_cast<Dtype>(piece->wire())});
  }
  for (const file::Message* message : *from.messages()) {
    program.messages.push_back({message->peer(), message->first_piece(), message->last_piece()});
  }
  for (const file::Wait* wait : *from.waits()) {
    program.waits.push_back({wait->channel(), wait->step()});
  }
  for (const file::Step* step : *from.steps()) {
    program.steps.push_back({step->id(), step->channel(), step->first_send(), step->first_recv(),
                             step->last_message(), step->first_wait(), step->last_wait()});
  }
  const std::string malformed = find_malformed(plan, static_cast<int32_t>(rank));
  if (!malformed.empty()) damaged(fmt::format("section '{}': {}", name, malformed));
}

void Reader::read_inputs(Plan& plan) const {
  for (const file::Input* input : *verified<file::Inputs>("inputs", section(ranks()))->inputs()) {
    plan.inputs.emplace_back(input->name()->str(), input->text()->str());
  }
}

}  // namespace

SavedPlan save_plan(const Plan& plan, const std::string& path) {
  const auto [content, digest] = write_plan(plan);
  write_file(path, content);
  return {digest, static_cast<int64_t>(content.size())};
}

SavedPlan measure_plan(const Plan& plan) {
  const auto [content, digest] = write_plan(plan);
  return {digest, static_cast<int64_t>(content.size())};
}

LoadedPlan load_plan(const std::string& path) {
  const Reader reader(path);
  LoadedPlan loaded;
  reader.read_root(loaded.plan);
  for (size_t rank = 0; rank < reader.ranks(); ++rank) reader.read_program(loaded.plan, rank);
  reader.read_inputs(loaded.plan);
  reader.verify_padding();
  loaded.saved = reader.saved();
  return loaded;
}

LoadedPlan load_plan_for_rank(const std::string& path, int32_t rank) {
  const Reader reader(path);
  if (rank < 0 || std::cmp_greater_equal(rank, reader.ranks())) {
    fail(path, fmt::format("rank {}", rank), fmt::format("one of {} ranks", reader.ranks()));
  }
  LoadedPlan loaded;
  reader.read_root(loaded.plan);
  reader.read_program(loaded.plan, static_cast<size_t>(rank));
  loaded.saved = reader.saved();
  return loaded;
}

}  // namespace refit
