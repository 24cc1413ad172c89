// Products of small matrices with blocks of samples.
//
// A block is stored sample-minor: feature i of its samples starts at i * width, and width is a
// multiple of the lanes. So every product is a small matrix times a wide block, and every loop over
// samples is full vectors.
#pragma once
#include "simd.h"

namespace hdnn::HDNN_ISA {

// What a product does with y: replace it, start from a bias, add to it, or add row i, multiplied by
// gain[i], to row to[i].
enum Start { FRESH, BIAS, ADD, MAPPED };

// M[i, k] = at[i * row + k * column]
template <class T>
struct MatrixView {
  const T *at;
  i64 row, column;
};
template <class T>
struct Target {
  T *y;
  const T *bias = nullptr;  // BIAS
  T scale = 1;              // on the product, but of BIAS
  const i64 *to = nullptr;  // MAPPED
  const T *gain = nullptr;  // MAPPED
};

// A number that the compiler knows.
template <int N>
struct Size {
  static constexpr int value = N;
};
// tile(Size<4>, i) for rows i to i + 3, and so on; what is left in tiles of 2 and 1.
template <class Tile>
INLINE void for_tiles(i64 rows, Tile tile) {
  i64 i = 0;
  for (; i + 4 <= rows; i += 4) tile(Size<4>(), i);
  if (i + 2 <= rows) tile(Size<2>(), i), i += 2;
  if (i < rows) tile(Size<1>(), i);
}

// ROWS rows from row i on of y = start + scale M x, for COLUMNS vectors of samples
template <class T, Start START, int ROWS, int COLUMNS>
INLINE void product_tile(MatrixView<T> M, i64 inner, const T *x, Target<T> out, i64 i0, i64 width) {
  constexpr int N = LANES<T>;
  const T *at = M.at + i0 * M.row;
  Vec<T> sum[ROWS][COLUMNS];
  UNROLL for (int i = 0; i < ROWS; i++) {
    UNROLL for (int c = 0; c < COLUMNS; c++) sum[i][c] =
        START == BIAS ? splat<T>(out.bias[i0 + i]) : Vec<T>{};
  }
  for (i64 k = 0; k < inner; k++) {
    Vec<T> v[COLUMNS];
    UNROLL for (int c = 0; c < COLUMNS; c++) v[c] = load<T>(x + k * width + c * N);
    UNROLL for (int i = 0; i < ROWS; i++) {
      const T factor = at[i * M.row + k * M.column];
      UNROLL for (int c = 0; c < COLUMNS; c++) sum[i][c] += factor * v[c];
    }
  }
  UNROLL for (int i = 0; i < ROWS; i++) {
    T *row = out.y + (START == MAPPED ? out.to[i0 + i] : i0 + i) * width;
    const T scale = START == MAPPED ? out.scale * out.gain[i0 + i] : out.scale;
    UNROLL for (int c = 0; c < COLUMNS; c++) {
      const Vec<T> value = START == BIAS ? sum[i][c] : scale * sum[i][c];
      // y is added last: else each product would be rounded at the size of y
      store<T>(row + c * N, START < ADD ? value : load<T>(row + c * N) + value);
    }
  }
}
// y = start + scale M x, M (rows, inner)
template <class T, Start START>
static void product(MatrixView<T> M, i64 rows, i64 inner, const T *x, Target<T> out, i64 width) {
  constexpr int N = LANES<T>;
  const auto panel = [&](auto columns, i64 j) ALWAYS_INLINE {
    Target<T> there = out;
    there.y += j;
    for_tiles(rows, [&](auto height, i64 i) ALWAYS_INLINE {
      constexpr int ROWS = decltype(height)::value, COLUMNS = decltype(columns)::value;
      product_tile<T, START, ROWS, COLUMNS>(M, inner, x + j, there, i, width);
    });
  };
  i64 j = 0;  // the outermost loop, so that a panel of x stays in the first cache
  if constexpr (HDNN_BYTES == 64)  // whose 32 registers hold twice as many sums
    for (; j + 4 * N <= width; j += 4 * N) panel(Size<4>(), j);
  for (; j + 2 * N <= width; j += 2 * N) panel(Size<2>(), j);
  if (j < width) panel(Size<1>(), j);
}

// Two blocks whose rows are multiplied with each other.
template <class T>
struct Pair {
  const T *a, *b;
};
// sums[i, k] += sum over samples of a[i] b[k], over `count` pairs
template <class T, int ROWS, int COLUMNS>
INLINE void gram_tile(const Pair<T> *pairs, int count, i64 i, i64 k, i64 width, T *sums,
                      i64 stride) {
  Vec<T> total[ROWS * COLUMNS] = {};
  for (int p = 0; p < count; p++) {
    const T *a = pairs[p].a + i * width, *b = pairs[p].b + k * width;
    for (i64 j = 0; j < width; j += LANES<T>) {
      Vec<T> u[COLUMNS];
      UNROLL for (int q = 0; q < COLUMNS; q++) u[q] = load<T>(b + q * width + j);
      UNROLL for (int r = 0; r < ROWS; r++) {
        const Vec<T> v = load<T>(a + r * width + j);
        UNROLL for (int q = 0; q < COLUMNS; q++) total[r * COLUMNS + q] += v * u[q];
      }
    }
  }
  add_totals<T, ROWS, COLUMNS>(total, sums + i * stride + k, stride);
}
template <class T>
static void gram(const Pair<T> *pairs, int count, i64 rows, i64 columns, i64 width, T *sums) {
  for_tiles(rows, [&](auto height, i64 i) ALWAYS_INLINE {
    for_tiles(columns, [&](auto across, i64 k) ALWAYS_INLINE {
      constexpr int ROWS = decltype(height)::value, COLUMNS = decltype(across)::value;
      gram_tile<T, ROWS, COLUMNS>(pairs, count, i, k, width, sums, columns);
    });
  });
}
}  // namespace hdnn::HDNN_ISA
