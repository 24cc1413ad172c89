// Forward and backward through all layers, one cache-sized block of samples at a time.
//
// The pieces, in the order of a call (jacobians.h and training/ are made of them, too):
//   classify_S         what S looks like
//   assemble           the rows of all layers of a network, where theta is not K itself
//   read_block         samples of the caller's array to a block       (E, B, n) -> (n, width)
//   advance            through layers first .. last - 1, with activations kept or not
//   backpropagate      a covector back through the same layers, along kept activations;
//                      gradients are added to rows of W and b, or not computed at all
//   write_block        a block to the caller's array
//   add_gradients      gradients of a piece to those of its network, at the end as theta and beta
//
// Memory of a block is sample-minor (products.h); one block of one thread has, in this order, a
// state x (n), a covector g (n), d (hidden) and u (n) for what a stage computes, the states at the
// begin of every segment, the activations of one segment, and what a caller adds. Deep networks
// have several segments: the backward pass goes forward twice, and memory grows with the square
// root of the depth. Where the forward pass has kept the activations of all blocks, the backward
// pass does not go forward at all.
#pragma once
#include "few_stages.h"
#include "small_stages.h"

namespace hdnn::HDNN_ISA {

// Whether row i of J2 begins like this. Loops that compilers make vectors of, here and below: with
// few samples every entry counts.
template <class T>
static bool is_signs_row(const T *row, i64 i, i64 size) {
  int wrong = row[i] != 0;
  for (i64 j = 0; j < i; j++) wrong |= row[j] != T(-1);
  for (i64 j = i + 1; j < size; j++) wrong |= row[j] != T(1);
  return !wrong;
}
// The kind of a block of S, rows n numbers apart; where it is MONOMIAL, the arrays are filled.
template <class T>
static StructureKind kind_of(const T *S, i64 size, i64 n, i64 *to, i64 *run, T *gain) {
  bool monomial = true, signs = true;
  for (i64 j = 0; j < size; j++) to[j] = -1;
  for (i64 i = 0; i < size && (monomial || signs); i++, S += n) {
    signs = signs && is_signs_row<T>(S, i, size);
    int entries = 0, place = 0;
    for (int j = 0; j < int(size) && monomial; j++) {
      const int entry = S[j] != 0;
      entries += entry, place += entry * j;
    }
    monomial = monomial && entries == 1 && to[place] < 0;
    if (monomial) to[place] = i, gain[place] = S[place];
  }
  for (i64 j = size - 1; monomial && j >= 0; j--)
    run[j] = j + 1 < size && to[j + 1] == to[j] + 1 ? run[j + 1] + 1 : 1;
  return monomial ? MONOMIAL : signs ? SIGNS : GENERAL;
}
// The kinds of all stages. S is (n, n), or null where no stage is adjoint.
template <class T>
static void classify_S(const Program &p, const T *S, const Structure &structure) {
  for (i64 k = 0; k < p.stages; k++) {
    const Stage &s = p.stage[k];
    structure.kind[k] = s.adjoint ? GENERAL : SCALAR;
    if (s.adjoint && s.reads == s.writes)
      structure.kind[k] =
          kind_of<T>(S + s.write * p.width + s.read, s.reads, p.width, structure.to + s.at_S,
                     structure.run + s.at_S, (T *)structure.gain + s.at_S);
  }
}

// visit(parameter, entry, sign) for all of them. Most strides are 1, which the compiler is told.
template <class Visit>
INLINE void for_entries(const Runs &runs, Visit visit) {
  for (i64 j = 0; j < runs.count; j++) {
    const Run r = runs.run[j];
    if (r.stride == 1)
      for (i64 k = 0; k < r.count; k++) visit(r.parameter + k, r.entry + k, r.sign);
    else
      for (i64 k = 0; k < r.count; k++) visit(r.parameter + k, r.entry + k * r.stride, r.sign);
  }
}
template <class T>
static void gather(const T *from, const Runs &runs, i64 count, T *to) {
  fill<T>(to, count, T(0));
  for_entries(runs, [=](i64 parameter, i64 entry, i64 sign)
                        ALWAYS_INLINE { to[entry] = T(sign) * from[parameter]; });
}
template <class T>
static void scatter(const T *from, const Runs &runs, T *to) {
  for_entries(runs, [=](i64 parameter, i64 entry, i64 sign)
                        ALWAYS_INLINE { to[parameter] += T(sign) * from[entry]; });
}

// Fills the rows of a network with what cannot be read from theta and beta in place.
template <class T>
static void assemble(const Network<T> &net) {
  const Program &p = *net.program;
  for (i64 layer = 0; p.gathers && layer < p.period; layer++)
    for (i64 k = 0; k < p.stages; k++) {
      const Stage &s = p.stage[k];
      T *row = net.rows + layer * p.row;
      const T *theta = net.theta + layer * p.theta, *beta = net.beta + layer * p.beta;
      if (s.first_W < 0 && !(p.few && s.first_transposed >= 0))
        gather<T>(theta, s.runs_W, s.units * s.reads, row + s.at_W);
      if (s.first_b < 0) gather<T>(beta, s.runs_b, s.units, row + s.at_b);
    }
}

// Gradients of theta and beta of a layer from those in its row. Null: not wanted.
template <class T>
static void scatter_gradients(const Program &p, const T *row, T *gtheta, T *gbeta) {
  if (gtheta) fill<T>(gtheta, p.theta, T(0));
  if (gbeta) fill<T>(gbeta, p.beta, T(0));
  for (i64 k = 0; k < p.stages; k++) {
    const Stage &s = p.stage[k];
    if (gtheta) scatter<T>(row + s.at_W, s.runs_W, gtheta);
    if (gbeta) scatter<T>(row + s.at_b, s.runs_b, gbeta);
  }
}

// Memory of a block, as the head of this file says: p.scratch numbers at `memory`.
template <class T>
struct Workspace {
  i64 width;
  T *x, *g, *d, *u, *saved, *activations, *extra;
  Workspace(const Program &p, T *memory, i64 points) : width(points) {
    x = memory, g = x + p.width * width, d = g + p.width * width, u = d + p.hidden * width;
    saved = u + p.width * width, activations = saved + p.segments * p.width * width;
    extra = activations + p.segment * p.activations * width;
  }
};

// space.x through layers first .. last - 1. What a backward pass needs is kept at `activations`,
// layer after layer, if KEEP; else it is memory for one stage.
template <class T, bool KEEP>
static void advance(const Network<T> &net, i64 first, i64 last, const Workspace<T> &space,
                    T *activations) {
  const Program &p = *net.program;
  const i64 width = space.width;
  T *const x = space.x;
  for (i64 layer = first; layer < last; layer++)
    for (i64 k = 0; k < p.stages; k++) {
      const Stage &s = p.stage[k];
      const Weights<T> w = weights_of<T>(net, layer, k);
      if (p.few)
        few_forward<T, KEEP>(s, w, p.activation, x, activations, space.d, space.u, space.extra,
                             width);
      else if (s.small == 2 && w.kind < GENERAL)
        small_forward<T, 2, KEEP>(s, w, p.activation, x, activations, width);
      else if (s.small == 4 && w.kind < GENERAL)
        small_forward<T, 4, KEEP>(s, w, p.activation, x, activations, width);
      else
        stage_forward<T, KEEP>(s, w, p.activation, x, activations, space.d, space.u, width);
      if (KEEP) activations += (s.reads + s.units) * width;
    }
}

// A covector g back through a stage of few samples. Gradients of a `direct` program go to those of
// the network at once, and `row` is memory for a stage; else they are added to it.
template <class T>
static void few_backpropagate(const Network<T> &net, i64 layer, const Stage &s, const Weights<T> &w,
                              const Workspace<T> &space, const T *activations, T *g, T *row) {
  const Program &p = *net.program;
  const i64 count = s.units * s.reads, first = w.transposed ? s.first_transposed : s.first_W;
  T *theta = row && net.gtheta ? net.gtheta + layer * p.theta : nullptr;
  T *beta = row && net.gbeta ? net.gbeta + layer * p.beta : nullptr;
  StageGradients<T> to = {};
  if (row && !p.direct) to = {row + s.at_W, row + s.at_b, true, false};
  if (theta) to.W = row;
  if (theta && first >= 0) to.W = theta + first, to.adds = !s.fresh, to.as_stored = true;
  if (beta) to.b = row + count, fill<T>(to.b, s.units, T(0));
  few_backward<T>(s, w, p.activation, activations, g, space.d, space.u, space.extra, space.width,
                  to);
  if (theta && first < 0) scatter<T>(to.W, s.runs_W, theta);
  if (beta) scatter<T>(to.b, s.runs_b, beta);
}

// A covector g back through layers last - 1 .. first, in place, along what `advance` kept. If
// GRADIENTS, those of the weights are added to `rows` (period, row).
template <class T, bool GRADIENTS>
static void backpropagate(const Network<T> &net, i64 first, i64 last, const Workspace<T> &space,
                          T *g, const T *activations, T *rows) {
  const Program &p = *net.program;
  const i64 width = space.width;
  activations += (last - first) * p.activations * width;
  for (i64 layer = last - 1; layer >= first; layer--)
    for (i64 k = p.stages - 1; k >= 0; k--) {
      const Stage &s = p.stage[k];
      const Weights<T> w = weights_of<T>(net, layer, k);
      T *row = GRADIENTS ? rows + (p.direct ? 0 : layer % p.period * p.row) : nullptr;
      activations -= (s.reads + s.units) * width;
      if (p.few)
        few_backpropagate<T>(net, layer, s, w, space, activations, g, row);
      else if (s.small == 2 && w.kind < GENERAL)
        small_backward<T, 2, GRADIENTS>(s, w, p.activation, activations, g, width, row);
      else if (s.small == 4 && w.kind < GENERAL)
        small_backward<T, 4, GRADIENTS>(s, w, p.activation, activations, g, width, row);
      else
        stage_backward<T, GRADIENTS>(s, w, p.activation, activations, g, space.d, space.u, width,
                                     row);
    }
}

// Points of a network that go through the layers together: samples, or pixels of any images.
struct Block {
  i64 first, points;
  i64 width;  // points, rounded up to whole vectors unless they are few
};
INLINE i64 whole_vectors(const Program &p, i64 points) {
  return (points + p.lanes - 1) / p.lanes * p.lanes;
}
INLINE Block block_at(const Program &p, i64 index, i64 points) {
  const i64 first = index * p.block, own = smaller(p.block, points - first);
  return {first, own, p.few ? own : whole_vectors(p, own)};
}

// visit(at, count, from) for the parts of a block that lie evenly in the caller's array: those of
// an image, or all samples. Point at + k of the block has its feature f at states[from + k sample +
// f feature].
struct Strides {
  i64 feature, sample;
};
INLINE Strides strides_of(const Program &p) {
  return p.pixels ? Strides{p.pixels, 1} : Strides{1, p.width};
}
template <class Visit>
INLINE void for_parts(const Program &p, const Block &block, Visit visit) {
  if (!p.pixels) return visit(i64(0), block.points, block.first * p.width);
  for (i64 at = 0, count; at < block.points; at += count) {
    const i64 image = (block.first + at) / p.pixels, pixel = (block.first + at) % p.pixels;
    count = smaller(block.points - at, p.pixels - pixel);
    visit(at, count, image * p.width * p.pixels + pixel);
  }
}

// Idle lanes repeat the last point if `repeat` (and it is finite), else hold 0: with a state that
// occurs and a gradient of zero they add nothing, not even a NaN that no sample had.
template <class T>
static void read_block(const Program &p, const T *states, const Block &block, T *x, bool repeat) {
  if (p.few) return copy<T>(states + block.first * p.width, x, block.points * p.width);
  const Strides by = strides_of(p);
  for_parts(p, block, [&](i64 at, i64 count, i64 from) ALWAYS_INLINE {
    for (i64 f = 0; f < p.width; f++, from += by.feature)
      for (i64 k = 0; k < count; k++) x[f * block.width + at + k] = states[from + k * by.sample];
  });
  for (i64 f = 0; f < p.width; f++, x += block.width) {
    const T last = x[block.points - 1];
    fill<T>(x + block.points, block.width - block.points, repeat && last - last == 0 ? last : T(0));
  }
}
template <class T>
static void write_block(const Program &p, const T *x, const Block &block, T *states) {
  if (p.few) return copy<T>(x, states + block.first * p.width, block.points * p.width);
  const Strides by = strides_of(p);
  for_parts(p, block, [&](i64 at, i64 count, i64 to) ALWAYS_INLINE {
    for (i64 f = 0; f < p.width; f++, to += by.feature)
      for (i64 k = 0; k < count; k++) states[to + k * by.sample] = x[f * block.width + at + k];
  });
}

// x = the state at the begin of the last segment; those at the begin of every segment are saved.
template <class T>
static void advance_segments(const Network<T> &net, const Workspace<T> &space) {
  const Program &p = *net.program;
  const i64 size = p.width * space.width;
  for (i64 j = 0; j < p.segments; j++) {
    if (j) advance<T, false>(net, (j - 1) * p.segment, j * p.segment, space, space.activations);
    copy<T>(space.x, space.saved + j * size, size);
  }
}
// space.g = gradient of y_0 from that of y_N; gradients of the weights are added to `rows`, unless
// these are null.
template <class T>
static void backpropagate_segments(const Network<T> &net, const Workspace<T> &space, T *rows) {
  const Program &p = *net.program;
  const i64 size = p.width * space.width;
  for (i64 j = p.segments - 1; j >= 0; j--) {
    const i64 first = j * p.segment, last = smaller(p.layers, first + p.segment);
    copy<T>(space.saved + j * size, space.x, size);
    advance<T, true>(net, first, last, space, space.activations);
    const auto back = rows ? backpropagate<T, true> : backpropagate<T, false>;
    back(net, first, last, space, space.g, space.activations, rows);
  }
}

// --- hdnn_forward and hdnn_backward ------------------------------------------------------------

template <class T>
INLINE Network<T> network_of(const Call &c, i64 e) {
  const Program &p = *c.program;
  const hdnn_values &v = c.values;
  return {&p,
          (const T *)v.theta + e * p.period * p.theta,
          (const T *)v.beta + e * p.period * p.beta,
          (const T *)v.S,
          v.h,
          v.steps ? v.steps + e * p.layers : nullptr,
          c.structure,
          (T *)c.rows + e * p.period * p.row,
          p.direct && c.gtheta ? (T *)c.gtheta + e * p.layers * p.theta : nullptr,
          p.direct && c.gbeta ? (T *)c.gbeta + e * p.layers * p.beta : nullptr};
}
template <class T>
static void prepare(Call *c) {
  const Program &p = *c->program;
  classify_S<T>(p, (const T *)c->values.S, c->structure);
  for (i64 e = 0; e < p.networks; e++) assemble<T>(network_of<T>(*c, e));
  if (c->gtheta || c->gbeta) fill<i64>(c->turns, p.networks * p.period, 0);
}

// The blocks of a chunk, and where its network's states are.
struct Chunk {
  i64 network, piece, first, last, states;
};
INLINE Chunk chunk_at(const Program &p, i64 chunk) {
  const i64 e = chunk / p.pieces, piece = chunk % p.pieces;
  return {e, piece, piece * p.blocks / p.pieces, (piece + 1) * p.blocks / p.pieces,
          e * p.points * p.width};
}

// The activations of a block, of those that a forward pass keeps for the backward pass, or null.
template <class T>
INLINE T *activations_of(const Call &c, i64 network, i64 index) {
  const Program &p = *c.program;
  const i64 before = network * p.blocks + index;
  return c.activations ? (T *)c.activations + before * p.block * p.layers * p.activations : nullptr;
}

template <class T>
static void forward(void *call, i64 chunk, i64 worker) {
  const Call &c = *(const Call *)call;
  const Program &p = *c.program;
  const Chunk at = chunk_at(p, chunk);
  const Network<T> net = network_of<T>(c, at.network);
  for (i64 index = at.first; index < at.last; index++) {
    const Block block = block_at(p, index, p.points);
    const Workspace<T> space(p, (T *)c.scratch + worker * p.scratch, block.width);
    read_block<T>(p, (const T *)c.x + at.states, block, space.x, true);
    T *kept = activations_of<T>(c, at.network, index);
    if (kept)
      advance<T, true>(net, 0, p.layers, space, kept);
    else
      advance<T, false>(net, 0, p.layers, space, space.activations);
    write_block<T>(p, space.x, block, (T *)c.out + at.states);
  }
}

// Adds the gradients of a piece to those of its network, after those of the piece before, so that
// sums are rounded alike for any number of threads; a layer has its own turn, so that pieces that
// end together follow each other through the layers. The last one ends with theta and beta.
template <class T>
static void add_gradients(const Call &c, const Chunk &at, const T *rows) {
  const Program &p = *c.program;
  for (i64 layer = 0; layer < p.period; layer++, rows += p.row) {
    const i64 place = at.network * p.period + layer;
    T *total = (T *)c.total + place * p.row;
    await_turn(c.turns + place, at.piece);
    for (i64 k = 0; k < p.row; k++) total[k] = at.piece ? total[k] + rows[k] : rows[k];
    if (at.piece == p.pieces - 1)
      scatter_gradients<T>(p, total, c.gtheta ? (T *)c.gtheta + place * p.theta : nullptr,
                           c.gbeta ? (T *)c.gbeta + place * p.beta : nullptr);
    end_turn(c.turns + place, at.piece);
  }
}

template <class T>
static void backward(void *call, i64 chunk, i64 worker) {
  const Call &c = *(const Call *)call;
  const Program &p = *c.program;
  const Chunk at = chunk_at(p, chunk);
  const Network<T> net = network_of<T>(c, at.network);
  const bool gradients = c.gtheta || c.gbeta;
  const i64 partial = p.direct ? p.row : p.period * p.row;
  T *rows = gradients ? (T *)c.partial + worker * partial : nullptr;
  if (rows && !p.direct) fill<T>(rows, partial, T(0));
  if (net.gtheta && !p.overwrites) fill<T>(net.gtheta, p.layers * p.theta, T(0));
  if (net.gbeta) fill<T>(net.gbeta, p.layers * p.beta, T(0));
  for (i64 index = at.first; index < at.last; index++) {
    const Block block = block_at(p, index, p.points);
    const Workspace<T> space(p, (T *)c.scratch + worker * p.scratch, block.width);
    read_block<T>(p, (const T *)c.gout + at.states, block, space.g, false);
    const T *kept = activations_of<T>(c, at.network, index);
    if (kept) {
      const auto back = rows ? backpropagate<T, true> : backpropagate<T, false>;
      back(net, 0, p.layers, space, space.g, kept, rows);
    } else {
      read_block<T>(p, (const T *)c.x + at.states, block, space.x, true);
      advance_segments<T>(net, space);
      backpropagate_segments<T>(net, space, rows);
    }
    if (c.out) write_block<T>(p, space.g, block, (T *)c.out + at.states);
  }
  if (rows && !p.direct) add_gradients<T>(c, at, rows);
}
}  // namespace hdnn::HDNN_ISA
