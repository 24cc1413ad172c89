// The interface of the kernels: addresses and numbers only, so that ctypes can call it and one
// library serves every Python, numpy and torch.
//
// Arrays are C-contiguous and hold float or double throughout, by `itemsize`, unless said
// otherwise. Shapes: E networks side by side, L layers, B samples, n features.
//
// States are (E, B, n), or of images (E, B, n, pixels).
//
// Functions return 0, or 1 where there is no memory. They may be called from any thread, any number
// at a time; none keeps an address that it was given beyond the call (a plan copies its stages).
#pragma once
#include <stdint.h>

#if defined(_WIN32)
#define HDNN_API extern "C" __declspec(dllexport)
#else
#define HDNN_API extern "C" __attribute__((visibility("default")))
#endif

// x[write] = carry x[write] + A sigma(W x[read] + b), the same in every layer.
// A = factor h S[write, read] W' if `adjoint`, else the number factor h.
struct hdnn_stage {
  int64_t read, reads;    // first feature of x[read], and how many
  int64_t write, writes;  // the same of x[write]
  int64_t units;          // rows of W
  int64_t adjoint, carry;
  double factor;
  const int64_t *W;  // (units, reads): entry = +-(1 + parameter of theta), 0: a structural zero
  const int64_t *b;  // (units): the same over beta
};

// What is computed, on states of one shape.
struct hdnn_problem {
  int64_t itemsize;                         // 4: float, 8: double
  int64_t activation;                       // `code` of fields/activations.py
  int64_t networks, layers, width, stages;  // E, L, n
  int64_t theta, beta;                      // parameters of a layer
  int64_t period;           // 1 to L: layer j has the parameters of layer j % period
  int64_t samples, pixels;  // B; pixels is 0 for features
  const hdnn_stage *stage;
};

// The numbers of a call.
struct hdnn_values {
  const void *theta, *beta;  // (E, period, parameters of K), (E, period, parameters of b)
  const void *S;  // (n, n): J - R, the same for all networks and layers; null: no stage is adjoint
  double h;
  const double *steps;  // (E, L): h of every layer; null where `h` holds for all
};

struct hdnn_plan;
HDNN_API hdnn_plan *hdnn_plan_new(const hdnn_problem *);  // null where there is no memory
HDNN_API void hdnn_plan_free(hdnn_plan *);

// Bytes of the activations of all layers.
HDNN_API int64_t hdnn_plan_activations(const hdnn_plan *);

// out = y_N. The activations are kept there, unless this is null.
HDNN_API int hdnn_forward(const hdnn_plan *, const hdnn_values *, const void *x, void *out,
                          void *activations, int64_t threads);
// Gradients of <gout, y_N>: of the state x, of theta and of beta, each in the shape of what it
// belongs to, overwritten. Null: not wanted; where neither theta's nor beta's is, what they take is
// saved. The activations are those of a forward pass with this plan and these numbers; null: they
// are computed again, and the gradients have the same bits.
HDNN_API int hdnn_backward(const hdnn_plan *, const hdnn_values *, const void *x, const void *gout,
                           const void *activations, void *gx, void *gtheta, void *gbeta,
                           int64_t threads);

// d y_N / d y_l at `count` increasing depths l, and y_l; every pixel counts as a sample:
//   states (E, count, B, n);      matrices (E, B, count, n, n)
HDNN_API int hdnn_jacobians(const hdnn_plan *, const hdnn_values *, const void *x,
                            const int64_t *depths, int64_t count, void *states, void *matrices,
                            int64_t threads);

// All states of a recurrence: s = sigma(W [x; u; 1]), x+ = A [x; u; 1; s]. Step t has the matrices
// of step t % period and the input t / hold. Arrays, beside those of the sizes:
//   W (E, period, units, states + inputs + 1);  A (E, period, states, states + inputs + 1 + units)
//   x (E, B, states): x_0;                      u (E, B, steps / hold rounded up, inputs)
//   states (E, B, steps, states): x_0 to x_{steps - 1};  last (E, B, states): x_steps
struct hdnn_rollout {
  int64_t itemsize, activation;
  int64_t networks, samples, steps, period, hold;  // E, B
  int64_t states, units, inputs;
};
HDNN_API int hdnn_rollout_forward(const hdnn_rollout *, const void *W, const void *A, const void *x,
                                  const void *u, void *states, void *last, int64_t threads);
