// Stages that are squares of 2 or 4 (reads = units = writes) with carry = 1, as those of the paper.
// The compiler knows the sizes, so that all numbers stay in registers between the products.
#pragma once
#include "stages.h"

namespace hdnn::HDNN_ISA {

// v = J2 v: row i is the sum of the v after v_i less the sum of those before it.
template <class T, int K, int STRIDE>
INLINE void signs_product(Vec<T> *v) {
  Vec<T> after[K], sum = {};
  UNROLL for (int i = K - 1; i >= 0; i--) {
    after[i] = sum;
    sum += v[i * STRIDE];
  }
  sum = Vec<T>{};
  UNROLL for (int i = 0; i < K; i++) {
    const Vec<T> own = v[i * STRIDE];
    v[i * STRIDE] = after[i] - sum;
    sum += own;
  }
}

// COLUMNS vectors of samples through a stage. x and activations point to the first of them.
template <class T, int K, StructureKind KIND, bool KEEP, int COLUMNS>
INLINE void small_panel(const Stage &s, Weights<T> w, i64 activation, T *x, T *activations,
                        i64 width) {
  constexpr int N = LANES<T>;
  const T *read = x + s.read * width;
  T *write = x + s.write * width;
  Vec<T> z[K * COLUMNS], v[K * COLUMNS] = {};
  UNROLL for (int i = 0; i < K * COLUMNS; i++) z[i] = splat<T>(w.b[i / COLUMNS]);
  UNROLL for (int k = 0; k < K; k++) {
    UNROLL for (int c = 0; c < COLUMNS; c++) {
      const Vec<T> y = load<T>(read + k * width + c * N);
      if (KEEP) store<T>(activations + k * width + c * N, y);
      UNROLL for (int i = 0; i < K; i++) z[i * COLUMNS + c] += w.W[i * K + k] * y;
    }
  }
  sigma<T, K * COLUMNS>(z, activation);
  UNROLL for (int i = 0; i < K * COLUMNS && KEEP; i++)
      store<T>(activations + (K + i / COLUMNS) * width + i % COLUMNS * N, z[i]);
  UNROLL for (int i = 0; i < K; i++) {
    T *y = write + (KIND == MONOMIAL ? w.to[i] : i) * width;
    UNROLL for (int c = 0; c < COLUMNS; c++) {
      Vec<T> &sum = v[i * COLUMNS + c];
      if (KIND == SCALAR) sum = z[i * COLUMNS + c];
      UNROLL for (int k = 0; k < K && KIND != SCALAR; k++) sum +=
          w.W[k * K + i] * z[k * COLUMNS + c];
      if (KIND == MONOMIAL) sum *= w.gain[i];
      if (KIND != SIGNS) store<T>(y + c * N, load<T>(y + c * N) + w.a * sum);
    }
  }
  UNROLL for (int c = 0; c < COLUMNS && KIND == SIGNS; c++) {
    signs_product<T, K, COLUMNS>(v + c);
    UNROLL for (int i = 0; i < K; i++) {
      T *y = write + i * width + c * N;
      store<T>(y, load<T>(y) + w.a * v[i * COLUMNS + c]);
    }
  }
}

template <class T, int K, StructureKind KIND, bool KEEP>
static void small_forward(const Stage &s, Weights<T> w, i64 activation, T *x, T *activations,
                          i64 width) {
  constexpr int N = LANES<T>, COLUMNS = K < TOGETHER ? TOGETHER / K : 1;
  i64 j = 0;
  for (; j + COLUMNS * N <= width; j += COLUMNS * N)
    small_panel<T, K, KIND, KEEP, COLUMNS>(s, w, activation, x + j, activations + j, width);
  for (; j < width; j += N)
    small_panel<T, K, KIND, KEEP, 1>(s, w, activation, x + j, activations + j, width);
}

// A covector back through a stage, all samples of a block; as `stage_backward`.
template <class T, int K, StructureKind KIND, bool GRADIENTS>
static void small_backward(const Stage &s, Weights<T> w, i64 activation, const T *activations, T *g,
                           i64 width, T *row) {
  const T *write = g + s.write * width;
  T *read = g + s.read * width;
  Vec<T> gW[K * K] = {}, gb[K] = {};
  for (i64 j = 0; j < width; j += LANES<T>) {
    Vec<T> d[K] = {}, sigma[K], u[K];
    UNROLL for (int i = 0; i < K; i++) sigma[i] = load<T>(activations + (K + i) * width + j);
    UNROLL for (int k = 0; k < K; k++) u[k] =
        w.a * load<T>(write + (KIND == MONOMIAL ? w.to[k] : k) * width + j);
    if (KIND == SIGNS) signs_product<T, K, 1>(u);
    UNROLL for (int k = 0; k < K; k++) {
      if (KIND == SCALAR) {
        d[k] = u[k];
        continue;
      }
      const Vec<T> own = KIND == SIGNS ? -u[k] : w.gain[k] * u[k];
      UNROLL for (int i = 0; i < K; i++) d[i] += w.W[i * K + k] * own;
      if (GRADIENTS) {
        UNROLL for (int i = 0; i < K; i++) gW[i * K + k] += sigma[i] * own;
      }
    }
    UNROLL for (int i = 0; i < K; i++) {
      d[i] = times_slope<T>(d[i], sigma[i], activation);
      if (GRADIENTS) gb[i] += d[i];
    }
    UNROLL for (int k = 0; k < K; k++) {
      Vec<T> sum = {};
      if (GRADIENTS) {
        const Vec<T> v = load<T>(activations + k * width + j);
        UNROLL for (int i = 0; i < K; i++) gW[i * K + k] += d[i] * v;
      }
      UNROLL for (int i = 0; i < K; i++) sum += w.W[i * K + k] * d[i];
      store<T>(read + k * width + j, load<T>(read + k * width + j) + sum);
    }
  }
  if (GRADIENTS) {
    add_totals<T, K, K>(gW, row + s.at_W, K);
    add_totals<T, 1, K>(gb, row + s.at_b, 0);
  }
}

// One stage, by what the compiler knows of it.
template <class T, int K, bool KEEP>
INLINE void small_forward(const Stage &s, Weights<T> w, i64 activation, T *x, T *activations,
                          i64 width) {
  if (w.kind == SCALAR)
    return small_forward<T, K, SCALAR, KEEP>(s, w, activation, x, activations, width);
  if (w.kind == MONOMIAL)
    return small_forward<T, K, MONOMIAL, KEEP>(s, w, activation, x, activations, width);
  small_forward<T, K, SIGNS, KEEP>(s, w, activation, x, activations, width);
}
template <class T, int K, bool GRADIENTS>
INLINE void small_backward(const Stage &s, Weights<T> w, i64 activation, const T *activations, T *g,
                           i64 width, T *row) {
  if (w.kind == SCALAR)
    return small_backward<T, K, SCALAR, GRADIENTS>(s, w, activation, activations, g, width, row);
  if (w.kind == MONOMIAL)
    return small_backward<T, K, MONOMIAL, GRADIENTS>(s, w, activation, activations, g, width, row);
  small_backward<T, K, SIGNS, GRADIENTS>(s, w, activation, activations, g, width, row);
}
}  // namespace hdnn::HDNN_ISA
