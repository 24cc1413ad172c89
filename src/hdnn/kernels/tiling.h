// How a call is cut, by shape alone: blocks that stay in the cache through all layers, segments of
// layers whose activations are kept at once, pieces that threads share, and how many threads are
// worth their start. The constants are measured.
#pragma once
#include <algorithm>
#include <cmath>

#include "program.h"

namespace hdnn {

inline i64 divided_up(i64 a, i64 b) { return (a + b - 1) / b; }

// Blocks of so many points, segments of so many layers, and `extra` rows of a block beside those of
// passes.h. Returns the bytes of a block.
inline i64 cut(Program &p, i64 block, i64 segment, i64 extra) {
  p.block = block, p.blocks = divided_up(p.points, block);
  p.segment = segment, p.segments = std::max<i64>(1, divided_up(p.layers, segment));
  const i64 rows = 3 * p.width + p.hidden + p.segments * p.width + segment * p.activations + extra;
  p.scratch = divided_up(rows * p.block * p.itemsize, 64) * 64 / p.itemsize;
  return p.scratch * p.itemsize;
}
// The same with blocks of about so many vectors: alike, as a short last one would take as long as a
// full one, and even, as vectors are multiplied in pairs.
inline i64 tile(Program &p, i64 vectors, i64 segment, i64 extra) {
  const i64 all = std::max<i64>(1, divided_up(p.points, p.lanes));
  const i64 each = divided_up(all, std::max<i64>(1, (all + vectors / 2) / vectors));
  return cut(p, (each > 1 ? each + each % 2 : 1) * p.lanes, segment, extra);
}
// Saved states and activations of a segment of so many layers take the same memory.
inline i64 balanced_segment(const Program &p) {
  const double ratio = double(p.layers) * p.width / std::max<i64>(1, p.activations);
  return std::max<i64>(1, std::lround(std::sqrt(ratio)));
}
// Sixteen pieces in all, or one of every network: more threads than that gain little.
inline void share(Program &p) {
  p.pieces = std::max<i64>(1, std::min(p.blocks, divided_up(16, std::max<i64>(1, p.networks))));
}

// Whether lanes run over features and units: for few samples, where every row of a matrix fills a
// vector. The wider the layers, the longer that wins; less so where the last vectors of rows are
// not full, and where a good part of the lanes would hold samples.
inline bool is_few(const Program &p) {
  i64 row = p.width, least = p.width;
  for (i64 k = 0; k < p.stages; k++) {
    row = std::min({row, p.stage[k].reads, p.stage[k].units});
    least = std::min({least, row, p.stage[k].writes});
  }
  if (p.pixels || least < std::max<i64>(8, p.lanes)) return false;  // TOGETHER_ROWS
  const i64 wide = p.width < 16 ? 2 : p.width < 64 ? 4 : 8, most = std::min(wide, p.lanes * 3 / 4);
  return p.points <= std::max<i64>(1, most * row / (divided_up(row, p.lanes) * p.lanes));
}
inline void tile_few(Program &p) {
  constexpr i64 CACHE = 3 << 20;
  const i64 all = std::max<i64>(1, p.layers), extra = std::max(p.width, p.hidden) + p.lanes;
  if (cut(p, p.points, all, extra) > CACHE) cut(p, p.points, balanced_segment(p), extra);
  share(p);
}

// Best first: all activations at once within a core's share of the caches, also with fewer samples;
// else states at the begin of segments are saved, and the backward pass goes forward twice.
inline void tile_passes(Program &p) {
  p.few = is_few(p), p.direct = p.few && p.period == p.layers;
  if (p.few) return tile_few(p);
  // Memory beyond the nearest cache costs less than a second forward pass. 12 MB would serve a few
  // cases better, but the threads of a call share the last cache.
  constexpr i64 CACHE = 6 << 20;
  const i64 narrow = 64 / (p.lanes * p.itemsize);  // as many samples on machines of short vectors
  const i64 all = std::max<i64>(1, p.layers), balanced = balanced_segment(p);
  const i64 options[][2] = {{16, all},     {8, all},      {4, all},
                            {4, balanced}, {2, balanced}, {1, balanced}};
  for (const auto &[vectors, segment] : options)
    if (tile(p, vectors * narrow, segment, 0) <= CACHE) break;
  share(p);
}

constexpr i64 MOST_BYTES = 512;  // of a row of a block: a layer's few rows stay in the first cache

// Activations of all layers would crowd out the matrices: saving states costs one forward pass
// more, little beside n backward passes.
inline Program tile_jacobians(Program p) {
  p.few = p.direct = false;
  constexpr i64 CACHE = 512 << 10;
  for (i64 vectors = MOST_BYTES / (p.lanes * p.itemsize); vectors > 0; vectors /= 2)
    if (tile(p, vectors, balanced_segment(p), p.width * p.width) <= CACHE) break;
  share(p);
  return p;
}

// A batch of training. Pieces of at least four vectors and some 50 us of work, as a helper may lose
// its core and everybody then waits for it; an even number, which two threads share well.
inline Program tile_training(Program p, i64 batch, i64 extra) {
  constexpr double WORTHWHILE = 6e6, MOST_PIECES = 8;
  const double points = double(std::max<i64>(1, p.networks * p.points));
  const double work = 3 * p.work / points * double(batch);
  const i64 vectors = std::max<i64>(1, divided_up(batch, p.lanes));
  p.pieces = std::max<i64>(1, std::min(i64(std::min(work / WORTHWHILE, MOST_PIECES)), vectors / 4));
  p.pieces -= p.pieces > 1 ? p.pieces % 2 : 0;
  const i64 each = std::min(divided_up(vectors, p.pieces), MOST_BYTES / (p.lanes * p.itemsize));
  p.points = batch, p.few = p.direct = false;
  cut(p, each * p.lanes, std::max<i64>(1, p.layers), extra);
  return p;
}

// How many threads are worth their start for so many operations.
inline i64 threads_for(double work, i64 threads) {
  constexpr double SERIAL = 3e7;  // 0.2 to 0.5 ms
  return work < SERIAL || threads < 1 ? 1 : threads;
}
}  // namespace hdnn
