// The kernels of one instruction set: compiled once for each, with -DHDNN_ISA=<name> and the
// compiler's options for it. Without the standard library; see simd.h.
#include "jacobians.h"
#include "passes.h"
#include "svd.h"
#include "train.h"

namespace hdnn::HDNN_ISA {

template <class T>
constexpr Kernels table() {
  Kernels k = {};
  k.bytes = HDNN_BYTES;
  k.prepare = prepare<T>;
  k.forward = forward<T>;
  k.backward = backward<T>;
  k.jacobians = jacobians<T>;
  k.collect = collect<T>;
  k.train_bytes = train_bytes<T>;
  k.train_prepare = train_prepare<T>;
  k.train = train<T>;
  k.output_layer = solve_output_layer;
  k.singular_values = singular_values_of;
  return k;
}
extern const Kernels kernels[2];
const Kernels kernels[2] = {table<float>(), table<double>()};
}  // namespace hdnn::HDNN_ISA
