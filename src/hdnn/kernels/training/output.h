// The output layer, given the hidden layers: minimize over V = (W, mu), double (outputs, q),
//
//     f(V) = sum_i w_i loss(V z_i, target_i) + alpha_c ||V||^2,      z_i = (y_N of sample i, 1)
//
// by damped Newton, or by a few steps of Adam from zero as the paper's own code does. Losses:
// logistic (one output), softmax, squared error.
//
// Blocks are sample-minor as everywhere: feature k of all samples stands at Z + k width, so that
// logits, gradients and curvatures are the products and grams of products.h, and every loss is a
// loop over whole vectors. Idle lanes repeat a sample with weight 0 and so add nothing. All of it
// is double: Newton's last steps are about numbers that float would round away.
#pragma once
#include "../products.h"
#include "training.h"

namespace hdnn::HDNN_ISA {

using Doubles = Vec<double>;

INLINE double total_of(Doubles v) {
  double total = 0;
  for (int i = 0; i < LANES<double>; i++) total += v[i];
  return total;
}

// exp x for x <= 0, to an ulp or two: x = k log 2 + r, exp x = 2^k exp r. Below -700 it is 1e-304.
INLINE Doubles exp_negative(Doubles x) {
  const Doubles least = splat<double>(-700.0);
  x = x < least ? least : x;
  const double magic = 6755399441055744.0;  // 1.5 2^52: the sum ends in the bits of k
  const Doubles shifted = x * 1.4426950408889634 + magic, k = shifted - magic;
  const Doubles r = (x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10;
  Doubles p = splat<double>(1.0);
  for (int i = 13; i >= 1; i--) p = p * (r * (1.0 / i)) + 1.0;  // the Taylor series
  return p * (Doubles)(((Bits<double>)shifted << 52) + (Bits<double>)splat<double>(1.0));
}

// log(1 + e) for 0 <= e <= 1, as 2 artanh(e / (2 + e)): its square is at most 1/9.
INLINE Doubles log1p_small(Doubles e) {
  const Doubles s = e / (e + 2.0), square = s * s;
  Doubles p = splat<double>(1.0 / 31);
  for (int i = 29; i >= 1; i -= 2) p = p * square + 1.0 / i;
  return 2.0 * s * p;
}

// --- Losses: logits become w_i dloss_i/dlogits; return sum_i w_i loss_i ---

inline double logistic_losses(const OutputBatch &b, double *logits, double *probability) {
  const Doubles zero = {};
  Doubles total = {};
  for (i64 p = 0; p < b.width; p += LANES<double>) {
    const Doubles z = load<double>(logits + p), t = load<double>(b.target + p);
    const Doubles w = load<double>(b.weight + p), margin = (2.0 * t - 1.0) * z;
    const Doubles e = exp_negative(z > zero ? -z : z), rest = 1.0 / (1.0 + e);
    const Doubles probable = z > zero ? rest : e * rest;
    total += w * (log1p_small(e) + (margin > zero ? zero : -margin));
    store<double>(probability + p, probable);
    store<double>(logits + p, w * (probable - t));
  }
  return total_of(total);
}

inline double softmax_losses(const OutputBatch &b, double *logits, double *probability) {
  const Doubles one = splat<double>(1.0), none = {};
  Doubles sum = {};
  for (i64 p = 0; p < b.width; p += LANES<double>) {
    const Doubles t = load<double>(b.target + p), w = load<double>(b.weight + p);
    double *z = logits + p, *e = probability + p;
    Doubles top = load<double>(z), total = {}, own = {}, logarithm = {};
    for (i64 o = 1; o < b.outputs; o++) {
      const Doubles other = load<double>(z + o * b.width);
      top = other > top ? other : top;
    }
    for (i64 o = 0; o < b.outputs; o++) {
      const Doubles logit = load<double>(z + o * b.width), power = exp_negative(logit - top);
      own = t == splat<double>(double(o)) ? logit : own;
      total += power;
      store<double>(e + o * b.width, power);
    }
    for (i64 o = 0; o < b.outputs; o++) {
      const Doubles probable = load<double>(e + o * b.width) / total;
      store<double>(e + o * b.width, probable);
      const Doubles truth = t == splat<double>(double(o)) ? one : none;
      store<double>(z + o * b.width, w * (probable - truth));
    }
    for (int i = 0; i < LANES<double>; i++) logarithm[i] = __builtin_log(total[i]);
    sum += w * (logarithm + top - own);
  }
  return total_of(sum);
}

inline double squared_losses(const OutputBatch &b, double *logits) {
  Doubles total = {};
  for (i64 o = 0; o < b.outputs; o++)
    for (i64 p = 0; p < b.width; p += LANES<double>) {
      double *z = logits + o * b.width + p;
      const Doubles w = load<double>(b.weight + p);
      const Doubles error = load<double>(z) - load<double>(b.target + o * b.width + p);
      total += w * (0.5 * error * error);
      store<double>(z, w * error);
    }
  return total_of(total);
}

inline double losses(const OutputBatch &b, double *logits, double *probability) {
  if (b.loss == HDNN_LOGISTIC) return logistic_losses(b, logits, probability);
  if (b.loss == HDNN_SOFTMAX) return softmax_losses(b, logits, probability);
  return squared_losses(b, logits);
}

// How many samples have the largest logit in the place of their class.
inline i64 count_correct(const OutputBatch &b, const double *logits) {
  i64 correct = 0;
  for (i64 p = 0; b.loss != HDNN_SQUARED && p < b.samples; p++) {
    i64 best = 0;
    for (i64 o = 1; o < b.outputs; o++)
      if (logits[o * b.width + p] > logits[best * b.width + p]) best = o;
    if (b.loss == HDNN_LOGISTIC) best = logits[p] > 0;
    correct += best == i64(b.target[p]);
  }
  return correct;
}

// --- The objective and its derivatives ---

inline void logits_of(const OutputBatch &b, const double *V, double *logits) {
  product<double, FRESH>({V, b.q, 1}, b.outputs, b.q, b.Z, {logits}, b.width);
}

inline double squared_norm(const double *V, i64 count) {
  double total = 0;
  for (i64 k = 0; k < count; k++) total += V[k] * V[k];
  return total;
}

// Residuals, probabilities and loss of V; returns f(V).
inline double evaluate(const OutputBatch &b, const double *V, double alpha_c,
                       OutputWorkspace &space) {
  logits_of(b, V, space.residual);
  space.loss = losses(b, space.residual, space.probability);
  return space.loss + alpha_c * squared_norm(V, b.outputs * b.q);
}

// Gradient of f from the residuals; returns its largest entry.
inline double gradient(const OutputBatch &b, const double *V, double alpha_c,
                       OutputWorkspace &space) {
  double largest = 0;
  for (i64 k = 0; k < b.outputs * b.q; k++) space.gradient[k] = 2.0 * alpha_c * V[k];
  const Pair<double> pair = {space.residual, b.Z};
  gram<double>(&pair, 1, b.outputs, b.q, b.width, space.gradient);
  for (i64 k = 0; k < b.outputs * b.q; k++) {
    const double size = __builtin_fabs(space.gradient[k]);
    largest = size > largest ? size : largest;
  }
  return largest;
}

// Rows c_i z_i, where c_i = w_i d^2 loss_i / dlogit_o dlogit_u.
inline void scale_by_curvature(const OutputBatch &b, i64 o, i64 u, OutputWorkspace &space) {
  for (i64 p = 0; p < b.width; p += LANES<double>) {
    Doubles curvature = load<double>(b.weight + p);
    if (b.loss != HDNN_SQUARED) {
      const Doubles other = load<double>(space.probability + u * b.width + p);
      curvature *= load<double>(space.probability + o * b.width + p) * (double(o == u) - other);
    }
    for (i64 k = 0; k < b.q; k++)
      store<double>(space.scaled + k * b.width + p,
                    curvature * load<double>(b.Z + k * b.width + p));
  }
}

// The Hessian of f without the penalty, block by block; of squared error only the diagonal blocks.
inline void hessian(const OutputBatch &b, OutputWorkspace &space) {
  const i64 size = b.outputs * b.q;
  const Pair<double> pair = {space.scaled, b.Z};
  for (i64 o = 0; o < b.outputs; o++)
    for (i64 u = 0; u <= o; u++) {
      for (i64 k = 0; k < b.q * b.q; k++) space.block[k] = 0;
      if (o == u || b.loss != HDNN_SQUARED) {
        scale_by_curvature(b, o, u, space);
        gram<double>(&pair, 1, b.q, b.q, b.width, space.block);
      }
      for (i64 i = 0; i < b.q; i++)
        for (i64 k = 0; k < b.q; k++)
          space.hessian[(o * b.q + i) * size + u * b.q + k] = space.block[i * b.q + k];
    }
}

// x = H^-1 x by Cholesky, both in place; false where H is not positive definite.
inline bool solve_symmetric(double *H, double *x, i64 n) {
  for (i64 j = 0; j < n; j++)
    for (i64 i = j; i < n; i++) {
      double total = H[i * n + j];
      for (i64 k = 0; k < j; k++) total -= H[i * n + k] * H[j * n + k];
      if (i > j) {
        H[i * n + j] = total / H[j * n + j];
      } else {
        if (!(total > 0)) return false;
        H[j * n + j] = __builtin_sqrt(total);
      }
    }
  for (i64 i = 0; i < n; i++) {
    for (i64 k = 0; k < i; k++) x[i] -= H[i * n + k] * x[k];
    x[i] /= H[i * n + i];
  }
  for (i64 i = n - 1; i >= 0; i--) {
    for (i64 k = i + 1; k < n; k++) x[i] -= H[k * n + i] * x[k];
    x[i] /= H[i * n + i];
  }
  return true;
}

// --- Solvers ---

// step = (H + ridge)^-1 gradient. Far out, softmax curvatures underflow: then a little of the
// identity keeps it solvable. False where numbers are too large to square, or none at all.
inline bool newton_step(const OutputBatch &b, double alpha_c, OutputWorkspace &space) {
  const i64 size = b.outputs * b.q;
  for (double ridge = 2.0 * alpha_c; ridge < 1e30;
       ridge = 10.0 * ridge > 1e-10 ? 10.0 * ridge : 1e-10) {
    hessian(b, space);
    for (i64 k = 0; k < size; k++) {
      space.hessian[k * size + k] += ridge;
      space.step[k] = space.gradient[k];
    }
    if (solve_symmetric(space.hessian, space.step, size)) return true;
  }
  return false;
}

// Damped Newton from the given V, in place; returns the number of iterations.
inline i64 newton(const OutputBatch &b, const hdnn_solver &s, double *V, OutputWorkspace &space) {
  constexpr int HALVINGS = 40;
  const i64 size = b.outputs * b.q;
  double value = evaluate(b, V, s.alpha_c, space);
  for (i64 iteration = 0; iteration < s.iterations; iteration++) {
    if (!(gradient(b, V, s.alpha_c, space) > s.tolerance)) return iteration;
    if (!newton_step(b, s.alpha_c, space)) return iteration;
    double slope = 0, length = 1;
    for (i64 k = 0; k < size; k++) slope += space.step[k] * space.gradient[k];
    int halvings = 0;
    for (; halvings < HALVINGS; halvings++, length *= 0.5) {
      for (i64 k = 0; k < size; k++) space.trial[k] = V[k] - length * space.step[k];
      const double trial_value = evaluate(b, space.trial, s.alpha_c, space);
      // The last steps decrease f by less than the rounding of a sum over samples: they are taken
      // whole, since a halved one would depend on the order of the sum.
      if (trial_value <= value - 1e-4 * length * slope + 1e-14 * __builtin_fabs(value)) {
        value = trial_value;
        break;
      }
    }
    if (halvings == HALVINGS) {  // the decrease is below rounding
      evaluate(b, V, s.alpha_c, space);
      return iteration;
    }
    for (i64 k = 0; k < size; k++) V[k] = space.trial[k];
  }
  return s.iterations;
}

// A few steps of Adam from zero, with the usual betas.
inline i64 adam(const OutputBatch &b, const hdnn_solver &s, double *V, OutputWorkspace &space) {
  const i64 size = b.outputs * b.q;
  double *first = space.step, *second = space.second, power1 = 1, power2 = 1;
  for (i64 k = 0; k < size; k++) V[k] = first[k] = second[k] = 0;
  for (i64 t = 0; t < s.iterations; t++) {
    evaluate(b, V, s.alpha_c, space);
    gradient(b, V, s.alpha_c, space);
    power1 *= BETA1, power2 *= BETA2;
    for (i64 k = 0; k < size; k++) {
      const double g = space.gradient[k];
      first[k] = BETA1 * first[k] + (1.0 - BETA1) * g;
      second[k] = BETA2 * second[k] + (1.0 - BETA2) * g * g;
      const double m = first[k] / (1.0 - power1), v = second[k] / (1.0 - power2);
      V[k] -= s.learning_rate * m / (__builtin_sqrt(v) + 1e-8);
    }
  }
  evaluate(b, V, s.alpha_c, space);
  return s.iterations;
}

inline i64 solve_output_layer(const OutputBatch &b, const hdnn_solver &s, double *V,
                              OutputWorkspace &space) {
  return s.solver == HDNN_NEWTON ? newton(b, s, V, space) : adam(b, s, V, space);
}
}  // namespace hdnn::HDNN_ISA
