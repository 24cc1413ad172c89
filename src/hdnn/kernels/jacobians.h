// M_l = d y_N / d y_l at many depths l: one backward sweep that carries the n rows of the matrix.
//
// The rows of M_l follow the same recursion as a gradient: M_N = I, and a layer turns the rows of
// M_{l+1} into those of M_l as `backpropagate` turns a covector. So this is the backward pass of
// passes.h, segment by segment, with n covectors instead of one and without gradients of weights.
// In: states x and increasing depths. Out: y_l and M_l of every sample. Memory of a block is that
// of a backward pass, and behind it the matrices of its samples, (n, n, width).
#pragma once
#include "passes.h"

namespace hdnn::HDNN_ISA {

// One block of samples on its way.
template <class T>
struct Sweep {
  const Call &c;
  const Program &p;
  const Network<T> net;
  const i64 e;
  const Block at;
  const Workspace<T> space;
  T *const M = space.extra;  // (n, n, width)

  void write_states(i64 depth) const {
    const i64 n = p.width;
    T *to = (T *)c.states + ((e * c.count + depth) * p.points + at.first) * n;
    for (i64 k = 0; k < at.points; k++)
      for (i64 f = 0; f < n; f++) to[k * n + f] = space.x[f * at.width + k];
  }
  void write_matrices(i64 depth) const {
    const i64 size = p.width * p.width;
    T *to = (T *)c.matrices + ((e * p.points + at.first) * c.count + depth) * size;
    for (i64 k = 0; k < at.points; k++, to += c.count * size)
      for (i64 i = 0; i < size; i++) to[i] = M[i * at.width + k];
  }

  // Layers first .. last - 1 with their activations kept; states on the way are written.
  void advance_segment(i64 first, i64 last) const {
    i64 depth = 0;
    for (i64 layer = first; layer <= last; layer++) {
      while (depth < c.count && c.depths[depth] < layer) depth++;
      const bool here = layer < last || last == p.layers;  // else the next segment begins here
      if (here && depth < c.count && c.depths[depth] == layer) write_states(depth);
      if (layer < last)
        advance<T, true>(net, layer, layer + 1, space, activations_of(layer - first));
    }
  }
  T *activations_of(i64 layer) const {
    return space.activations + layer * p.activations * at.width;
  }

  void run() const {
    const i64 n = p.width, size = n * at.width;
    i64 depth = c.count - 1;
    fill<T>(M, n * size, T(0));
    for (i64 i = 0; i < n; i++) fill<T>(M + i * size + i * at.width, at.width, T(1));
    advance_segments<T>(net, space);
    for (i64 j = p.segments - 1; j >= 0; j--) {
      const i64 first = j * p.segment, last = smaller(p.layers, first + p.segment);
      copy<T>(space.saved + j * size, space.x, size);
      advance_segment(first, last);
      if (last == p.layers && depth >= 0 && c.depths[depth] == last) write_matrices(depth--);
      for (i64 layer = last - 1; layer >= first; layer--) {
        for (i64 i = 0; i < n; i++)
          backpropagate<T, false>(net, layer, layer + 1, space, M + i * size,
                                  activations_of(layer - first), nullptr);
        if (depth >= 0 && c.depths[depth] == layer) write_matrices(depth--);
      }
    }
  }
};

template <class T>
static void jacobians(void *call, i64 chunk, i64 worker) {
  const Call &c = *(const Call *)call;
  const Program &p = *c.program;
  const Chunk piece = chunk_at(p, chunk);
  for (i64 index = piece.first; index < piece.last; index++) {
    const Block at = block_at(p, index, p.points);
    const Workspace<T> space(p, (T *)c.scratch + worker * p.scratch, at.width);
    const Sweep<T> sweep = {c, p, network_of<T>(c, piece.network), piece.network, at, space};
    read_block<T>(p, (const T *)c.x + piece.states, at, space.x, true);
    sweep.run();
  }
}
}  // namespace hdnn::HDNN_ISA
