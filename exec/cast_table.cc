#include "exec/cast_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "exec/matrices.h"

namespace refit {

namespace {

/// Address of an element, which may lie outside of the area: only elements of the area are read.
std::byte* address_of(const ElementArea& area, const Dims& at) {
  int64_t element = 0;
  for (int dim = 0; dim < at.count; ++dim) {
    element += (at[dim] - area.lo[dim]) * area.stride[dim];
  }
  return area.base + element * dtype_bits(area.dtype) / 8;
}

int32_t in_tiles(int64_t units, int64_t units_of_tile, int64_t before) {
  const int64_t tiles = (units + units_of_tile - 1) / units_of_tile;
  if (units > std::numeric_limits<int32_t>::max() - (1 << 16) ||
      before + tiles > std::numeric_limits<int32_t>::max()) {
    fail("cast", fmt::format("{} units in one step", units), "less than 2^31");
  }
  return static_cast<int32_t>(tiles);
}

/// The slot of a matrix' largest magnitude, new for one that has none yet.
int32_t find_slot(CastTable& table, const CastSource& matrix) {
  const auto slot = static_cast<int32_t>(table.maxima.size());
  const auto [known, fresh] =
      table.slots.emplace(std::tuple(matrix.from, matrix.rows, matrix.columns), slot);
  if (!fresh) return known->second;
  CastMaximum maximum;
  maximum.source = matrix;
  const int64_t of_row = (matrix.columns + kCastColumns - 1) / kCastColumns;
  const int64_t pieces = of_row * matrix.rows;
  maximum.first_tile = static_cast<int32_t>(table.maximum_of_tile.size());
  maximum.tiles = in_tiles(pieces, int64_t{kTileThreads} * kMaximaPerThread, maximum.first_tile);
  maximum.pieces_of_row = static_cast<int32_t>(of_row);
  maximum.pieces = static_cast<int32_t>(pieces);
  table.maxima.push_back(maximum);
  table.maximum_of_tile.insert(table.maximum_of_tile.end(), static_cast<size_t>(maximum.tiles),
                               slot);
  return slot;
}

/// Cuts the box, whose other fields are set, into units and tiles.
void add_box(CastTable& table, CastBox box) {
  const bool blocks = box.format == Format::kFp8Block;
  int64_t units_of_row = box.width, rows = box.height;
  if (blocks) {
    units_of_row = (box.source.columns + box.unit_columns - 1) / box.unit_columns;
    rows = (box.source.rows + box.unit_columns - 1) / box.unit_columns;
  } else if (box.output == Output::kData) {
    const int64_t first = box.left / box.unit_columns;
    units_of_row = (box.left + box.width + box.unit_columns - 1) / box.unit_columns - first;
  }
  const int64_t units = units_of_row * rows;
  const int64_t of_tile = blocks ? 1 : int64_t{kTileThreads} * kCastsPerThread;
  const int32_t tiles = in_tiles(units, of_tile, std::ssize(table.box_of_tile));
  box.units_of_row = static_cast<int32_t>(units_of_row);
  box.units = static_cast<int32_t>(units);
  box.first_tile = static_cast<int32_t>(table.box_of_tile.size());
  table.box_of_tile.insert(table.box_of_tile.end(), static_cast<size_t>(tiles),
                           static_cast<int32_t>(table.boxes.size()));
  table.boxes.push_back(box);
}

/// Element by element. Dimensions that lie one in the other on both sides count as one.
void add_conversion(CastTable& table, const Box& box, const ElementArea& from,
                    const ElementArea& to) {
  struct Dimension {
    int64_t extent, from_stride, to_stride;
  };
  std::vector<Dimension> dims;  // innermost first
  for (int dim = box.dims() - 1; dim >= 0; --dim) {
    const Dimension next{box.extent(dim), from.stride[dim], to.stride[dim]};
    if (next.extent == 1) continue;
    if (!dims.empty() && next.from_stride == dims.back().extent * dims.back().from_stride &&
        next.to_stride == dims.back().extent * dims.back().to_stride) {
      dims.back().extent *= next.extent;
    } else {
      dims.push_back(next);
    }
  }
  while (dims.size() < 2) dims.push_back({1, 0, 0});
  CastBox part;
  part.source.dtype = from.dtype;
  part.source.row_stride = dims[1].from_stride;
  part.source.column_stride = dims[0].from_stride;
  part.source.rows = part.height = dims[1].extent;
  part.source.columns = part.width = dims[0].extent;
  part.row_stride = dims[1].to_stride;
  part.column_stride = dims[0].to_stride;
  part.dtype = to.dtype;
  part.unit_columns = kCastColumns;
  // The dimensions that are left, one matrix after the other.
  Box outer;
  outer.lo.count = outer.hi.count = static_cast<int32_t>(dims.size()) - 2;
  for (int dim = 0; dim < outer.dims(); ++dim) {
    outer.hi[dim] = dims[static_cast<size_t>(dim) + 2].extent;
  }
  const std::byte* from_base = address_of(from, box.lo);
  std::byte* to_base = address_of(to, box.lo);
  visit_points(outer, [&](const Dims& at) {
    int64_t from_at = 0, to_at = 0;
    for (int dim = 0; dim < at.count; ++dim) {
      from_at += at[dim] * dims[static_cast<size_t>(dim) + 2].from_stride;
      to_at += at[dim] * dims[static_cast<size_t>(dim) + 2].to_stride;
    }
    part.source.from = from_base + from_at * dtype_bits(from.dtype) / 8;
    part.to = to_base + to_at * dtype_bits(to.dtype) / 8;
    add_box(table, part);
  });
}

}  // namespace

void add_cast(CastTable& table, Format format, Output output, const Dims& shape, const Box& box,
              const ElementArea& from, const ElementArea& to) {
  if (box.empty()) return;
  if (format == Format::kNone) return add_conversion(table, box, from, to);
  const int outer = shape.count - 2;
  REFIT_CHECK(outer >= 0);
  const Block2 block = scale_block(format);
  const bool blocks = has_output(format, Output::kScale);
  const Box region = source_box(format, output, shape, box);
  CastBox part;
  part.format = format;
  part.output = output;
  part.dtype = to.dtype;
  part.source.dtype = from.dtype;
  part.source.row_stride = from.stride[outer];
  part.source.column_stride = from.stride[outer + 1];
  part.source.rows = region.extent(outer);
  part.source.columns = region.extent(outer + 1);
  part.unit_columns = static_cast<int32_t>(blocks ? block.columns : kCastColumns);
  part.height = part.width = 1;
  part.column_stride = 1;
  if (output != Output::kGlobalScale) {
    const bool data = output == Output::kData;
    part.top = box.lo[outer] - region.lo[outer] / (data ? 1 : block.rows);
    part.left = box.lo[outer + 1] - region.lo[outer + 1] / (data ? 1 : block.columns);
    part.height = box.extent(outer);
    part.width = box.extent(outer + 1);
    part.row_stride = to.stride[outer];
    part.column_stride = to.stride[outer + 1];
  }
  visit_points(outer_box(box, outer), [&](const Dims& matrix) {
    Dims first = region.lo, out = box.lo;
    for (int dim = 0; dim < outer; ++dim) first[dim] = out[dim] = matrix[dim];
    part.source.from = address_of(from, first);
    part.to = address_of(to, out);
    if (has_output(format, Output::kGlobalScale)) part.slot = find_slot(table, part.source);
    add_box(table, part);
  });
}

}  // namespace refit
