// Largest and smallest singular values of many small matrices at once: one-sided Jacobi.
//
// Rows of a matrix are rotated against each other until they are orthogonal; their lengths are then
// the singular values, the small ones with small *relative* errors. A row is stored with a length
// near 1, and beside it the factor to its own, so that no square under- or overflows. Up to
// SVD_TOGETHER matrices stand side by side, double (n, n, SVD_TOGETHER), so that a rotation is a
// loop over matrices in machine vectors: for n = 4 a tenth of the time of LAPACK, matrix by matrix.
// A matrix that is not finite has NaN for both values.
#pragma once
#include "simd.h"

namespace hdnn::HDNN_ISA {

// Convergence is quadratic, and 5 sweeps or so serve n = 4. Where columns differ by many powers of
// ten, each sweep clears another 16 digits from the rows that are almost parallel at first.
constexpr int SVD_SWEEPS = 100;
constexpr double SVD_TOLERANCE = 1e-24;  // squared cosine of orthogonal rows; values err by as much

// Rotate rows a and b of the first `count` matrices, given their factors; false where all were
// orthogonal.
//
// With t the tangent of the angle, c the cosine of the rows and q = |b| / |a|, unit rows become
// a - t q b and b + t / q a. Of these coefficients the larger one, m, is at most 1, and the other
// is m r^2 with r = min(q, 1/q), so that both are right even where t itself is nothing beside 1: m
// = 2 c / (1 - r^2 + sqrt((1 - r^2)^2 + 4 c^2 r^2)).
inline bool rotate_rows(double *__restrict a, double *__restrict b, const double *a_factor,
                        const double *b_factor, i64 n, i64 count) {
  double aa[SVD_TOGETHER] = {}, bb[SVD_TOGETHER] = {}, ab[SVD_TOGETHER] = {};
  for (i64 k = 0; k < n * SVD_TOGETHER; k += SVD_TOGETHER)
    for (i64 p = 0; p < count; p++) {
      aa[p] += a[k + p] * a[k + p];
      bb[p] += b[k + p] * b[k + p];
      ab[p] += a[k + p] * b[k + p];
    }
  i64 moved = 0;
  for (i64 p = 0; p < count; p++) {
    const bool moves = ab[p] * ab[p] > SVD_TOLERANCE * aa[p] * bb[p];
    ab[p] = moves ? ab[p] : 0.0, aa[p] = moves ? aa[p] : 1.0, bb[p] = moves ? bb[p] : 1.0;
    moved |= moves;
  }
  if (!moved) return false;
  for (i64 p = 0; p < count; p++) {  // the coefficient of a into aa, that of b into bb
    const double factor = b_factor[p] / a_factor[p], length = factor * factor * bb[p];
    const double least = length > aa[p] ? aa[p] : length, most = length > aa[p] ? length : aa[p];
    const double rr = least / most, rest = 1.0 - rr, cc = ab[p] * ab[p] / (aa[p] * bb[p]);
    const double root = __builtin_sqrt(rest * rest + 4.0 * cc * rr + __DBL_MIN__);
    const double m = 2.0 * ab[p] / (rest + root);
    const double a_share = length > aa[p] ? rr : -1.0, b_share = length > aa[p] ? 1.0 : -rr;
    aa[p] = a_share * m / aa[p], bb[p] = b_share * m / bb[p];
    ab[p] = 1.0 / __builtin_sqrt(1.0 + aa[p] * bb[p]);  // cosine of the angle
  }
  for (i64 k = 0; k < n * SVD_TOGETHER; k += SVD_TOGETHER)
    for (i64 p = 0; p < count; p++) {
      const double x = a[k + p], y = b[k + p];
      a[k + p] = ab[p] * (x - bb[p] * y);
      b[k + p] = ab[p] * (y + aa[p] * x);
    }
  return true;
}

// Largest size of n numbers, `step` apart. A NaN is larger than everything.
inline void largest_size(const double *x, i64 n, i64 step, i64 count, double *largest) {
  for (i64 p = 0; p < count; p++) largest[p] = 0;
  for (i64 k = 0; k < n; k++, x += step)
    for (i64 p = 0; p < count; p++) {
      const double size = __builtin_fabs(x[p]);
      largest[p] = size > largest[p] || size != size ? size : largest[p];
    }
}

// Divide rows by powers of 2, which changes no digit, so that their largest entries are 1 to 2; the
// powers are multiplied into `factors` (n, SVD_TOGETHER).
inline void normalize_rows(double *A, i64 n, i64 count, double *factors) {
  double size[SVD_TOGETHER], scale[SVD_TOGETHER];
  for (i64 i = 0; i < n; i++, factors += SVD_TOGETHER) {
    largest_size(A, n, SVD_TOGETHER, count, size);
    for (i64 p = 0; p < count; p++) {
      int64_t bits;
      __builtin_memcpy(&bits, size + p, sizeof(bits));
      bits &= int64_t(0x7ff) << 52;  // the exponent; of NaN that of infinity
      __builtin_memcpy(size + p, &bits, sizeof(bits));
      size[p] = size[p] > __DBL_MIN__ ? size[p] : __DBL_MIN__;
      const double factor = factors[p] * size[p];
      factors[p] = factor > 0.0 ? factor : __DBL_DENORM_MIN__, scale[p] = 1.0 / size[p];
    }
    for (i64 k = 0; k < n; k++, A += SVD_TOGETHER)
      for (i64 p = 0; p < count; p++) A[p] *= scale[p];
  }
}

// Singular values of the first `count` matrices of A, which are overwritten.
inline void singular_values(double *A, double *factors, i64 n, i64 count, double *largest,
                            double *smallest) {
  const i64 row = n * SVD_TOGETHER;
  for (i64 k = 0; k < row; k++) factors[k] = 1;
  bool moved = true;
  for (int sweep = 0; moved && sweep < SVD_SWEEPS; sweep++) {
    moved = false;
    normalize_rows(A, n, count, factors);
    for (i64 i = 0; i < n; i++)
      for (i64 j = i + 1; j < n; j++)
        moved = rotate_rows(A + i * row, A + j * row, factors + i * SVD_TOGETHER,
                            factors + j * SVD_TOGETHER, n, count) ||
                moved;
  }
  for (i64 p = 0; p < count; p++) largest[p] = 0, smallest[p] = __builtin_inf();
  for (i64 i = 0; i < n; i++, A += row, factors += SVD_TOGETHER) {
    double square[SVD_TOGETHER] = {};
    for (i64 k = 0; k < row; k += SVD_TOGETHER)
      for (i64 p = 0; p < count; p++) square[p] += A[k + p] * A[k + p];
    for (i64 p = 0; p < count; p++) square[p] = __builtin_sqrt(square[p]) * factors[p];
    for (i64 p = 0; p < count; p++) {  // a NaN stays
      const double x = square[p];
      largest[p] = x > largest[p] || x != x ? x : largest[p];
      smallest[p] = x < smallest[p] || x != x ? x : smallest[p];
    }
  }
}

// Of `count` matrices (count, n, n); `memory` is for one group of them and for n factors of each.
inline void singular_values_of(const double *matrices, i64 n, i64 count, double *largest,
                               double *smallest, double *memory) {
  for (i64 first = 0; first < count; first += SVD_TOGETHER) {
    const i64 together = count - first < SVD_TOGETHER ? count - first : SVD_TOGETHER;
    for (i64 p = 0; p < together; p++)
      for (i64 k = 0; k < n * n; k++)
        memory[k * SVD_TOGETHER + p] = matrices[(first + p) * n * n + k];
    singular_values(memory, memory + n * n * SVD_TOGETHER, n, together, largest + first,
                    smallest + first);
  }
}
}  // namespace hdnn::HDNN_ISA
