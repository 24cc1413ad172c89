// The kernels of one instruction set: compiled once for each, with -DHDNN_ISA=<name> and the
// compiler's options for it. Without the standard library; see simd.h.
#include "jacobians.h"
#include "passes.h"
#include "rollout.h"
#include "svd.h"
#include "training/train.h"

namespace hdnn::HDNN_ISA {

template <class T>
constexpr TrainingKernels training_kernels = {training_bytes<T>, prepare_training<T>, train<T>,
                                              solve_output_layer};
template <class T>
constexpr Kernels table() {
  Kernels k = {};
  k.bytes = HDNN_BYTES;
  k.prepare = prepare<T>;
  k.forward = forward<T>;
  k.backward = backward<T>;
  k.jacobians = jacobians<T>;
  k.singular_values = singular_values_of;
  k.measure_rollout = measure_rollout<T>;
  k.prepare_rollout = prepare_rollout<T>;
  k.rollout_forward = rollout_forward<T>;
  k.rollout_backward = rollout_backward<T>;
  k.finish_rollout = finish_rollout<T>;
  k.training = &training_kernels<T>;
  return k;
}
extern const Kernels kernels[2];
const Kernels kernels[2] = {table<float>(), table<double>()};
}  // namespace hdnn::HDNN_ISA
