#include "exec/device_step.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"

namespace refit {

namespace {

bool is_cast(const Part& part, size_t box) {
  return !part.conversions.empty() && part.conversions[box].casts;
}

/// The boxes of the part as one run of bytes, or nothing. Neighbours count as one.
std::optional<Strided> as_one_run(const Part& part) {
  if (part.boxes.empty() || part.boxes.front().dims != 0) return std::nullopt;
  Strided all = part.boxes.front();
  for (size_t i = 0; i < part.boxes.size(); ++i) {
    if (is_cast(part, i)) return std::nullopt;
    if (i == 0) continue;
    const Strided& box = part.boxes[i];
    if (box.dims != 0 || box.base != all.base + all.run) return std::nullopt;
    all.run += box.run;
  }
  return all;
}

/// One step's use of the packing buffer. With no buffer it only counts.
class Packer {
 public:
  explicit Packer(std::byte* base) : base_(base) {}

  std::byte* take(int64_t bytes) {
    std::byte* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += align(bytes);
    return at;
  }
  int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

/// Where the elements of a conversion lie in memory, and where once they are packed.
ElementArea memory_of(const Conversion& conversion) {
  const int64_t first = conversion.area.offset * dtype_bits(conversion.dtype) / 8;
  return {conversion.memory + first, conversion.dtype, conversion.area.box.lo,
          conversion.area.stride};
}
ElementArea packed_of(const Conversion& conversion, std::byte* packed) {
  return {packed, conversion.wire, conversion.box.lo, dense_strides(conversion.box.extents())};
}

/// From where the sender has the conversion's values, as its formula says, to `to`.
void add_making(Sweep& sweep, const Conversion& conversion, const ElementArea& to) {
  add_cast(sweep.casts, conversion.format, conversion.output, conversion.shape, conversion.box,
           memory_of(conversion), to);
}

void add_packing(Sweep& sweep, const Part& part, std::byte* packed) {
  for (size_t i = 0; i < part.boxes.size(); ++i) {
    const Strided& box = part.boxes[i];
    if (is_cast(part, i)) {
      add_making(sweep, part.conversions[i], packed_of(part.conversions[i], packed));
    } else {
      REFIT_CHECK(add_copy(sweep.copies, box, dense_block(packed, box.bytes())));
    }
    packed += box.bytes();
  }
}

void add_unpacking(Sweep& sweep, const Part& part, std::byte* packed) {
  for (size_t i = 0; i < part.boxes.size(); ++i) {
    const Strided& box = part.boxes[i];
    if (is_cast(part, i)) {
      const Conversion& conversion = part.conversions[i];
      REFIT_CHECK(conversion.format == Format::kNone);
      add_cast(sweep.casts, Format::kNone, Output::kData, conversion.shape, conversion.box,
               packed_of(conversion, packed), memory_of(conversion));
    } else {
      REFIT_CHECK(add_copy(sweep.copies, dense_block(packed, box.bytes()), box));
    }
    packed += box.bytes();
  }
}

/// Copies and casts box by box, when the two ends are cut alike and at most one of them casts.
bool add_local_copy(Sweep& sweep, const Part& from, const Part& to) {
  if (from.boxes.size() != to.boxes.size()) return false;
  Sweep trial = sweep;
  for (size_t i = 0; i < from.boxes.size(); ++i) {
    if (from.boxes[i].bytes() != to.boxes[i].bytes()) return false;
    const bool makes = is_cast(from, i), converts = is_cast(to, i);
    if (makes && converts) return false;
    if (!makes && !converts) {
      if (!add_copy(trial.copies, from.boxes[i], to.boxes[i])) return false;
      continue;
    }
    const Conversion &out = from.conversions[i], &in = to.conversions[i];
    if (out.box != in.box || out.wire != in.wire) return false;
    if (makes) {
      add_making(trial, out, memory_of(in));
    } else {
      add_cast(trial.casts, Format::kNone, Output::kData, in.shape, in.box, memory_of(out),
               memory_of(in));
    }
  }
  sweep = std::move(trial);
  return true;
}

const Part* find_local(const std::vector<Part>& parts, int32_t rank) {
  const auto at =
      std::find_if(parts.begin(), parts.end(), [&](const Part& part) { return part.peer == rank; });
  return at == parts.end() ? nullptr : &*at;
}

/// Lays the step out; `step` may be null to count only.
int64_t lay_out(const Group& group, int32_t rank, std::byte* packing, DeviceStep* step) {
  Packer packer(packing);
  for (const Part& part : group.sends) {
    if (part.peer == rank || part.bytes == 0) continue;
    const std::optional<Strided> run = as_one_run(part);
    std::byte* at = run ? run->base : packer.take(part.bytes);
    if (step == nullptr) continue;
    if (!run) add_packing(step->before, part, at);
    step->sends.push_back({part.peer, at, part.bytes});
  }
  for (const Part& part : group.recvs) {
    if (part.peer == rank || part.bytes == 0) continue;
    const std::optional<Strided> run = as_one_run(part);
    std::byte* at = run ? run->base : packer.take(part.bytes);
    if (step == nullptr) continue;
    if (!run) add_unpacking(step->after, part, at);
    step->recvs.push_back({part.peer, at, part.bytes});
  }
  const Part* from = find_local(group.sends, rank);
  const Part* to = find_local(group.recvs, rank);
  if (from == nullptr && to == nullptr) return packer.used();
  if (from == nullptr || to == nullptr || from->bytes != to->bytes) {
    fail("local copy", "one end without the other, or of another size", "two ends of equal size");
  }
  Sweep trial;
  if (add_local_copy(step == nullptr ? trial : step->before, *from, *to)) return packer.used();
  std::byte* at = packer.take(from->bytes);
  if (step != nullptr) {
    add_packing(step->before, *from, at);
    add_unpacking(step->after, *to, at);
  }
  return packer.used();
}

}  // namespace

int64_t packing_bytes(const Group& group, int32_t rank) {
  return lay_out(group, rank, nullptr, nullptr);
}

DeviceStep make_device_step(const Group& group, int32_t rank, std::byte* packing) {
  DeviceStep step;
  lay_out(group, rank, packing, &step);
  return step;
}

}  // namespace refit
