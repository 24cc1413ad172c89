// One stage for few samples, forward and backward: lanes over features and units (rows.h).
//
// A block of few samples is stored sample after sample: x (samples, n) as the caller has it, and
// what a backward pass needs of a stage as x[read] (samples, reads) and sigma (samples, units). W
// is read as it stands in theta, also where it is the transposed of what stands there.
#pragma once
#include "rows.h"
#include "stages.h"

namespace hdnn::HDNN_ISA {

// W (units, reads), or stored as its transposed.
template <class T>
struct StoredMatrix {
  const T *at;
  i64 units, reads;
  bool transposed;
  // z = W x, z (samples, units)
  void times(Samples<T> x, i64 samples, T *z) const {
    if (transposed)
      combine_rows<T>(at, units, reads, units, x, samples, z, units);
    else
      dot_rows<T>(at, reads, units, reads, x, samples, z, units);
  }
  // u = W' s, of s (samples, units); u (samples, reads)
  void adjoint_times(const T *s, i64 samples, T *u) const {
    if (transposed)
      dot_rows<T>(at, units, reads, units, {s, units}, samples, u, reads);
    else
      combine_rows<T>(at, reads, units, reads, {s, units}, samples, u, reads);
  }
};

// visit(k, count) for the columns k .. k + count - 1 of a MONOMIAL S that go to rows one after the
// other.
template <class T, class Visit>
INLINE void for_runs(const Weights<T> &w, i64 columns, Visit visit) {
  for (i64 k = 0; k < columns; k += w.run[k]) visit(k, w.run[k]);
}

// y = scale J2 v, or y += scale J2 v if ADDS, of one sample: row i of J2 v is the sum of the v
// after v_i less the sum of those before it. `before` is memory for n numbers, rounded up to whole
// vectors.
template <class T, bool ADDS>
static void signs_row(i64 n, const T *v, T scale, T *y, T *before) {
  constexpr int N = LANES<T>;
  const i64 last = (n - 1) / N * N;  // of the vectors; it begins at n - N
  const Rest<T> rest(n);
  const auto at = [&](i64 j) ALWAYS_INLINE {
    return j < last ? load<T>(v + j) : rest(load<T>(v + n - N));
  };
  Vec<T> sum = {};
  for (i64 j = 0; j <= last; j += N) {
    const Vec<T> sums = running_sums<T, 1>(at(j));
    store<T>(before + j, sum + shifted<T, 1>(sums));
    sum += splat<T>(sums[N - 1]);
  }
  sum = Vec<T>{};
  for (i64 j = last; j >= 0; j -= N) {
    const Vec<T> sums = running_sums<T, -1>(at(j));
    const Vec<T> row = scale * (sum + shifted<T, -1>(sums) - load<T>(before + j));
    sum += splat<T>(sums[0]);
    T *to = y + smaller(j, n - N);
    if (!ADDS)
      store<T>(to, row);  // what the last one has too much, the one before it corrects
    else
      store<T>(to, load<T>(to) + (j < last ? row : rest(row)));
  }
}

// `d`, `u` and `more` are memory for as many numbers of every sample as features or units; the last
// one has room for a vector more.
template <class T, bool KEEP>
static void few_forward(const Stage &s, const Weights<T> &w, i64 activation, T *x, T *activations,
                        T *d, T *u, T *more, i64 samples) {
  const i64 n = w.n;
  const StoredMatrix<T> W = {w.W, s.units, s.reads, w.transposed};
  T *sigmas = activations + s.reads * samples;
  for (i64 b = 0; KEEP && b < samples; b++)
    copy<T>(x + b * n + s.read, activations + b * s.reads, s.reads);
  W.times({x + s.read, n}, samples, d);
  for (i64 b = 0; b < samples; b++)
    for_vectors<T>(s.units, [&](auto size, const i64 *at) ALWAYS_INLINE {
      constexpr int COUNT = decltype(size)::value;
      Vec<T> z[COUNT];
      UNROLL for (int k = 0; k < COUNT; k++) z[k] =
          load<T>(d + b * s.units + at[k]) + load<T>(w.b + at[k]);
      sigma<T, COUNT>(z, activation);
      UNROLL for (int k = 0; k < COUNT; k++) store<T>(sigmas + b * s.units + at[k], z[k]);
    });
  if (w.kind != SCALAR) W.adjoint_times(sigmas, samples, u);
  if (w.kind == GENERAL)
    dot_rows<T>(w.S, n, s.writes, s.reads, {u, s.reads}, samples, more, s.writes);
  for (i64 b = 0; b < samples; b++) {
    T *y = x + b * n + s.write;
    if (!s.carry) fill<T>(y, s.writes, T(0));
    const T *own = u + b * s.reads;
    if (w.kind == SIGNS) {
      signs_row<T, true>(s.reads, own, w.a, y, more);
    } else if (w.kind == MONOMIAL) {
      for_runs<T>(w, s.reads, [&](i64 k, i64 count) ALWAYS_INLINE {
        T *to = y + w.to[k];
        if (count < LANES<T>)
          for (i64 j = 0; j < count; j++) to[j] += w.a * w.gain[k + j] * own[k + j];
        else
          add_along<T>(count, to, [&](i64 j) ALWAYS_INLINE {
            return w.a * load<T>(w.gain + k + j) * load<T>(own + k + j);
          });
      });
    } else {
      const T *added = (w.kind == SCALAR ? sigmas : more) + b * s.writes;
      add_along<T>(s.writes, y, [&](i64 j) ALWAYS_INLINE { return w.a * load<T>(added + j); });
    }
  }
}

// Where the gradients of a stage go; null: not wanted.
template <class T>
struct StageGradients {
  T *W, *b;
  bool adds;       // gradients of W to what is there, as those of b always are; else overwritten
  bool as_stored;  // W may be transposed; else it is not
};

// As `stage_backward`, with the same memory as `few_forward`.
template <class T>
static void few_backward(const Stage &s, const Weights<T> &w, i64 activation, const T *activations,
                         T *g, T *d, T *u, T *more, i64 samples, StageGradients<T> to) {
  const i64 n = w.n;
  const StoredMatrix<T> W = {w.W, s.units, s.reads, w.transposed};
  const T *sigmas = activations + s.reads * samples;
  T *gy = g + s.write;
  if (w.kind == GENERAL)
    combine_rows<T>(w.S, n, s.writes, s.reads, {gy, n}, samples, more, s.reads);
  for (i64 b = 0; b < samples; b++) {  // u = a S' g, or in its place d = a g
    const T *from = gy + b * n;
    T *own = u + b * s.reads;
    if (w.kind == SCALAR)
      for (i64 j = 0; j < s.units; j++) more[b * s.units + j] = w.a * from[j];
    else if (w.kind == SIGNS)
      signs_row<T, false>(s.reads, from, -w.a, own, more);
    else if (w.kind == GENERAL)
      for (i64 j = 0; j < s.reads; j++) own[j] = w.a * more[b * s.reads + j];
    else
      for_runs<T>(w, s.reads, [&](i64 k, i64 count) ALWAYS_INLINE {
        for (i64 j = k; j < k + count; j++) own[j] = w.a * w.gain[j] * from[w.to[k] + j - k];
      });
  }
  if (w.kind != SCALAR) W.times({u, s.reads}, samples, more);
  for (i64 b = 0; b < samples; b++)
    for_vectors<T>(s.units, [&](auto size, const i64 *at) ALWAYS_INLINE {
      UNROLL for (int k = 0; k < decltype(size)::value; k++) {
        const i64 j = b * s.units + at[k];
        store<T>(d + j, times_slope<T>(load<T>(more + j), load<T>(sigmas + j), activation));
      }
    });
  for (i64 b = 0; to.b && b < samples; b++)
    for (i64 j = 0; j < s.units; j++) to.b[j] += d[b * s.units + j];
  if (to.W) {
    const int count = s.adjoint ? 2 : 1;
    const Pair<T> by_units[2] = {{d, activations}, {sigmas, u}};
    const Pair<T> by_reads[2] = {{activations, d}, {u, sigmas}};
    const auto outer = to.adds ? outer_rows<T, true> : outer_rows<T, false>;
    if (w.transposed && to.as_stored)
      outer(by_reads, count, s.reads, s.units, samples, to.W);
    else
      outer(by_units, count, s.units, s.reads, samples, to.W);
  }
  W.adjoint_times(d, samples, more);
  for (i64 b = 0; b < samples; b++) {
    const T *own = more + b * s.reads;
    if (!s.carry) fill<T>(gy + b * n, s.writes, T(0));
    add_along<T>(s.reads, g + b * n + s.read,
                 [&](i64 j) ALWAYS_INLINE { return load<T>(own + j); });
  }
}
}  // namespace hdnn::HDNN_ISA
