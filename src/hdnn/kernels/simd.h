// Machine vectors by the vector extensions of GCC (12 and newer) and Clang, and sums over lanes.
//
// Files that include this one are compiled once for every instruction set, in a namespace of its
// own and without the standard library: inline functions of two instruction sets must never be
// merged by the linker, or AVX-512 code would run on a machine that has none.
#pragma once
#include "program.h"

#ifndef HDNN_ISA
#define HDNN_ISA baseline
#endif
#if defined(__AVX512F__)
#define HDNN_BYTES 64
#elif defined(__AVX2__)
#define HDNN_BYTES 32
#else
#define HDNN_BYTES 16
#endif
#define ALWAYS_INLINE __attribute__((always_inline))
#define INLINE static inline ALWAYS_INLINE
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 64")
#endif

namespace hdnn::HDNN_ISA {

template <class T>
struct Simd;
template <>
struct Simd<float> {
  typedef float V __attribute__((vector_size(HDNN_BYTES)));
  typedef float Unaligned __attribute__((vector_size(HDNN_BYTES), aligned(4), may_alias));
  typedef int32_t I __attribute__((vector_size(HDNN_BYTES)));
};
template <>
struct Simd<double> {
  typedef double V __attribute__((vector_size(HDNN_BYTES)));
  typedef double Unaligned __attribute__((vector_size(HDNN_BYTES), aligned(8), may_alias));
  typedef int64_t I __attribute__((vector_size(HDNN_BYTES)));
};
template <class T>
using Vec = typename Simd<T>::V;
template <class T>
using Bits = typename Simd<T>::I;
template <class T>
constexpr int LANES = HDNN_BYTES / sizeof(T);

// How many vectors a long chain of operations (tanh) works on at once, so that none waits for the
// one before. Measured: eight, but for AVX2, whose 16 registers they would overflow.
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int TOGETHER = 2;
#else
constexpr int TOGETHER = 8;
#endif

template <class T>
INLINE Vec<T> load(const T *p) {
  return *(const typename Simd<T>::Unaligned *)p;
}
template <class T>
INLINE void store(T *p, Vec<T> v) {
  *(typename Simd<T>::Unaligned *)p = v;
}
template <class T>
INLINE Vec<T> splat(T a) {
  return a - Vec<T>{};
}
template <class T>
INLINE Vec<T> absolute(Vec<T> x) {
  return (Vec<T>)((Bits<T>)x & ~(Bits<T>)splat<T>(T(-0.0)));
}
INLINE i64 smaller(i64 a, i64 b) { return a < b ? a : b; }
template <class T>
INLINE void fill(T *p, i64 count, T a) {
  for (i64 i = 0; i < count; i++) p[i] = a;
}
template <class T>
INLINE void copy(const T *from, T *to, i64 count) {
  i64 i = 0;
  for (; i + LANES<T> <= count; i += LANES<T>) store<T>(to + i, load<T>(from + i));
  for (; i < count; i++) to[i] = from[i];
}

// The even (ODD = 0) or odd lanes of a, then those of b.
template <class T, int ODD>
INLINE Vec<T> every_second(Vec<T> a, Vec<T> b) {
  constexpr int O = ODD;
  if constexpr (LANES<T> == 16)
    return __builtin_shufflevector(a, b, O, O + 2, O + 4, O + 6, O + 8, O + 10, O + 12, O + 14,
                                   O + 16, O + 18, O + 20, O + 22, O + 24, O + 26, O + 28, O + 30);
  else if constexpr (LANES<T> == 8)
    return __builtin_shufflevector(a, b, O, O + 2, O + 4, O + 6, O + 8, O + 10, O + 12, O + 14);
  else if constexpr (LANES<T> == 4)
    return __builtin_shufflevector(a, b, O, O + 2, O + 4, O + 6);
  else
    return __builtin_shufflevector(a, b, O, O + 2);
}
// All lanes moved up by BY, or down by -BY; 0 moves in.
template <int... I>
struct Indices {};
template <int N, int... I>
struct IndicesBelow : IndicesBelow<N - 1, N - 1, I...> {};
template <int... I>
struct IndicesBelow<0, I...> : Indices<I...> {};
template <class T, int BY, int... I>
INLINE Vec<T> shifted(Vec<T> v, Indices<I...>) {
  constexpr int N = LANES<T>;
  if constexpr (BY > 0)
    return __builtin_shufflevector(Vec<T>{}, v, (N - BY + I)...);
  else
    return __builtin_shufflevector(v, Vec<T>{}, (I - BY)...);
}
template <class T, int BY>
INLINE Vec<T> shifted(Vec<T> v) {
  return shifted<T, BY>(v, IndicesBelow<LANES<T>>());
}
// Running sums over lanes, from the first on (BY = 1) or from the last (BY = -1).
template <class T, int BY>
INLINE Vec<T> running_sums(Vec<T> v) {
  v += shifted<T, BY>(v);
  if constexpr (2 * BY < LANES<T> && -2 * BY < LANES<T>)
    return running_sums<T, 2 * BY>(v);
  else
    return v;
}
// Totals over the lanes of COUNT vectors, a power of 2: pairs of vectors are added with a shuffle
// of even and odd lanes, so that all share the shuffles. They end up in the first lanes, in order.
template <class T, int COUNT, int LEVEL = LANES<T>>
INLINE void fold(Vec<T> *v) {
  if constexpr (LEVEL > 1) {
    constexpr int HALF = COUNT > 1 ? COUNT / 2 : 1;
    UNROLL for (int i = 0; i < HALF; i++) {
      const Vec<T> a = v[COUNT > 1 ? 2 * i : 0], b = v[COUNT > 1 ? 2 * i + 1 : 0];
      v[i] = every_second<T, 0>(a, b) + every_second<T, 1>(a, b);
    }
    fold<T, HALF, LEVEL / 2>(v);
  }
}
// sums[i * stride + k] += total of v[i * COLUMNS + k]
template <class T, int ROWS, int COLUMNS>
INLINE void add_totals(Vec<T> *v, T *sums, i64 stride) {
  constexpr int N = LANES<T>, COUNT = ROWS * COLUMNS, VECTORS = (COUNT + N - 1) / N;
  fold<T, COUNT>(v);
  T flat[VECTORS * N];
  UNROLL for (int i = 0; i < VECTORS; i++) store<T>(flat + i * N, v[i]);
  UNROLL for (int i = 0; i < ROWS; i++) {
    UNROLL for (int k = 0; k < COLUMNS; k++) sums[i * stride + k] += flat[i * COLUMNS + k];
  }
}
}  // namespace hdnn::HDNN_ISA
