// One stage, forward and backward, on a block of samples (stored as products.h says).
//
// What a backward pass needs of a stage is kept as rows of a block, one after the other:
// x[read] (reads) and sigma (units).
#pragma once
#include "activations.h"
#include "products.h"

namespace hdnn::HDNN_ISA {

// The numbers of one network. Most W and b are parameters in their own order and are read from
// theta and beta in place; `rows` holds the others.
template <class T>
struct Network {
  const Program *program;
  const T *theta, *beta;  // (period, .)
  const T *S;             // (n, n)
  double h;
  const double *steps;  // (L), or null: h
  Structure structure;
  T *rows;            // (period, row)
  T *gtheta, *gbeta;  // (L, .), gradients, where the program is `direct`; null: not wanted
  double step(i64 layer) const { return steps ? steps[layer] : h; }
};

// The numbers of one stage in one layer.
template <class T>
struct Weights {
  const T *W, *b;
  bool transposed;  // W is stored as W' (few samples)
  T a;              // factor h
  StructureKind kind;
  const i64 *to;   // MONOMIAL
  const i64 *run;  // MONOMIAL
  const T *gain;   // MONOMIAL
  const T *S;      // S[write, read], its rows n numbers apart; null where SCALAR
  i64 n;
};

template <class T>
INLINE Weights<T> weights_of(const Network<T> &net, i64 layer, i64 stage) {
  const Program &p = *net.program;
  const Stage &s = p.stage[stage];
  const i64 own = layer % p.period;
  const T *row = net.rows + own * p.row;
  const bool transposed = p.few && s.first_transposed >= 0;
  const i64 first = transposed ? s.first_transposed : s.first_W;
  return {first < 0 ? row + s.at_W : net.theta + own * p.theta + first,
          s.first_b < 0 ? row + s.at_b : net.beta + own * p.beta + s.first_b,
          transposed,
          T(s.factor * net.step(layer)),
          net.structure.kind[stage],
          net.structure.to + s.at_S,
          net.structure.run + s.at_S,
          (const T *)net.structure.gain + s.at_S,
          s.adjoint ? net.S + s.write * p.width + s.read : nullptr,
          p.width};
}

// y = scale J2 v, or y += scale J2 v if ADDS. Row i of J2 v is the sum of the v after v_i less the
// sum of those before it. `after` is memory for n rows: those of y, if it is replaced.
template <class T, bool ADDS, int COLUMNS>
INLINE void signs_panel(i64 n, const T *v, T scale, T *y, T *after, i64 width) {
  constexpr int N = LANES<T>;
  Vec<T> sum[COLUMNS] = {};
  for (i64 k = (n - 1) * width; k >= 0; k -= width) {
    UNROLL for (int c = 0; c < COLUMNS; c++) {
      store<T>(after + k + c * N, sum[c]);
      sum[c] += load<T>(v + k + c * N);
    }
  }
  UNROLL for (int c = 0; c < COLUMNS; c++) sum[c] = Vec<T>{};
  for (i64 k = 0; k < n * width; k += width) {
    UNROLL for (int c = 0; c < COLUMNS; c++) {
      const i64 at = k + c * N;
      const Vec<T> row = scale * (load<T>(after + at) - sum[c]);
      sum[c] += load<T>(v + at);
      store<T>(y + at, ADDS ? load<T>(y + at) + row : row);
    }
  }
}
template <class T, bool ADDS>
static void signs_product(i64 n, const T *v, T scale, T *y, T *after, i64 width) {
  constexpr int N = LANES<T>, TOGETHER = 4;  // sums, so that none waits for the one before
  i64 j = 0;
  for (; j + TOGETHER * N <= width; j += TOGETHER * N)
    signs_panel<T, ADDS, TOGETHER>(n, v + j, scale, y + j, after + j, width);
  for (; j < width; j += N) signs_panel<T, ADDS, 1>(n, v + j, scale, y + j, after + j, width);
}

// d and u are memory for reads rows. x[read] is copied to `activations` only if KEEP.
template <class T, bool KEEP>
static void stage_forward(const Stage &s, Weights<T> w, i64 activation, T *x, T *activations, T *d,
                          T *u, i64 width) {
  T *sigma = activations + s.reads * width, *y = x + s.write * width;
  if (KEEP) copy<T>(x + s.read * width, activations, s.reads * width);
  product<T, BIAS>({w.W, s.reads, 1}, s.units, s.reads, x + s.read * width, {sigma, w.b}, width);
  activate<T>(sigma, s.units * width, activation);
  if (!s.carry) fill<T>(y, s.writes * width, T(0));
  const MatrixView<T> transposed = {w.W, 1, s.reads};
  if (w.kind == SCALAR) {
    for (i64 j = 0; j < s.writes * width; j += LANES<T>)
      store<T>(y + j, load<T>(y + j) + w.a * load<T>(sigma + j));
  } else if (w.kind == MONOMIAL) {
    product<T, MAPPED>(transposed, s.reads, s.units, sigma, {y, nullptr, w.a, w.to, w.gain}, width);
  } else {
    product<T, FRESH>(transposed, s.reads, s.units, sigma, {u}, width);
    if (w.kind == SIGNS)
      signs_product<T, true>(s.reads, u, w.a, y, d, width);
    else
      product<T, ADD>({w.S, w.n, 1}, s.writes, s.reads, u, {y, nullptr, w.a}, width);
  }
}

// d = sigma' . d, and unless gb is null, gb += its sums over samples.
template <class T>
static void multiply_slopes(const Stage &s, i64 activation, const T *sigma, T *d, T *gb,
                            i64 width) {
  for (i64 i = 0; i < s.units; i++) {
    Vec<T> total[1] = {};
    for (i64 j = i * width; j < (i + 1) * width; j += LANES<T>) {
      const Vec<T> value = times_slope<T>(load<T>(d + j), load<T>(sigma + j), activation);
      store<T>(d + j, value);
      total[0] += value;
    }
    if (gb) add_totals<T, 1, 1>(total, gb + i, 0);
  }
}

// d = sigma' A' g[write]; g[write] = carry g[write]; g[read] += W' d. Gradients are added to the
// places of the stage in `row` if GRADIENTS. d and u are memory for units and reads rows.
template <class T, bool GRADIENTS>
static void stage_backward(const Stage &s, Weights<T> w, i64 activation, const T *activations, T *g,
                           T *d, T *u, i64 width, T *row) {
  const T *sigma = activations + s.reads * width;
  T *gy = g + s.write * width;
  const Pair<T> pairs[2] = {{d, activations}, {sigma, u}};  // whose products are the gradient of W
  if (w.kind == SCALAR) {
    for (i64 j = 0; j < s.writes * width; j += LANES<T>) store<T>(d + j, w.a * load<T>(gy + j));
  } else {  // u = a S' g, d = W u
    for (i64 k = 0; w.kind == MONOMIAL && k < s.reads; k++)
      for (i64 j = 0; j < width; j += LANES<T>)
        store<T>(u + k * width + j, w.a * w.gain[k] * load<T>(gy + w.to[k] * width + j));
    if (w.kind == SIGNS) signs_product<T, false>(s.reads, gy, -w.a, u, u, width);
    if (w.kind == GENERAL)
      product<T, FRESH>({w.S, 1, w.n}, s.reads, s.writes, gy, {u, nullptr, w.a}, width);
    product<T, FRESH>({w.W, s.reads, 1}, s.units, s.reads, u, {d}, width);
  }
  multiply_slopes<T>(s, activation, sigma, d, GRADIENTS ? row + s.at_b : nullptr, width);
  if (GRADIENTS) gram<T>(pairs, s.adjoint ? 2 : 1, s.units, s.reads, width, row + s.at_W);
  if (!s.carry) fill<T>(gy, s.writes * width, T(0));
  product<T, ADD>({w.W, 1, s.reads}, s.reads, s.units, d, {g + s.read * width}, width);
}
}  // namespace hdnn::HDNN_ISA
