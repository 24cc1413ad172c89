// Calls of training as the kernels see them; see program.h.
#pragma once
#include "../program.h"

namespace hdnn {

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
struct OutputWorkspace {
  double *residual;               // (outputs, width): w_i dloss_i/dlogits
  double *probability;            // (outputs, width), not of squared error
  double *gradient;               // (outputs, q), of f
  double *step, *trial, *second;  // (outputs, q)
  double *hessian;                // (outputs q, outputs q): its lower triangle
  double *scaled, *block;         // (q, width), (q, q): for the Hessian
  double loss;                    // sum_i w_i loss_i
};
inline __attribute__((always_inline)) OutputWorkspace take_output_workspace(BumpAllocator &memory,
                                                                            i64 outputs, i64 q,
                                                                            i64 width,
                                                                            bool newton) {
  const i64 size = outputs * q;
  OutputWorkspace space = {};
  space.residual = memory.take<double>(outputs * width);
  space.probability = memory.take<double>(outputs * width);
  space.gradient = memory.take<double>(size), space.step = memory.take<double>(size);
  space.trial = memory.take<double>(size), space.second = memory.take<double>(size);
  space.hessian = memory.take<double>(newton ? size * size : 0);
  space.scaled = memory.take<double>(newton ? q * width : 0);
  space.block = memory.take<double>(newton ? q * q : 0);
  return space;
}

// hdnn_train. Blocks of a batch are dealt to pieces; a piece has gradients of its own.
struct TrainingCall {
  const Program *program;  // cut as `tile_training` does, whose points are those of a batch
  const hdnn_training *training;
  hdnn_values values;  // but theta and beta, which are in the training
  const i64 *order;
  i64 from, count;  // first batch, and how many
  const double *rates;
  i64 *updates;
  double *losses;
  i64 threads;  // that share the pieces of a batch
  bool keep;    // activations of all blocks; else of one a thread, and blocks go forward twice
  // memory
  Structure structure;
  char *workspaces;  // (threads that share the networks) of workspace_bytes
  i64 workspace_bytes;
};

// The kernels of one instruction set and one number type.
struct TrainingKernels {
  i64 (*bytes)(const TrainingCall *);  // that a worker needs
  void (*prepare)(TrainingCall *);
  void (*train)(void *call, i64 network, i64 worker);
  i64 (*output_layer)(const OutputBatch &, const hdnn_solver &, double *V, OutputWorkspace &);
};
}  // namespace hdnn
