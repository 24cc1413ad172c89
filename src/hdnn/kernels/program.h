// The problem as the kernels see it: plain structures, shared by all files. No standard library, so
// that the files compiled for each instruction set can include it.
//
// A *row* holds W (units, reads) and b (units) of every stage of one layer, stage after stage.
// Gradients of a layer have the same shape, so that an address in a row serves for both. Rows and
// gradients are those of the first `period` layers, as all others have the parameters of these.
#pragma once
#include <stdint.h>

#include "hdnn.h"

namespace hdnn {
typedef int64_t i64;

// Numbered as `code` in fields/activations.py.
enum Activation { TANH, IDENTITY, RELU, SOFTSIGN, SIGMOID };

// Entries `entry`, `entry` + stride, ... of an array are parameters `parameter`, `parameter` + 1,
// ..., times the sign. A skew matrix is two runs a row: what is right of the diagonal, and below.
struct Run {
  i64 entry, stride, parameter, count, sign;
};
struct Runs {
  const Run *run;
  i64 count;
};

struct Stage : hdnn_stage {
  Runs runs_W, runs_b;   // in place of W and b
  i64 first_W, first_b;  // first parameter where the entries are parameters in order, else -1
  i64 first_transposed;  // the same of W', where W itself is not in order
  bool fresh;            // of a `direct` program: its gradients of theta are the first ones
  i64 at_W, at_b;        // places in a row
  i64 at_S;              // place in Structure::to and Structure::gain
  i64 small;             // 2 or 4 where small_stages.h serves, else 0
};

// How S[write, read] of a stage acts on n features, found at every call:
//   SCALAR    not at all: the stage is not adjoint
//   MONOMIAL  one entry in every row and column, as of J1: n operations;
//             column k goes to row to[k], times gain[k]
//   SIGNS     J2 itself: n operations, by running sums
//   GENERAL   anything else: n^2 operations
enum StructureKind { SCALAR, MONOMIAL, SIGNS, GENERAL };
struct Structure {
  StructureKind *kind;  // (stages)
  i64 *to;              // (reads) of each stage
  i64 *run;             // (reads) of each stage: so many columns from k on go to rows in order
  void *gain;           // (reads) of each stage
};

struct Program : hdnn_problem {
  const Stage *stage;  // in place of those of the problem
  i64 points;          // of a network: samples, or pixels of all samples
  i64 row;             // numbers of a row
  bool overwrites;     // gradients of theta are those of `fresh` stages, to which others add
  bool gathers;        // some W or b cannot be read from theta and beta in place
  i64 reads;           // of all stages together
  i64 hidden;          // most units or reads of a stage
  i64 activations;     // rows of a layer that a backward pass needs, per point
  double work;         // operations of a forward pass

  // How points are cut (tiling.h), by shape alone: a chunk is a piece of a network, its blocks run
  // one after the other, and a block goes through all layers.
  bool few;               // lanes over features and units (few_stages.h), not over points
  bool direct;            // and no layers share parameters: gradients go where they belong at once
  i64 lanes;              // numbers in a machine vector
  i64 block;              // most points of a block, a multiple of lanes
  i64 blocks, pieces;     // of a network
  i64 segment, segments;  // layers whose activations are kept at once; how many restarts there are
  i64 scratch;            // numbers that a block needs
};

// One piece of memory cut into arrays, each at a cache line of its own. Begun at address 0 it tells
// how many bytes are needed; begun at an allocation, where everything is. So a layout is written
// once.
struct BumpAllocator {
  uintptr_t at;  // where the next array begins
  // Inlined always: the linker may keep one copy of this for all instruction sets.
  template <class T>
  __attribute__((always_inline)) T *take(i64 count) {
    T *array = (T *)at;
    at += (uintptr_t(count) * sizeof(T) + 63) / 64 * 64;
    return array;
  }
};

// hdnn_forward, hdnn_backward and hdnn_jacobians.
struct Call {
  const Program *program;
  hdnn_values values;
  const void *x, *gout;
  void *out;             // y_N, or the gradient of x
  void *gtheta, *gbeta;  // null: not wanted
  void *activations;     // (E, blocks, layers, activations, block), or null: not kept
  // Jacobians: at `count` depths, y_l and d y_N / d y_l
  const i64 *depths;
  i64 count;
  void *states, *matrices;
  // memory
  Structure structure;
  void *rows;     // (E, period, row), assembled parameters
  void *partial;  // (threads, period, row), gradients of the chunk that a thread computes; one row
                  // of memory for a stage if `direct`
  void *total;    // (E, period, row), gradients of the chunks so far
  i64 *turns;     // (E, period), pieces that were added to these
  void *scratch;  // (threads, scratch)
};

// hdnn_rollout_forward and hdnn_rollout_backward.
struct RolloutCall {
  const hdnn_rollout *rollout;
  const void *W, *A, *x, *u;
  void *states, *last;
  const void *gstates, *glast;
  void *gx, *gu, *gW, *gA;
  // how the samples of a network are cut, by shape alone: pieces, most samples of one, and how many
  // steps go back together
  i64 pieces, most, chunk;
  // memory: the matrices of all networks and steps for either way, gradients of each piece
  void *forward, *backward, *partial, *scratch;
  i64 forward_bytes, backward_bytes, partial_bytes, scratch_bytes;  // the last two of one piece
};

// work(context, piece, worker) for every piece, on at most `threads` threads (pool.h). A worker is
// a number below `threads` that no other thread has at the same time: for memory of its own.
// Pieces begin in their order.
typedef void (*Work)(void *context, i64 piece, i64 worker);
void parallel_for(i64 pieces, i64 threads, Work work, void *context);
// Wait until pieces 0 .. piece - 1 have ended their turns; end that of a piece.
void await_turn(const i64 *turn, i64 piece);
void end_turn(i64 *turn, i64 piece);

// Matrices side by side in a singular value decomposition; of n = 8 so many fill a first cache.
constexpr i64 SVD_TOGETHER = 64;

// The kernels of one instruction set and one number type.
struct Kernels {
  i64 bytes;                // of a machine vector
  void (*prepare)(Call *);  // structure of S, rows of all networks
  void (*forward)(void *call, i64 chunk, i64 worker);
  void (*backward)(void *call, i64 chunk, i64 worker);
  void (*jacobians)(void *call, i64 chunk, i64 worker);
  void (*singular_values)(const double *matrices, i64 n, i64 count, double *largest,
                          double *smallest, double *memory);  // (n n + n) SVD_TOGETHER numbers
  void (*measure_rollout)(RolloutCall *);                     // chunk and bytes
  void (*prepare_rollout)(RolloutCall *);                     // matrices
  void (*rollout_forward)(void *call, i64 piece, i64 worker);
  void (*rollout_backward)(void *call, i64 piece, i64 worker);
  void (*finish_rollout)(RolloutCall *);  // gradients of the matrices
  const struct TrainingKernels *training;
};
}  // namespace hdnn
