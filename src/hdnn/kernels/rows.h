// Products of matrices with few samples: a sample is a row of numbers that lie one after the other,
// and lanes run over the numbers that a product makes or adds. So one sample fills the lanes as
// well as many (products.h, with lanes over samples, serves many).
//
// Matrices are read as they are, both ways: rows of y = M' x are combinations of rows of M, and
// numbers of y = M x are dot products with them. Rows need not be whole vectors: the last vector of
// a row then overlaps with the one before, so that all rows have at least one vector.
#pragma once
#include "products.h"

namespace hdnn::HDNN_ISA {

// y[i] = sum_k x[i, k] M[k], or y[i] += ... if ADDS; x[i, k] = x[i * row + k * step].
template <class T>
struct Combination {
  const T *M;
  i64 length;  // numbers from a row of M to the next
  i64 inner;   // rows of M
  const T *x;
  i64 row, step;
  T *y;
  i64 to;  // numbers from a row of y to the next
};

// ROWS rows of y, COLUMNS vectors of each. Few sums would wait for each other: then several chains
// of them run side by side.
template <class T, bool ADDS, int ROWS, int COLUMNS>
INLINE void combine_tile(const Combination<T> &c, i64 i0, i64 j0) {
  constexpr int N = LANES<T>, SUMS = ROWS * COLUMNS;
  constexpr int CHAINS = SUMS >= 8 ? 1 : SUMS >= 4 ? 2 : 4;
  Vec<T> sum[CHAINS][ROWS][COLUMNS] = {};
  const T *x = c.x + i0 * c.row, *M = c.M + j0;
  const auto add = [&](int chain, i64 k) ALWAYS_INLINE {
    Vec<T> v[COLUMNS];
    UNROLL for (int j = 0; j < COLUMNS; j++) v[j] = load<T>(M + k * c.length + j * N);
    UNROLL for (int i = 0; i < ROWS; i++) {
      const T factor = x[i * c.row + k * c.step];
      UNROLL for (int j = 0; j < COLUMNS; j++) sum[chain][i][j] += factor * v[j];
    }
  };
  i64 k = 0;
  for (; k + CHAINS <= c.inner; k += CHAINS) {
    UNROLL for (int chain = 0; chain < CHAINS; chain++) add(chain, k + chain);
  }
  for (; k < c.inner; k++) add(0, k);
  UNROLL for (int i = 0; i < ROWS; i++) {
    UNROLL for (int j = 0; j < COLUMNS; j++) {
      UNROLL for (int chain = 1; chain < CHAINS; chain++) sum[0][i][j] += sum[chain][i][j];
      T *y = c.y + (i0 + i) * c.to + j0 + j * N;
      store<T>(y, ADDS ? load<T>(y) + sum[0][i][j] : sum[0][i][j]);
    }
  }
}
// All rows and vectors; a panel of M stays in the first cache while all rows use it.
template <class T, bool ADDS>
static void combine(const Combination<T> &c, i64 rows, i64 vectors) {
  const auto panel = [&](auto columns, i64 j) ALWAYS_INLINE {
    for_tiles(rows, [&](auto height, i64 i) ALWAYS_INLINE {
      constexpr int ROWS = decltype(height)::value, COLUMNS = decltype(columns)::value;
      combine_tile<T, ADDS, ROWS, COLUMNS>(c, i, j * LANES<T>);
    });
  };
  i64 j = 0;
  if constexpr (HDNN_BYTES == 64)  // whose 32 registers hold twice as many sums
    for (; j + 4 <= vectors; j += 4) panel(Size<4>(), j);
  for (; j + 2 <= vectors; j += 2) panel(Size<2>(), j);
  if (j < vectors) panel(Size<1>(), j);
}

// --- rows of any length from one vector on -----------------------------------------------------

// Rows of a matrix whose dot products are found together.
template <class T>
constexpr int TOGETHER_ROWS = LANES<T> > 8 ? LANES<T> : 8;

// visit(Size<COUNT>, at) for the vectors of a row, at most four at once; at[k] is where one begins.
template <class T, class Visit>
INLINE void for_vectors(i64 length, Visit visit) {
  constexpr int N = LANES<T>;
  for_tiles((length + N - 1) / N, [&](auto count, i64 first) ALWAYS_INLINE {
    i64 at[decltype(count)::value];
    UNROLL for (int k = 0; k < decltype(count)::value; k++) at[k] =
        smaller((first + k) * N, length - N);
    visit(count, at);
  });
}
// y[j] += value(j), vector by vector; the last one is found before others are stored.
template <class T, class Value>
INLINE void add_along(i64 length, T *y, Value value) {
  constexpr int N = LANES<T>;
  const Vec<T> last = load<T>(y + length - N) + value(length - N);
  for (i64 j = 0; j < length - N; j += N) store<T>(y + j, load<T>(y + j) + value(j));
  store<T>(y + length - N, last);
}
// Of the last vector of a row the lanes that the others do not hold; 0 in their place, whatever
// number is there.
template <class T>
struct Rest {
  Bits<T> own;
  explicit Rest(i64 length) {
    constexpr int N = LANES<T>;
    const i64 shared = (N - length % N) % N;
    for (int lane = 0; lane < N; lane++) own[lane] = lane < shared ? 0 : -1;
  }
  ALWAYS_INLINE Vec<T> operator()(Vec<T> v) const { return (Vec<T>)((Bits<T>)v & own); }
};

// y = M x, for all samples: M (rows, columns), its rows `length` numbers apart. Sums are alike for
// any number of samples.
template <class T>
struct Samples {
  const T *at;
  i64 row;  // numbers from a sample to the next
};
template <class T>
static void dot_rows(const T *M, i64 length, i64 rows, i64 columns, Samples<T> x, i64 samples, T *y,
                     i64 to) {
  constexpr int N = LANES<T>, ROWS = TOGETHER_ROWS<T>;
  const Rest<T> rest(columns);
  for (i64 i = 0; i < rows; i += ROWS) {
    const i64 first = smaller(i, rows - ROWS);
    const T *m = M + first * length;
    for (i64 b = 0; b < samples; b++) {
      const T *v = x.at + b * x.row;
      Vec<T> sum[ROWS] = {};
      for (i64 k = 0; k < columns - N; k += N) {
        const Vec<T> own = load<T>(v + k);
        UNROLL for (int r = 0; r < ROWS; r++) sum[r] += load<T>(m + r * length + k) * own;
      }
      const Vec<T> own = rest(load<T>(v + columns - N));
      UNROLL for (int r = 0; r < ROWS; r++) sum[r] +=
          rest(load<T>(m + r * length + columns - N)) * own;
      fold<T, ROWS>(sum);
      UNROLL for (int k = 0; k < ROWS / N; k++) store<T>(y + b * to + first + k * N, sum[k]);
    }
  }
}
// y = M' x, for all samples: M (rows, columns), its rows `length` numbers apart.
template <class T>
static void combine_rows(const T *M, i64 length, i64 rows, i64 columns, Samples<T> x, i64 samples,
                         T *y, i64 to) {
  constexpr int N = LANES<T>;
  combine<T, false>({M, length, rows, x.at, x.row, 1, y, to}, samples, columns / N);
  const i64 last = columns - N;
  if (columns % N)
    combine<T, false>({M + last, length, rows, x.at, x.row, 1, y + last, to}, samples, 1);
}

// y[i] = sum over samples and pairs of a[i] b, or y[i] += ... if ADDS; y (rows, columns).
template <class T, bool ADDS>
static void outer_rows(const Pair<T> *pairs, int count, i64 rows, i64 columns, i64 samples, T *y) {
  const Rest<T> rest(columns);
  for (i64 i = 0; i < rows; i++, y += columns)
    for_vectors<T>(columns, [&](auto size, const i64 *at) ALWAYS_INLINE {
      constexpr int COUNT = decltype(size)::value;
      Vec<T> sum[COUNT] = {};
      for (int p = 0; p < count; p++)
        for (i64 b = 0; b < samples; b++) {
          const T factor = pairs[p].a[b * rows + i], *row = pairs[p].b + b * columns;
          UNROLL for (int k = 0; k < COUNT; k++) sum[k] += factor * load<T>(row + at[k]);
        }
      UNROLL for (int k = 0; k < COUNT; k++) {
        T *to = y + at[k];
        if (!ADDS)
          store<T>(to, sum[k]);
        else
          store<T>(to, load<T>(to) + (at[k] == columns - LANES<T> ? rest(sum[k]) : sum[k]));
      }
    });
}
}  // namespace hdnn::HDNN_ISA
