// All states of a recurrence, and the way back from gradients at all of them.
//
//     s = sigma(W [x; u; 1]),      x+ = A [x; u; 1; s]
//
// A sample is a row v = [x; u; 1; s] of `columns` numbers, and lanes run over the numbers that a
// product makes: units, states. So one sample fills the lanes as well as many (passes.h, with lanes
// over samples, serves many samples and many layers).
//
// Everything is one primitive, `combine`: rows of a result are combinations of rows of a matrix
// that lie one after the other. W and A are therefore held twice, transposed for the way forward
// and as they are for the way back; rows are padded with zeros to whole vectors.
//
// Back, a chunk of steps at a time: all states are known, so s is found anew for all steps of the
// chunk at once; then the covector goes back step by step; then the gradients of W and A are sums
// over all rows of the chunk. Only the second of these three is sequential, and the memory does not
// grow with the number of steps.
#pragma once
#include "activations.h"
#include "rows.h"

namespace hdnn::HDNN_ISA {

// One recurrence of one call: sizes, padded, and where its matrices are.
template <class T>
struct Recurrence {
  const RolloutCall &c;
  const hdnn_rollout &p;
  static constexpr int N = LANES<T>;
  static i64 padded(i64 count) { return (count + N - 1) / N * N; }

  const i64 n = p.states, m = p.units, d = p.inputs;
  const i64 drive = n + d + 1, columns = drive + m;  // numbers of [x; u; 1] and of v
  const i64 nP = padded(n), mP = padded(m), dP = padded(drive);
  const i64 cP = padded(smaller_sum());  // of a row: vectors may reach beyond what they hold
  i64 smaller_sum() const { return drive + (mP > dP ? mP : dP); }

  // Sizes of the matrices of one step, and of the four arrays of all steps in a period.
  i64 forward_size() const { return drive * mP + columns * nP; }
  i64 backward_size() const { return m * dP + n * cP; }

  const T *forward_of(i64 e, i64 t) const {
    return (const T *)c.forward + (e * p.period + t % p.period) * forward_size();
  }
  const T *backward_of(i64 e, i64 t) const {
    return (const T *)c.backward + (e * p.period + t % p.period) * backward_size();
  }

