#include "exec/conversion.h"

#include <vector>

#include "base/error.h"
#include "exec/matrices.h"
#include "exec/strided.h"

namespace refit {

namespace {

/// Elements of an area, row by row.
class Rows {
 public:
  Rows(const Shard& area, Dtype dtype, std::byte* memory)
      : area_(area), dtype_(dtype), bits_(dtype_bits(dtype)), memory_(memory) {}

  void read(const Dims& at, int64_t count, float* values) const {
    const int64_t first = element(at), step = row_step();
    if (step == 1) return decode_row(dtype_, address(first), count, values);
    for (int64_t i = 0; i < count; ++i) {
      decode_row(dtype_, address(first + i * step), 1, values + i);
    }
  }

  void write(const Dims& at, int64_t count, const float* values) const {
    const int64_t first = element(at), step = row_step();
    if (step == 1) return encode_row(dtype_, values, count, address(first));
    for (int64_t i = 0; i < count; ++i) {
      encode_row(dtype_, values + i, 1, address(first + i * step));
    }
  }

 private:
  int64_t row_step() const {
    return area_.stride.count == 0 ? 1 : area_.stride[area_.stride.count - 1];
  }
  int64_t element(const Dims& at) const {
    int64_t element = area_.offset;
    for (int dim = 0; dim < at.count; ++dim) {
      element += (at[dim] - area_.box.lo[dim]) * area_.stride[dim];
    }
    return element;
  }
  std::byte* address(int64_t element) const { return memory_ + element * bits_ / 8; }

  const Shard& area_;
  const Dtype dtype_;
  const int64_t bits_;
  std::byte* const memory_;
};

}  // namespace

Conversion make_conversion(const Plan& plan, int32_t rank, const Piece& piece, std::byte* memory,
                           std::byte* packed) {
  const PlanTensor& tensor = plan.tensors[static_cast<size_t>(piece.tensor)];
  const PieceArea area = find_area(plan, rank, piece);
  return {is_cast(plan, rank, piece),
          area.shard,
          area.dtype,
          memory,
          tensor.format,
          tensor.output,
          plan.tensors[static_cast<size_t>(area.tensor)].shape,
          plan.programs[static_cast<size_t>(rank)].boxes[static_cast<size_t>(piece.box)],
          piece.wire,
          packed};
}

void pack(const Conversion& c, KnownScales* known) {
  if (!c.casts) {
    const Strided from = resolve(c.area, c.box, c.dtype, c.memory);
    const Strided to{.base = c.packed, .run = from.bytes()};
    return copy_strided({&to, 1}, {&from, 1});
  }
  const Rows rows(c.area, c.dtype, c.memory);
  if (c.format != Format::kNone) {
    quantise(
        c.format, c.output, c.shape, c.box,
        [&](const Dims& at, int64_t count, float* values) { rows.read(at, count, values); },
        c.packed, known == nullptr ? nullptr : &(*known)[{c.memory, c.area.offset}]);
    return;
  }
  std::vector<float> values;
  std::byte* to = c.packed;
  visit_rows(c.box, [&](const Dims& at, int64_t count) {
    values.resize(static_cast<size_t>(count));
    rows.read(at, count, values.data());
    encode_row(c.wire, values.data(), count, to);
    to += dtype_bytes(c.wire, count);
  });
}

void unpack(const Conversion& c) {
  if (!c.casts) {
    const Strided to = resolve(c.area, c.box, c.dtype, c.memory);
    const Strided from{.base = c.packed, .run = to.bytes()};
    return copy_strided({&to, 1}, {&from, 1});
  }
  REFIT_CHECK(c.format == Format::kNone);
  const Rows rows(c.area, c.dtype, c.memory);
  std::vector<float> values;
  const std::byte* from = c.packed;
  visit_rows(c.box, [&](const Dims& at, int64_t count) {
    values.resize(static_cast<size_t>(count));
    decode_row(c.wire, from, count, values.data());
    rows.write(at, count, values.data());
    from += dtype_bytes(c.wire, count);
  });
}

void copy_piece(const Conversion& from, const Conversion& to, KnownScales* known) {
  std::vector<std::byte> packed;
  visit_matrices(from.box, [&](const Box& box) {
    Conversion out = from, in = to;
    packed.resize(static_cast<size_t>(dtype_bytes(from.wire, box.volume())));
    out.box = in.box = box;
    out.packed = in.packed = packed.data();
    pack(out, known);
    unpack(in);
  });
}

}  // namespace refit
