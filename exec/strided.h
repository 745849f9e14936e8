#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "exec/backend.h"
#include "plans/plan.h"

namespace refit {

/// The memory of `box`, a part of `area` whose storage begins at `base`, with as few dimensions and
/// as long runs as the strides allow. Throws Error when the box is empty or outside of the area, or
/// when its runs are not whole bytes (4-bit types).
Strided resolve(const Shard& area, const Box& box, Dtype dtype, std::byte* base);

/// Copies the bytes of `from`, box after box, to those of `to`. Both have equally many bytes and do
/// not overlap; how they are cut into boxes and runs may differ.
void copy_strided(std::span<const Strided> to, std::span<const Strided> from);

/// A place in the bytes of a list of boxes, which has to outlive it.
class Cursor {
 public:
  explicit Cursor(std::span<const Strided> boxes) : boxes_(boxes) { enter(); }

  bool done() const { return box_ == boxes_.size(); }
  std::byte* at() const { return at_; }   // the next byte
  int64_t left() const { return left_; }  // of its run
  int64_t run() const { return boxes_[box_].run; }
  bool at_run_start() const { return left_ == run(); }
  int64_t rows() const;        // runs of the innermost dimension still to come, this one included
  int64_t row_stride() const;  // bytes between them

  void pass_bytes(int64_t bytes);  // at most left()
  void pass_rows(int64_t rows);    // whole runs, at most rows(), from the start of one

 private:
  int32_t last() const;
  void enter();

  std::span<const Strided> boxes_;
  size_t box_ = 0;
  std::byte* at_ = nullptr;
  int64_t left_ = 0;
  std::array<int64_t, kMaxDims> index_{};
};

/// Copies until one of them is done. `past_cache`: long runs leave nothing in the caches, and are
/// seen by others only after a fence.
void copy_strided(Cursor& to, Cursor& from, bool past_cache = false);

/// The next `bytes` bytes of the boxes, to or from one block.
void pack(Cursor& from, std::byte* to, int64_t bytes);
void unpack(Cursor& to, const std::byte* from, int64_t bytes);

}  // namespace refit
