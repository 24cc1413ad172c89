// Largest and smallest singular values of many small matrices at once: one-sided Jacobi.
//
// Rows of a matrix are rotated against each other until they are orthogonal; their lengths are then
// the singular values, the small ones with small *relative* errors. Up to SVD_TOGETHER matrices
// stand side by side, double (n, n, SVD_TOGETHER), so that a rotation is a loop over matrices in
// machine vectors: for n = 4 a tenth of the time of LAPACK, matrix by matrix. A matrix that is not
// finite has NaN for both values.
#pragma once
#include "simd.h"

namespace hdnn::HDNN_ISA {

constexpr int SVD_SWEEPS = 40;           // convergence is quadratic: 5 or so serve n = 4
constexpr double SVD_TOLERANCE = 1e-24;  // squared cosine of orthogonal rows; values err by as much

// Rotate rows a and b of the first `count` matrices; false where all were orthogonal.
inline bool rotate_rows(double *__restrict a, double *__restrict b, i64 n, i64 count) {
  double aa[SVD_TOGETHER] = {}, bb[SVD_TOGETHER] = {}, ab[SVD_TOGETHER] = {};
  for (i64 k = 0; k < n * SVD_TOGETHER; k += SVD_TOGETHER)
    for (i64 p = 0; p < count; p++) {
      aa[p] += a[k + p] * a[k + p];
      bb[p] += b[k + p] * b[k + p];
      ab[p] += a[k + p] * b[k + p];
    }
  double moved = 0;
  for (i64 p = 0; p < count; p++)
    moved += ab[p] * ab[p] > SVD_TOLERANCE * aa[p] * bb[p] ? 1.0 : 0.0;
  if (moved == 0) return false;
  for (i64 p = 0; p < count; p++) {  // cosine into aa, sine into bb
    const double zeta = (bb[p] - aa[p]) / (2.0 * ab[p]);
    const double size = __builtin_fabs(zeta) + __builtin_sqrt(1.0 + zeta * zeta);
    const double tangent = ab[p] != 0.0 ? __builtin_copysign(1.0, zeta) / size : 0.0;
    aa[p] = 1.0 / __builtin_sqrt(1.0 + tangent * tangent);
    bb[p] = aa[p] * tangent;
  }
  for (i64 k = 0; k < n * SVD_TOGETHER; k += SVD_TOGETHER)
    for (i64 p = 0; p < count; p++) {
      const double x = a[k + p], y = b[k + p];
      a[k + p] = aa[p] * x - bb[p] * y;
      b[k + p] = bb[p] * x + aa[p] * y;
    }
  return true;
}

// Divide matrices by their largest entries, which go to `scale`: squares then neither overflow nor
// vanish. A NaN is larger than everything.
inline void scale_matrices(double *A, i64 n, i64 count, double *scale) {
  for (i64 p = 0; p < count; p++) scale[p] = 0;
  for (i64 k = 0; k < n * n * SVD_TOGETHER; k += SVD_TOGETHER)
    for (i64 p = 0; p < count; p++) {
      const double size = __builtin_fabs(A[k + p]);
      scale[p] = size > scale[p] || size != size ? size : scale[p];
    }
  for (i64 k = 0; k < n * n * SVD_TOGETHER; k += SVD_TOGETHER)
    for (i64 p = 0; p < count; p++) A[k + p] = scale[p] > 0 ? A[k + p] / scale[p] : A[k + p];
}

// Singular values of the first `count` matrices of A, which are overwritten.
inline void singular_values(double *A, i64 n, i64 count, double *largest, double *smallest) {
  const i64 row = n * SVD_TOGETHER;
  double scale[SVD_TOGETHER], length[SVD_TOGETHER];
  scale_matrices(A, n, count, scale);
  bool moved = true;
  for (int sweep = 0; moved && sweep < SVD_SWEEPS; sweep++) {
    moved = false;
    for (i64 i = 0; i < n; i++)
      for (i64 j = i + 1; j < n; j++)
        moved = rotate_rows(A + i * row, A + j * row, n, count) || moved;
  }
  for (i64 p = 0; p < count; p++) largest[p] = 0, smallest[p] = __builtin_inf();
  for (i64 i = 0; i < n; i++) {
    for (i64 p = 0; p < count; p++) length[p] = 0;
    for (i64 k = i * row; k < (i + 1) * row; k += SVD_TOGETHER)
      for (i64 p = 0; p < count; p++) length[p] += A[k + p] * A[k + p];
    for (i64 p = 0; p < count; p++) {  // a NaN stays
      const double x = length[p];
      largest[p] = x > largest[p] || x != x ? x : largest[p];
      smallest[p] = x < smallest[p] || x != x ? x : smallest[p];
    }
  }
  for (i64 p = 0; p < count; p++) {
    largest[p] = __builtin_sqrt(largest[p]) * scale[p];
    smallest[p] = __builtin_sqrt(smallest[p]) * scale[p];
  }
}

// Of `count` matrices (count, n, n); `memory` is for one group of them.
inline void singular_values_of(const double *matrices, i64 n, i64 count, double *largest,
                               double *smallest, double *memory) {
  for (i64 first = 0; first < count; first += SVD_TOGETHER) {
    const i64 together = count - first < SVD_TOGETHER ? count - first : SVD_TOGETHER;
    for (i64 p = 0; p < together; p++)
      for (i64 k = 0; k < n * n; k++)
        memory[k * SVD_TOGETHER + p] = matrices[(first + p) * n * n + k];
    singular_values(memory, n, together, largest + first, smallest + first);
  }
}
}  // namespace hdnn::HDNN_ISA