// Gradients of <gstates, states> + <glast, last>, of which null is 0: of x, u, W and A, each in the
// shape of what it belongs to, overwritten. Null: not wanted; W and A go together.
HDNN_API int hdnn_rollout_backward(const hdnn_rollout *, const void *W, const void *A,
                                   const void *u, const void *states, const void *gstates,
                                   const void *glast, void *gx, void *gu, void *gW, void *gA,
                                   int64_t threads);

// Largest and smallest singular values of `count` matrices, double (count, n, n); NaN where one is
// not finite.
HDNN_API int hdnn_singular_values(const double *matrices, int64_t n, int64_t count, double *largest,
                                  double *smallest);

// The output layer V, double (outputs, q), given features Z (samples, q), the last of them 1:
// minimize sum_i w_i loss(V z_i, target_i) + alpha_c ||V||^2 from V, in place. Target and weight
// are double: (samples, 1) class numbers or (samples, outputs) values; (samples). Returns how many
// iterations it took, -1 where there is no memory.
enum { HDNN_LOGISTIC, HDNN_SOFTMAX, HDNN_SQUARED };
enum { HDNN_NEWTON, HDNN_ADAM };
struct hdnn_solver {
  int64_t solver, iterations;
  double alpha_c;
  double tolerance;      // Newton: entries of the gradient that count as 0
  double learning_rate;  // Adam
};
HDNN_API int64_t hdnn_output_layer(const hdnn_solver *, int64_t loss, int64_t samples, int64_t q,
                                   int64_t outputs, const double *Z, const double *target,
                                   const double *weight, double *V);

// Training without autograd: many steps of Adam in one call.
//
// All weights of a network stand in one row of `parameters` (E, size): theta (period, .), beta, and
// in joint descent also W (outputs, n), mu (outputs), P (n, inputs), nu (n), the last two where
// `inputs` is not 0. `first` and `second` are Adam's moments of the same shape; `gradients`, too,
// holds the gradient of the objective at the last step, before clipping.
struct hdnn_training {
  int64_t coordinate;  // 1: the output layer V is solved on every batch; 0: joint descent
  int64_t loss, outputs, inputs;
  int64_t batch, count;  // samples of a batch, and in all
  int64_t shared_data;   // 1: all networks have the same data (axis E of inputs .. order is 1)
  int64_t decoupled;     // weight decay of AdamW, else of Adam
  double alpha, clip, weight_decay;  // clip 0: none
  hdnn_solver output;
  const void *X;             // (E or 1, count, inputs or n)
  const double *target;      // (E or 1, count, 1 or outputs)
  const double *weight;      // (E or 1, count)
  const double *smoothness;  // (E, L), h_j as the smoothness penalty has it
  const double *repeats;     // how often every parameter of theta stands in K, then those of beta
  void *parameters, *first, *second, *gradients;  // (E, size)
  double *V;  // (E, outputs, n + 1): (W, mu); coordinate descent only
};
// Of the values theta and beta are not read, as they stand in the training.
// `batches` further batches, the first of them number `from` of the epoch, in the given order,
// int64 (E or 1, count). `updates`: int64 (E), steps of Adam so far, counted up. `rates` (batches):
// learning rates. `losses` double (E, batches, 3): plain and penalized loss of a batch before its
// step, and how many samples it classifies correctly. A network whose loss is not finite stops: the
// rest of its losses is NaN. A batch whose weights are all 0 is no step.
HDNN_API int hdnn_train(const hdnn_plan *, const hdnn_training *, const hdnn_values *,
                        const int64_t *order, int64_t from, int64_t batches, const double *rates,
                        int64_t *updates, double *losses, int64_t threads);

// The variant that runs: that which the environment variable HDNN_ISA names, or the best. Null
// where it names none of those that the processor runs, which the second function lists; nothing
// else may be called then.
HDNN_API const char *hdnn_instruction_set();
HDNN_API const char *hdnn_instruction_sets();

// Counted up, here and in native.py, with every change of this file: a library that was built from
// another one is not called.
static const int64_t HDNN_INTERFACE = 5;
HDNN_API int64_t hdnn_interface();
