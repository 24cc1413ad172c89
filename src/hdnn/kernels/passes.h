// Forward and backward through all layers, one cache-sized block of samples at a time.
//
// The pieces, in the order of a call (jacobians.h and train.h are made of them, too):
//   find_mixing        what S looks like
//   assemble           the rows of all layers of a network, where theta is not K itself
//   read_block         samples of the caller's array to a block       (E, B, n) -> (n, width)
//   advance            through layers first .. last - 1, with activations kept or not
//   retreat            a covector back through the same layers, along kept activations;
//                      gradients are added to rows of W and b, or not computed at all
//   write_block        a block to the caller's array
//   scatter_gradients  rows of gradients to the gradients of theta and beta
//
// Memory of a block is sample-minor (products.h); one block of one thread has, in this order, a
// state x (n), a covector g (n), d (hidden) and u (n) for what a stage computes, the states at the
// begin of every segment, and the activations of one segment. Deep networks have several segments:
// the backward pass goes forward twice, and memory grows with the square root of the depth.
#pragma once
#include "squares.h"

namespace hdnn::HDNN_ISA {

INLINE i64 smaller(i64 a, i64 b) { return a < b ? a : b; }

// The kind of a block of S, rows n numbers apart; to and gain are filled where it is MONOMIAL.
template <class T>
static Kind kind_of(const T *S, i64 size, i64 n, i64 *to, T *gain) {
  bool monomial = true, signs = true;
  for (i64 j = 0; j < size; j++) to[j] = -1;
  for (i64 i = 0; i < size && (monomial || signs); i++) {
    i64 entries = 0;
    for (i64 j = 0; j < size; j++) {
      const T entry = S[i * n + j];
      signs = signs && entry == T((j > i) - (j < i));
      if (entry == 0) continue;
      monomial = monomial && ++entries == 1 && to[j] < 0;
      to[j] = i, gain[j] = entry;
    }
    monomial = monomial && entries == 1;
  }
  return monomial ? MONOMIAL : signs ? SIGNS : GENERAL;
}
// The kinds of all stages. S is (n, n), or null where no stage is adjoint.
template <class T>
static void find_mixing(const Program &p, const T *S, const Mixing &mixing) {
  for (i64 k = 0; k < p.stages; k++) {
    const Stage &s = p.stage[k];
    mixing.kind[k] = s.adjoint ? GENERAL : SCALAR;
    if (s.adjoint && s.reads == s.writes)
      mixing.kind[k] = kind_of<T>(S + s.write * p.width + s.read, s.reads, p.width,
                                  mixing.to + s.at_mixing, (T *)mixing.gain + s.at_mixing);
  }
}

template <class T>
static void gather(const T *from, const i64 *wire, i64 count, T *to) {
  for (i64 k = 0; k < count; k++)
    to[k] = wire[k] > 0 ? from[wire[k] - 1] : wire[k] < 0 ? -from[-wire[k] - 1] : T(0);
}
template <class T>
static void scatter(const T *from, const i64 *wire, i64 first, i64 count, T *to) {
  if (first >= 0)
    for (i64 k = 0; k < count; k++) to[first + k] += from[k];
  else
    for (i64 k = 0; k < count; k++) {
      if (wire[k] > 0) to[wire[k] - 1] += from[k];
      if (wire[k] < 0) to[-wire[k] - 1] -= from[k];
    }
}

// Fills the rows of a network with what cannot be read from theta and beta in place.
template <class T>
static void assemble(const Network<T> &net) {
  const Program &p = *net.program;
  for (i64 layer = 0; p.gathers && layer < p.layers; layer++)
    for (i64 k = 0; k < p.stages; k++) {
      const Stage &s = p.stage[k];
      T *row = net.rows + layer * p.row;
      const i64 own = p.shared ? 0 : layer;
      if (s.first_W < 0) gather<T>(net.theta + own * p.theta, s.W, s.units * s.reads, row + s.at_W);
      if (s.first_b < 0) gather<T>(net.beta + own * p.beta, s.b, s.units, row + s.at_b);
    }
}

// Adds the gradients in `rows` (L, row) to gtheta and gbeta (L or 1, .).
template <class T>
static void scatter_gradients(const Program &p, const T *rows, T *gtheta, T *gbeta) {
  for (i64 layer = 0; layer < p.layers; layer++, rows += p.row)
    for (i64 k = 0; k < p.stages; k++) {
      const Stage &s = p.stage[k];
      const i64 own = p.shared ? 0 : layer;
      scatter<T>(rows + s.at_W, s.W, s.first_W, s.units * s.reads, gtheta + own * p.theta);
      scatter<T>(rows + s.at_b, s.b, s.first_b, s.units, gbeta + own * p.beta);
    }
}

// Layers first .. last - 1 on a block, in place. What a backward pass needs is kept at
// `activations`, layer after layer, if KEEP; else it is memory for one stage. d and u are memory
// for p.hidden and p.width rows.
template <class T, bool KEEP>
static void advance(const Network<T> &net, i64 first, i64 last, T *x, T *activations, T *d, T *u,
                    i64 width) {
  const Program &p = *net.program;
  for (i64 layer = first; layer < last; layer++)
    for (i64 k = 0; k < p.stages; k++) {
      const Stage &s = p.stage[k];
      const Weights<T> w = weights_of<T>(net, layer, k);
      if (s.square == 2 && w.kind < GENERAL)
        square_forward<T, 2, KEEP>(s, w, p.activation, x, activations, width);
      else if (s.square == 4 && w.kind < GENERAL)
        square_forward<T, 4, KEEP>(s, w, p.activation, x, activations, width);
      else
        stage_forward<T, KEEP>(s, w, p.activation, x, activations, d, u, width);
      if (KEEP) activations += (s.reads + s.units) * width;
    }
}

// A covector g back through layers last - 1 .. first, in place, along what `advance` kept. If
// GRADIENTS, those of the weights are added to `rows` (L, row), of all layers. d and u are memory
// for p.hidden and p.width rows.
template <class T, bool GRADIENTS>
static void retreat(const Network<T> &net, i64 first, i64 last, T *g, const T *activations, T *d,
                    T *u, i64 width, T *rows) {
  const Program &p = *net.program;
  activations += (last - first) * p.activations * width;
  for (i64 layer = last - 1; layer >= first; layer--)
    for (i64 k = p.stages - 1; k >= 0; k--) {
      const Stage &s = p.stage[k];
      const Weights<T> w = weights_of<T>(net, layer, k);
      T *row = rows + layer * p.row;
      activations -= (s.reads + s.units) * width;
      if (s.square == 2 && w.kind < GENERAL)
        square_backward<T, 2, GRADIENTS>(s, w, p.activation, activations, g, width, row);
      else if (s.square == 4 && w.kind < GENERAL)
        square_backward<T, 4, GRADIENTS>(s, w, p.activation, activations, g, width, row);
      else
        stage_backward<T, GRADIENTS>(s, w, p.activation, activations, g, d, u, width, row);
    }
}

// Samples of the caller's array (groups, n, pixels) or (samples, n) that make a block.
struct Block {
  i64 group, first, samples;
  i64 width;  // samples, rounded up to whole vectors
};
INLINE Block block_at(const Program &p, i64 index) {
  const i64 runs = (p.group + p.block - 1) / p.block, first = index % runs * p.block;
  const i64 samples = smaller(p.block, p.group - first);
  return {index / runs, first, samples, (samples + p.lanes - 1) / p.lanes * p.lanes};
}
// The first number of a block within the states of a network, and the distances between features
// and samples.
struct Place {
  i64 start, feature, sample;
};
INLINE Place place_of(const Program &p, const Block &at) {
  if (p.pixels) return {at.group * p.width * p.pixels + at.first, p.pixels, 1};
  return {at.first * p.width, 1, p.width};
}

// Idle lanes repeat the last sample if `repeat` (and it is finite), else hold 0: with a state that
// occurs and a gradient of zero they add nothing, not even a NaN that no sample had.
template <class T>
static void read_block(const Program &p, const T *states, const Block &at, T *x, bool repeat) {
  const Place place = place_of(p, at);
  const T *from = states + place.start;
  for (i64 f = 0; f < p.width; f++, from += place.feature, x += at.width) {
    for (i64 k = 0; k < at.samples; k++) x[k] = from[k * place.sample];
    const T last = x[at.samples - 1];
    fill<T>(x + at.samples, at.width - at.samples, repeat && last - last == 0 ? last : T(0));
  }
}
template <class T>
static void write_block(const Program &p, const T *x, const Block &at, T *states) {
  const Place place = place_of(p, at);
  T *to = states + place.start;
  for (i64 f = 0; f < p.width; f++, to += place.feature, x += at.width)
    for (i64 k = 0; k < at.samples; k++) to[k * place.sample] = x[k];
}

// Memory of a block, as the head of this file says: p.scratch numbers at `memory`.
template <class T>
struct Room {
  T *x, *g, *d, *u, *saved, *activations;
  Room(const Program &p, T *memory, i64 width) {
    x = memory, g = x + p.width * width, d = g + p.width * width, u = d + p.hidden * width;
    saved = u + p.width * width, activations = saved + p.segments * p.width * width;
  }
};

// x = the state at the begin of the last segment; those at the begin of every segment are saved.
template <class T>
static void advance_segments(const Network<T> &net, const Room<T> &room, i64 width) {
  const Program &p = *net.program;
  for (i64 j = 0; j < p.segments; j++) {
    if (j)
      advance<T, false>(net, (j - 1) * p.segment, j * p.segment, room.x, room.activations, room.d,
                        room.u, width);
    copy<T>(room.x, room.saved + j * p.width * width, p.width * width);
  }
}
// room.g = gradient of y_0 from that of y_N; gradients of the weights are added to `rows`.
template <class T>
static void retreat_segments(const Network<T> &net, const Room<T> &room, i64 width, T *rows) {
  const Program &p = *net.program;
  for (i64 j = p.segments - 1; j >= 0; j--) {
    const i64 first = j * p.segment, last = smaller(p.layers, first + p.segment);
    copy<T>(room.saved + j * p.width * width, room.x, p.width * width);
    advance<T, true>(net, first, last, room.x, room.activations, room.d, room.u, width);
    retreat<T, true>(net, first, last, room.g, room.activations, room.d, room.u, width, rows);
  }
}

// --- hdnn_forward and hdnn_backward ------------------------------------------------------------

template <class T>
INLINE Network<T> network_of(const Call &c, i64 e) {
  const Program &p = *c.program;
  const hdnn_values &v = c.values;
  const i64 layers = p.shared ? 1 : p.layers;
  return {&p,
          (const T *)v.theta + e * layers * p.theta,
          (const T *)v.beta + e * layers * p.beta,
          (const T *)v.S,
          v.h,
          v.steps ? v.steps + e * p.layers : nullptr,
          c.mixing,
          (T *)c.rows + e * p.layers * p.row};
}
template <class T>
static void prepare(Call *c) {
  find_mixing<T>(*c->program, (const T *)c->values.S, c->mixing);
  for (i64 e = 0; e < c->program->networks; e++) assemble<T>(network_of<T>(*c, e));
}

// The blocks of a chunk, and where its network's states are.
struct Chunk {
  i64 network, first, last, states;
};
INLINE Chunk chunk_at(const Program &p, i64 chunk) {
  const i64 e = chunk / p.pieces, piece = chunk % p.pieces;
  return {e, piece * p.blocks / p.pieces, (piece + 1) * p.blocks / p.pieces,
          e * p.groups * p.group * p.width};
}

template <class T>
static void forward(void *call, i64 chunk, i64 worker) {
  const Call &c = *(const Call *)call;
  const Program &p = *c.program;
  const Chunk at = chunk_at(p, chunk);
  const Network<T> net = network_of<T>(c, at.network);
  for (i64 index = at.first; index < at.last; index++) {
    const Block block = block_at(p, index);
    const Room<T> room(p, (T *)c.scratch + worker * p.scratch, block.width);
    read_block<T>(p, (const T *)c.x + at.states, block, room.x, true);
    advance<T, false>(net, 0, p.layers, room.x, room.activations, room.d, room.u, block.width);
    write_block<T>(p, room.x, block, (T *)c.out + at.states);
  }
}

template <class T>
static void backward(void *call, i64 chunk, i64 worker) {
  const Call &c = *(const Call *)call;
  const Program &p = *c.program;
  const Chunk at = chunk_at(p, chunk);
  const Network<T> net = network_of<T>(c, at.network);
  T *rows = (T *)c.grads + chunk * p.layers * p.row;
  fill<T>(rows, p.layers * p.row, T(0));
  for (i64 index = at.first; index < at.last; index++) {
    const Block block = block_at(p, index);
    const Room<T> room(p, (T *)c.scratch + worker * p.scratch, block.width);
    read_block<T>(p, (const T *)c.x + at.states, block, room.x, true);
    read_block<T>(p, (const T *)c.gout + at.states, block, room.g, false);
    advance_segments<T>(net, room, block.width);
    retreat_segments<T>(net, room, block.width, rows);
    write_block<T>(p, room.g, block, (T *)c.out + at.states);
  }
}

template <class T>
static void collect(const Call *c, i64 e) {
  const Program &p = *c->program;
  const i64 count = p.layers * p.row, layers = p.shared ? 1 : p.layers;
  T *rows = (T *)c->grads + e * p.pieces * count;
  for (i64 piece = 1; piece < p.pieces; piece++)
    for (i64 k = 0; k < count; k++) rows[k] += rows[piece * count + k];
  T *gtheta = (T *)c->gtheta + e * layers * p.theta, *gbeta = (T *)c->gbeta + e * layers * p.beta;
  fill<T>(gtheta, layers * p.theta, T(0));
  fill<T>(gbeta, layers * p.beta, T(0));
  scatter_gradients<T>(p, rows, gtheta, gbeta);
}
}  // namespace hdnn::HDNN_ISA
