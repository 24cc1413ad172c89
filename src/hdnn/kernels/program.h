// The problem as the kernels see it: plain structures, shared by all files. No standard library, so
// that the files compiled for each instruction set can include it.
//
// A *row* holds W (units, reads) and b (units) of every stage of one layer, stage after stage.
// Gradients of a layer have the same shape, so that an address in a row serves for both.
#pragma once
#include <stdint.h>

#include "hdnn.h"

namespace hdnn {
typedef int64_t i64;

// In the order of ACTIVATIONS in native.py.
enum Activation { TANH, IDENTITY, RELU, SOFTSIGN, SIGMOID };

struct Stage : hdnn_stage {
  i64 first_W, first_b;  // first parameter where the entries are parameters in order, else -1
  i64 at_W, at_b;        // places in a row
  i64 at_mixing;         // place in Mixing::to and Mixing::gain
  i64 square;            // 2 or 4 where squares.h serves, else 0
};

// How S[write, read] of a stage acts on n features, found at every call:
//   SCALAR    not at all: the stage is not adjoint
//   MONOMIAL  one entry in every row and column, as of J1: n operations;
//             column k goes to row to[k], times gain[k]
//   SIGNS     J2 itself: n operations, by running sums
//   GENERAL   anything else: n^2 operations
enum Kind { SCALAR, MONOMIAL, SIGNS, GENERAL };
struct Mixing {
  Kind *kind;  // (stages)
  i64 *to;     // (reads) of each stage
  void *gain;  // (reads) of each stage
};

struct Program : hdnn_problem {
  const Stage *stage;  // in place of those of the problem
  i64 row;             // numbers of a row
  bool gathers;        // some W or b cannot be read from theta and beta in place
  i64 mixed;           // reads of all stages together
  i64 hidden;          // most units or reads of a stage
  i64 activations;     // rows of a layer that a backward pass needs, per sample
  double work;         // operations of a forward pass

  // How states are cut, by shape alone: a chunk is a piece of a network, its blocks run one after
  // the other, and a block goes through all layers. Gradients are summed within a chunk, then over
  // the chunks in order.
  i64 lanes;              // numbers in a machine vector
  i64 groups, group;      // images and pixels of each, or 1 and samples
  i64 block;              // most samples of a block, a multiple of lanes
  i64 blocks, pieces;     // of a network
  i64 segment, segments;  // layers whose activations are kept at once; how many restarts there are
  i64 scratch;            // numbers that a block needs
};

// One piece of memory cut into arrays, each at a cache line of its own. Begun at address 0 it tells
// how many bytes are needed; begun at an allocation, where everything is. So a layout is written
// once.
struct Carver {
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
  void *gtheta, *gbeta;  // null going forward
  // Jacobians: at `count` depths, y_l and d y_N / d y_l
  const i64 *depths;
  i64 count;
  void *states, *matrices;
  // memory
  Mixing mixing;
  void *rows;     // (E, L, row)
  void *grads;    // (E, pieces, L, row)
  void *scratch;  // (threads, scratch)
};

constexpr double BETA1 = 0.9, BETA2 = 0.999;  // of every Adam

// Samples on which the output layer is solved, sample-minor: rows of `width` numbers.
struct OutputBatch {
  i64 loss, outputs, q;
  i64 samples, width;  // width: samples rounded up to whole vectors
  double *Z;           // (q, width), the last row is 1
  double *target;      // class numbers (1, width), or values (outputs, width)
  double *weight;      // (width), 0 in idle lanes
};
// What is computed of V. Solvers leave residual, probability and loss of the V that they return.
struct OutputRoom {
  double *residual;               // (outputs, width): w_i dloss_i/dlogits
  double *probability;            // (outputs, width), not of squared error
  double *gradient;               // (outputs, q), of f
  double *step, *trial, *second;  // (outputs, q)
  double *hessian;                // (outputs q, outputs q): its lower triangle
  double *scaled, *block;         // (q, width), (q, q): for the Hessian
  double loss;                    // sum_i w_i loss_i
};
inline __attribute__((always_inline)) OutputRoom take_output_room(Carver &memory, i64 outputs,
                                                                  i64 q, i64 width, bool newton) {
  const i64 size = outputs * q;
  OutputRoom room = {};
  room.residual = memory.take<double>(outputs * width);
  room.probability = memory.take<double>(outputs * width);
  room.gradient = memory.take<double>(size), room.step = memory.take<double>(size);
  room.trial = memory.take<double>(size), room.second = memory.take<double>(size);
  room.hessian = memory.take<double>(newton ? size * size : 0);
  room.scaled = memory.take<double>(newton ? q * width : 0);
  room.block = memory.take<double>(newton ? q * q : 0);
  return room;
}

// hdnn_train. A batch is cut into blocks, and blocks are dealt to pieces, by shape alone; a piece
// has gradients of its own.
struct TrainCall {
  const Program *program;
  const hdnn_training *training;
  hdnn_values values;  // but theta and beta, which are in the training
  const i64 *order;
  i64 from, count;  // first batch, and how many
  const double *rates;
  i64 *updates;
  double *losses;
  i64 batch;          // samples of a batch, at most
  i64 block, pieces;  // samples of a block, a multiple of the lanes; pieces of a batch
  i64 threads;        // that share the pieces of a batch
  bool keep;  // activations of all blocks; else of one a thread, and blocks go forward twice
  i64 slots;  // blocks that there is memory for
  // memory
  Mixing mixing;
  char *rooms;  // (threads that share the networks) of room_bytes
  i64 room_bytes;
};

// work(context, piece, worker) for every piece, on at most `threads` threads (pool.h). A worker is
// a number below `threads` that no other thread has at the same time: for memory of its own.
typedef void (*Work)(void *context, i64 piece, i64 worker);
void parallel_for(i64 pieces, i64 threads, Work work, void *context);

// Matrices side by side in a singular value decomposition; of n = 8 so many fill a first cache.
constexpr i64 SVD_TOGETHER = 64;

// The kernels of one instruction set and one number type.
struct Kernels {
  i64 bytes;                // of a machine vector
  void (*prepare)(Call *);  // kinds of S, rows of all networks
  void (*forward)(void *call, i64 chunk, i64 worker);
  void (*backward)(void *call, i64 chunk, i64 worker);
  void (*jacobians)(void *call, i64 chunk, i64 worker);
  void (*collect)(const Call *, i64 network);  // partial gradients to those of theta and beta
  i64 (*train_bytes)(const TrainCall *);       // that a worker needs
  void (*train_prepare)(TrainCall *);
  void (*train)(void *call, i64 network, i64 worker);
  i64 (*output_layer)(const OutputBatch &, const hdnn_solver &, double *V, OutputRoom &);
  void (*singular_values)(const double *matrices, i64 n, i64 count, double *largest,
                          double *smallest, double *memory);  // n n SVD_TOGETHER numbers
};
}  // namespace hdnn
