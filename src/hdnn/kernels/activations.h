// Activations sigma(z) and their derivatives, on machine vectors.
//
// Backward passes have s = sigma(z) and not z: the kernels know the activations whose derivative
// follows from s alone. The others of the catalog (arctan, sin, erf) run on the reference.
#pragma once
#include "simd.h"

namespace hdnn::HDNN_ISA {

// ((exp 2r - 1) / 2 - r) / r^2 for |r| <= log(2) / 4, minimax; a number whose tanh rounds to 1.
template <class T>
struct TanhConstants;
template <>
struct TanhConstants<float> {
  static constexpr int MANTISSA = 23, DEGREE = 5;
  static constexpr float EDGE = 9.2f;
  static constexpr float C[DEGREE] = {1.0f, 0.66666306664479713f, 0.33333243370387322f,
                                      0.13381172613892189f, 0.044564002660792357f};
};
template <>
struct TanhConstants<double> {
  static constexpr int MANTISSA = 52, DEGREE = 10;
  static constexpr double EDGE = 19.5;
  static constexpr double C[DEGREE] = {
      1.0,
      0.66666666666666674,
      0.33333333333299059,
      0.13333333333328062,
      0.044444444535574661,
      0.012698412712429797,
      0.0031745946954071301,
      0.00070546606788878582,
      0.00014141543214608152,
      2.5702883845831676e-05,
  };
};

// tanh |x| = F / (F + 1), F = (exp 2|x| - 1) / 2: accurate beside tanh x and beside 1 - tanh x.
// |x| = k log(2)/2 + r gives F = 2^k (exp 2r - 1) / 2 + (2^k - 1) / 2. Odd, at most 1, exactly 1
// when saturated; NaN fails every comparison and so passes through.
//
// Of several vectors at once, step by step, as each step waits for the one before: one vector after
// the other would take 1.3 times as long.
template <class T, int COUNT>
INLINE void tanh_together(Vec<T> *x) {
  typedef TanhConstants<T> P;
  const T magic = T(1.5) * T(i64(1) << P::MANTISSA);  // rounds to an integer, left in the low bits
  // Volatile, as gcc makes a machine's minimum of a comparison only if it knows neither side.
  const Vec<T> edge = splat<T>(*(const volatile T *)&P::EDGE);
  const Bits<T> sign = (Bits<T>)splat<T>(T(-0.0)), one = (Bits<T>)splat<T>(T(1));
  Vec<T> shifted[COUNT], r[COUNT], F[COUNT];
  UNROLL for (int i = 0; i < COUNT; i++) {
    const Vec<T> size = x[i] < -x[i] ? -x[i] : x[i];
    r[i] = edge < size ? edge : size;
    shifted[i] = r[i] * T(2.8853900817779268147) + magic;
  }
  UNROLL for (int i = 0; i < COUNT; i++) {
    r[i] = r[i] - (shifted[i] - magic) * T(0.34657359027997265471);
    F[i] = r[i] * P::C[P::DEGREE - 1] + P::C[P::DEGREE - 2];
  }
  UNROLL for (int k = P::DEGREE - 3; k >= 0; k--) {
    UNROLL for (int i = 0; i < COUNT; i++) F[i] = F[i] * r[i] + P::C[k];
  }
  UNROLL for (int i = 0; i < COUNT; i++) {
    const Vec<T> power = (Vec<T>)(((Bits<T>)shifted[i] << P::MANTISSA) + one);
    F[i] = power * (r[i] * r[i] * F[i] + r[i]) + (power * T(0.5) - T(0.5));
  }
  UNROLL for (int i = 0; i < COUNT; i++) x[i] =
      (Vec<T>)((Bits<T>)(F[i] / (F[i] + T(1))) | ((Bits<T>)x[i] & sign));
}

template <class T, int COUNT>
INLINE void tanh(Vec<T> *x) {
  constexpr int PART = COUNT < TOGETHER ? COUNT : TOGETHER;
  UNROLL for (int i = 0; i < COUNT; i += PART) tanh_together<T, PART>(x + i);
}

// z = sigma(z) of COUNT vectors
template <class T, int COUNT>
INLINE void sigma(Vec<T> *z, i64 activation) {
  const Vec<T> zero = {};
  switch (activation) {
    case TANH:
      return tanh<T, COUNT>(z);
    case RELU:
      UNROLL for (int i = 0; i < COUNT; i++) z[i] = z[i] < zero ? zero : z[i];
      return;
    case SOFTSIGN:
      UNROLL for (int i = 0; i < COUNT; i++) z[i] = z[i] / (absolute<T>(z[i]) + T(1));
      return;
    case SIGMOID:
      UNROLL for (int i = 0; i < COUNT; i++) z[i] = z[i] * T(0.5);
      tanh<T, COUNT>(z);
      UNROLL for (int i = 0; i < COUNT; i++) z[i] = z[i] * T(0.5) + T(0.5);
      return;
  }
}
// d sigma'(z) from s = sigma(z)
template <class T>
INLINE Vec<T> times_slope(Vec<T> d, Vec<T> s, i64 activation) {
  const Vec<T> zero = {}, rest = T(1) - absolute<T>(s);
  switch (activation) {
    case TANH:
      return d * (T(1) - s * s);
    case RELU:
      return s <= zero ? zero : d;
    case SOFTSIGN:
      return d * (rest * rest);
    case SIGMOID:
      return d * (s * (T(1) - s));
    default:
      return d;
  }
}

// s = sigma(z) in place, count a multiple of the lanes
template <class T>
static void activate(T *z, i64 count, i64 activation) {
  constexpr int N = LANES<T>, COUNT = TOGETHER;
  i64 i = 0;
  for (; i + COUNT * N <= count; i += COUNT * N) {
    Vec<T> v[COUNT];
    UNROLL for (int k = 0; k < COUNT; k++) v[k] = load<T>(z + i + k * N);
    sigma<T, COUNT>(v, activation);
    UNROLL for (int k = 0; k < COUNT; k++) store<T>(z + i + k * N, v[k]);
  }
  for (; i < count; i += N) {
    Vec<T> v = load<T>(z + i);
    sigma<T, 1>(&v, activation);
    store<T>(z + i, v);
  }
}
}  // namespace hdnn::HDNN_ISA
