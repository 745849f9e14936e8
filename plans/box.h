#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace refit {

/// Highest number of dimensions of a tensor.
inline constexpr int kMaxDims = 6;

/// One number per dimension: a shape, a point or strides, in elements.
struct Dims {
  int32_t count = 0;
  std::array<int64_t, kMaxDims> value{};

  Dims() = default;
  Dims(std::initializer_list<int64_t> values);
  explicit Dims(std::span<const int64_t> values);
  int64_t operator[](int dim) const { return value[static_cast<size_t>(dim)]; }
  int64_t& operator[](int dim) { return value[static_cast<size_t>(dim)]; }
  int64_t product() const;  // 1 for a scalar
  auto operator<=>(const Dims&) const = default;
};

/// A half-open range per dimension of a global tensor: [lo, hi), in elements. A scalar's box has no
/// dimension and one element.
struct Box {
  Dims lo, hi;

  int dims() const { return lo.count; }
  int64_t extent(int dim) const { return hi[dim] - lo[dim]; }
  Dims extents() const;
  int64_t volume() const {  // elements; 0 when empty
    int64_t result = 1;
    for (int dim = 0; dim < dims(); ++dim) {
      if (extent(dim) <= 0) return 0;
      result *= extent(dim);
    }
    return result;
  }
  bool empty() const {
    for (int dim = 0; dim < dims(); ++dim) {
      if (extent(dim) <= 0) return true;
    }
    return false;
  }
  auto operator<=>(const Box&) const = default;
};

/// The box of a whole tensor.
Box whole(const Dims& shape);

/// "[0:4, 8:16]".
std::string print_box(const Box& box);

/// Common part; empty (all zero extents) when there is none.
Box intersect(const Box& a, const Box& b);
/// Is there one?
bool overlap(const Box& a, const Box& b);

inline bool contains(const Box& outer, const Box& inner) {
  if (outer.dims() != inner.dims()) return false;
  for (int dim = 0; dim < outer.dims(); ++dim) {
    if (inner.lo[dim] < outer.lo[dim] || inner.hi[dim] > outer.hi[dim]) return false;
  }
  return true;
}

/// Row-major strides of a dense array of this shape.
Dims dense_strides(const Dims& shape);

/// Where a box does not cover exactly once: the first such point in lexicographic order, and how
/// often it is covered.
struct Uncovered {
  Dims point;
  int64_t times = 0;
};

/// Do the boxes (each inside `area`, which has less than 2^57 elements) cover every element of
/// `area` exactly once? Exact in any dimension: the sum of the boxes' indicator functions equals
/// the area's exactly when their mixed differences do, that is, when the signed corners cancel.
/// O(2^d n log n) for the d dimensions that some box cuts. Returns true, or false and the first
/// wrong point.
bool covers_once(const Box& area, std::span<const Box> boxes, Uncovered* wrong = nullptr);

}  // namespace refit