  // Rows v: x and u of a step, and the 1.
  void put_input(i64 e, i64 b, i64 t, T *v) const {
    const i64 times = (p.steps + p.hold - 1) / p.hold;
    const T *u = (const T *)c.u + ((e * p.samples + b) * times + t / p.hold) * d;
    for (i64 k = 0; k < d; k++) v[n + k] = u[k];
  }
  // s of rows v, all of one step
  void activate_rows(const T *W, T *v, i64 rows) const {
    combine<T, false>({W, mP, drive, v, cP, 1, v + drive, cP}, rows, mP / N);
    for (i64 j = 0; j < mP; j += N) {
      constexpr int COUNT = TOGETHER;
      T *s = v + drive + j;
      i64 i = 0;
      for (; i + COUNT <= rows; i += COUNT) {
        Vec<T> z[COUNT];
        UNROLL for (int k = 0; k < COUNT; k++) z[k] = load<T>(s + (i + k) * cP);
        sigma<T, COUNT>(z, p.activation);
        UNROLL for (int k = 0; k < COUNT; k++) store<T>(s + (i + k) * cP, z[k]);
      }
      for (; i < rows; i++) {
        Vec<T> z = load<T>(s + i * cP);
        sigma<T, 1>(&z, p.activation);
        store<T>(s + i * cP, z);
      }
    }
  }
};

template <class T>
static void put(const T *from, T *to, i64 count) {
  for (i64 k = 0; k < count; k++) to[k] = from[k];
}

// Bytes that a worker needs, those of the partial gradients of a piece, and of all matrices.
template <class T>
static void measure_rollout(RolloutCall *c) {
  const Recurrence<T> r = {*c, *c->rollout};
  const i64 all = r.p.networks * r.p.period, own = c->most;
  c->forward_bytes = all * r.forward_size() * i64(sizeof(T));
  c->backward_bytes = all * r.backward_size() * i64(sizeof(T));
  c->partial_bytes = r.p.period * r.backward_size() * i64(sizeof(T));
  constexpr i64 CACHE = 192 << 10;  // of a chunk, beside the matrices
  const i64 row = r.cP + r.mP + r.nP;
  i64 steps = CACHE / i64(sizeof(T)) / (row * own);
  c->chunk = steps < 1 ? 1 : steps > r.p.steps ? r.p.steps : steps;
  const i64 back = c->chunk * own * row + own * (r.cP + r.nP), there = own * (r.cP + r.nP);
  c->scratch_bytes = (back > there ? back : there) * i64(sizeof(T));
}

template <class T>
static void prepare_rollout(RolloutCall *c) {
  const Recurrence<T> r = {*c, *c->rollout};
  for (i64 k = 0; k < r.p.networks * r.p.period; k++) {
    const T *W = (const T *)c->W + k * r.m * r.drive, *A = (const T *)c->A + k * r.n * r.columns;
    T *to = (T *)c->forward + k * r.forward_size();
    fill<T>(to, r.forward_size(), T(0));
    for (i64 i = 0; i < r.m; i++)
      for (i64 j = 0; j < r.drive; j++) to[j * r.mP + i] = W[i * r.drive + j];
    to += r.drive * r.mP;
    for (i64 i = 0; i < r.n; i++)
      for (i64 j = 0; j < r.columns; j++) to[j * r.nP + i] = A[i * r.columns + j];
    if (!c->backward) continue;
    to = (T *)c->backward + k * r.backward_size();
    fill<T>(to, r.backward_size(), T(0));
    for (i64 i = 0; i < r.m; i++) put<T>(W + i * r.drive, to + i * r.dP, r.drive);
    to += r.m * r.dP;
    for (i64 i = 0; i < r.n; i++) put<T>(A + i * r.columns, to + i * r.cP, r.columns);
  }
}

// The samples of a piece.
struct Piece {
  i64 network, first, samples;
};
INLINE Piece piece_at(const RolloutCall &c, i64 piece) {
  const i64 e = piece / c.pieces, k = piece % c.pieces, B = c.rollout->samples;
  const i64 first = k * B / c.pieces;
  return {e, first, (k + 1) * B / c.pieces - first};
}

template <class T>
static void rollout_forward(void *call, i64 piece, i64 worker) {
  const RolloutCall &c = *(const RolloutCall *)call;
  const Recurrence<T> r = {c, *c.rollout};
  const auto [e, first, own] = piece_at(c, piece);
  T *v = (T *)((char *)c.scratch + worker * c.scratch_bytes), *next = v + own * r.cP;
  const i64 place = e * r.p.samples + first;  // of the first sample
  T *states = (T *)c.states + place * r.p.steps * r.n;
  fill<T>(v, own * r.cP, T(0));
  for (i64 b = 0; b < own; b++) {
    put<T>((const T *)c.x + (place + b) * r.n, v + b * r.cP, r.n);
    v[b * r.cP + r.drive - 1] = 1;
  }
  for (i64 t = 0; t < r.p.steps; t++) {
    const T *W = r.forward_of(e, t), *A = W + r.drive * r.mP;
    for (i64 b = 0; b < own; b++) {
      put<T>(v + b * r.cP, states + (b * r.p.steps + t) * r.n, r.n);
      if (t % r.p.hold == 0) r.put_input(e, first + b, t, v + b * r.cP);
    }
    r.activate_rows(W, v, own);
    combine<T, false>({A, r.nP, r.columns, v, r.cP, 1, next, r.nP}, own, r.nP / r.N);
    for (i64 b = 0; b < own; b++) put<T>(next + b * r.nP, v + b * r.cP, r.n);
  }
  for (i64 b = 0; b < own; b++) put<T>(v + b * r.cP, (T *)c.last + (place + b) * r.n, r.n);
}

template <class T>
static void rollout_backward(void *call, i64 piece, i64 worker) {
  const RolloutCall &c = *(const RolloutCall *)call;
  const Recurrence<T> r = {c, *c.rollout};
  const auto [e, first, own] = piece_at(c, piece);
  const i64 place = e * r.p.samples + first, T_ = r.p.steps, n = r.n, d = r.d;
  const i64 times = (T_ + r.p.hold - 1) / r.p.hold;
  // A gradient that the caller has not given is 0.
  const auto given = [](const void *array, i64 at) {
    return array ? ((const T *)array)[at] : T(0);
  };
  // Rows of a chunk, step after step: v, the gradients of W [x; u; 1] and of x+; those of v.
  T *V = (T *)((char *)c.scratch + worker * c.scratch_bytes), *D = V + c.chunk * own * r.cP;
  T *G = D + c.chunk * own * r.mP, *gv = G + c.chunk * own * r.nP, *g = gv + own * r.cP;
  T *gW = c.partial ? (T *)((char *)c.partial + piece * c.partial_bytes) : nullptr;
  if (gW) fill<T>(gW, r.p.period * r.backward_size(), T(0));
  fill<T>(V, c.chunk * own * r.cP, T(0));
  for (i64 b = 0; b < own; b++)
    for (i64 i = 0; i < n; i++) g[b * r.nP + i] = given(c.glast, (place + b) * n + i);
  for (i64 end = T_; end > 0; end -= smaller(c.chunk, end)) {
    const i64 begin = end - smaller(c.chunk, end), steps = end - begin;
    for (i64 t = begin; t < end; t++)
      for (i64 b = 0; b < own; b++) {
        T *v = V + ((t - begin) * own + b) * r.cP;
        put<T>((const T *)c.states + ((place + b) * T_ + t) * n, v, n);
        r.put_input(e, first + b, t, v);
        v[r.drive - 1] = 1;
      }
    // Steps that share their matrices are computed as one.
    const i64 run = r.p.period == 1 ? steps : 1;
    for (i64 k = 0; k < steps; k += run)
      r.activate_rows(r.forward_of(e, begin + k), V + k * own * r.cP, run * own);
    for (i64 t = end - 1; t >= begin; t--) {
      const i64 row = (t - begin) * own;
      const T *W = r.backward_of(e, t), *A = W + r.m * r.dP, *v = V + row * r.cP;
      put<T>(g, G + row * r.nP, own * r.nP);
      combine<T, false>({A, r.cP, n, g, r.nP, 1, gv, r.cP}, own, r.cP / r.N);
      for (i64 b = 0; b < own; b++)
        for (i64 j = 0; j < r.mP; j += r.N) {
          const Vec<T> s = load<T>(v + b * r.cP + r.drive + j);
          const Vec<T> gs = load<T>(gv + b * r.cP + r.drive + j);
          store<T>(D + (row + b) * r.mP + j, times_slope<T>(gs, s, r.p.activation));
        }
      combine<T, true>({W, r.dP, r.m, D + row * r.mP, r.mP, 1, gv, r.cP}, own, r.dP / r.N);
      for (i64 b = 0; b < own; b++) {
        const T *from = gv + b * r.cP;
        const i64 at = ((place + b) * T_ + t) * n;
        for (i64 i = 0; i < n; i++) g[b * r.nP + i] = from[i] + given(c.gstates, at + i);
        if (!c.gu) continue;
        T *gu = (T *)c.gu + ((place + b) * times + t / r.p.hold) * d;
        const bool fresh = t == T_ - 1 || (t + 1) % r.p.hold == 0;
        for (i64 k = 0; k < d; k++) gu[k] = fresh ? from[n + k] : gu[k] + from[n + k];
      }
    }
    for (i64 k = 0; gW && k < steps; k += run) {
      const i64 row = k * own, rows = run * own;
      T *to = gW + (begin + k) % r.p.period * r.backward_size();
      combine<T, true>({V + row * r.cP, r.cP, rows, D + row * r.mP, 1, r.mP, to, r.dP}, r.m,
                       r.dP / r.N);
      combine<T, true>({V + row * r.cP, r.cP, rows, G + row * r.nP, 1, r.nP, to + r.m * r.dP, r.cP},
                       n, r.cP / r.N);
    }
  }
  for (i64 b = 0; c.gx && b < own; b++) put<T>(g + b * r.nP, (T *)c.gx + (place + b) * n, n);
}

// Gradients of all pieces, in their order, without padding.
template <class T>
static void finish_rollout(RolloutCall *c) {
  const Recurrence<T> r = {*c, *c->rollout};
  for (i64 e = 0; e < r.p.networks; e++)
    for (i64 k = 0; k < r.p.period; k++) {
      T *gW = (T *)c->gW + (e * r.p.period + k) * r.m * r.drive;
      T *gA = (T *)c->gA + (e * r.p.period + k) * r.n * r.columns;
      for (i64 piece = 0; piece < c->pieces; piece++) {
        const T *from =
            (const T *)((char *)c->partial + (e * c->pieces + piece) * c->partial_bytes);
        from += k * r.backward_size();
        const auto add = [&](T *to, i64 rows, i64 count, i64 length) {
          for (i64 i = 0; i < rows; i++)
            for (i64 j = 0; j < count; j++) {
              const T own = from[i * length + j];
              to[i * count + j] = piece ? to[i * count + j] + own : own;
            }
          from += rows * length;
        };
        add(gW, r.m, r.drive, r.dP), add(gA, r.n, r.columns, r.cP);
      }
    }
}
}  // namespace hdnn::HDNN_ISA
