// Calls the library from four threads at once, each with another number of helpers, on plans that
// they share, and from a forked child. All must find the bits that a single thread found before.
// `make sanitize` builds this file with the sanitizers, whose reports are failures, too.
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <numeric>
#include <thread>
#include <vector>

#include "hdnn.h"

namespace {

// Numbers in (-1/2, 1/2), the same in every run.
template <class T>
std::vector<T> numbers(size_t count, unsigned seed) {
  std::vector<T> out(count);
  for (T &x : out) x = T((seed = seed * 1664525u + 1013904223u) / 4294967296.0 - 0.5);
  return out;
}

// What the calls of one case return, one after another.
struct Bits {
  std::vector<char> bytes;
  template <class T>
  void add(const std::vector<T> &values) {
    const char *first = reinterpret_cast<const char *>(values.data());
    bytes.insert(bytes.end(), first, first + values.size() * sizeof(T));
  }
};

// H1 (one stage with an adjoint) or MS1 (two stages without), of features or of images.
template <class T>
class Network {
 public:
  Network(bool split, int64_t networks, int64_t samples, int64_t pixels)
      : E(networks), B(samples), points(samples * (pixels ? pixels : 1)), half(split ? n / 2 : n) {
    W.resize(half * half), b.resize(n);
    std::iota(W.begin(), W.end(), 1);
    std::iota(b.begin(), b.end(), 1);
    hdnn_stage first = {0, half, n - half, half, half, !split, 1, split ? -1.0 : 1.0, &W[0], &b[0]};
    hdnn_stage second = {half, half, 0, half, half, 0, 1, 1.0, &W[0], &b[half % n]};
    stages[0] = first, stages[1] = second;
    hdnn_problem problem = {};
    problem.itemsize = sizeof(T), problem.networks = E, problem.layers = L, problem.width = n;
    problem.stages = split ? 2 : 1, problem.theta = half * half, problem.beta = n;
    problem.period = L;
    problem.samples = B, problem.pixels = pixels, problem.stage = stages;
    plan = hdnn_plan_new(&problem);
    S.assign(n * n, 0);
    for (int64_t i = 0; i < n / 2; i++) S[i * n + i + n / 2] = 1, S[(i + n / 2) * n + i] = -1;
    theta = numbers<T>(E * L * half * half, 1), beta = numbers<T>(E * L * n, 2);
    x = numbers<T>(E * points * n, 3), gout = numbers<T>(E * points * n, 4);
  }
  ~Network() { hdnn_plan_free(plan); }
  Network(const Network &) = delete;

  // Forward, backward with and without the activations of the way forward, and Jacobians.
  Bits passes(int64_t threads) const {
    std::vector<T> out(x.size()), gx(x.size()), gtheta(theta.size()), gbeta(beta.size());
    const hdnn_values values = {theta.data(), beta.data(), S.data(), h};
    std::vector<T> kept(hdnn_plan_activations(plan) / sizeof(T));
    Bits bits;
    void *const buffers[] = {kept.data(), nullptr};
    for (void *activations : buffers) {
      hdnn_forward(plan, &values, x.data(), out.data(), activations, threads);
      hdnn_backward(plan, &values, x.data(), gout.data(), activations, gx.data(), gtheta.data(),
                    gbeta.data(), threads);
      bits.add(out), bits.add(gx), bits.add(gtheta), bits.add(gbeta);
    }
    hdnn_backward(plan, &values, x.data(), gout.data(), nullptr, gx.data(), nullptr, nullptr,
                  threads);
    bits.add(gx);
    if (points == B) {
      const int64_t depths[] = {0, L / 2, L};
      std::vector<T> states(3 * x.size()), matrices(3 * n * x.size());
      hdnn_jacobians(plan, &values, x.data(), depths, 3, states.data(), matrices.data(), threads);
      bits.add(states), bits.add(matrices);
    }
    return bits;
  }

  // Steps of coordinate or joint descent with two classes; the samples are the first batch.
  Bits train(bool coordinate, int64_t threads) const {
    const int64_t size = L * (half * half + n) + (coordinate ? 0 : n + 1), steps = 4;
    std::vector<T> values = numbers<T>(E * size, 5), first(E * size), second(E * size);
    std::vector<T> gradients(E * size), X = numbers<T>(steps * B * n, 6);
    std::vector<double> target(steps * B), weight(steps * B, 1.0), smooth(E * L, h),
        losses(E * steps * 3);
    std::vector<double> repeats(half * half + n, 1.0), V(E * (n + 1)), rates(steps, 0.05);
    std::vector<int64_t> order(steps * B), taken(E);
    std::iota(order.begin(), order.end(), 0);
    for (int64_t i = 0; i < steps * B; i++) target[i] = X[i * n] * X[i * n + 1] > 0;
    hdnn_training t = {};
    t.coordinate = coordinate, t.loss = HDNN_LOGISTIC, t.outputs = 1;
    t.batch = B, t.count = steps * B, t.shared_data = 1;
    t.alpha = 1e-3, t.output = {HDNN_NEWTON, 10, 1e-4, 1e-8};
    t.X = X.data(), t.target = target.data(), t.weight = weight.data();
    t.smoothness = smooth.data(), t.repeats = repeats.data();
    t.parameters = values.data(), t.first = first.data(), t.second = second.data();
    t.gradients = gradients.data(), t.V = V.data();
    const hdnn_values fixed = {nullptr, nullptr, S.data(), h};
    hdnn_train(plan, &t, &fixed, order.data(), 0, steps, rates.data(), taken.data(), losses.data(),
               threads);
    Bits bits;
    bits.add(values), bits.add(losses), bits.add(V);
    return bits;
  }

 private:
  static constexpr int64_t n = 4, L = 32;
  static constexpr double h = 0.1;
  const int64_t E, B, points, half;
  std::vector<int64_t> W, b;
  hdnn_stage stages[2];
  hdnn_plan *plan;
  std::vector<T> S, theta, beta, x, gout;
};

template <class T>
class Cases {
 public:
  Bits run(int64_t threads) const {
    Bits bits;
    for (const Network<T> *net : {&wide, &split, &images, &small})
      bits.add(net->passes(threads).bytes);
    for (bool coordinate : {false, true}) bits.add(ensemble.train(coordinate, threads).bytes);
    return bits;
  }

 private:
  // All but the small one are large enough for helpers.
  Network<T> wide{false, 1, 20011, 0}, split{true, 3, 9000, 0}, images{false, 1, 30, 784};
  Network<T> ensemble{false, 16, 500, 0}, small{true, 2, 125, 0};
};

template <class T>
int failures() {
  const Cases<T> cases;
  const Bits expected = cases.run(1);
  const auto differs = [&](int64_t threads) { return cases.run(threads).bytes != expected.bytes; };

  int wrong[4] = {};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; caller++)
    callers.emplace_back([&, caller] { wrong[caller] = differs(1 + caller); });
  for (std::thread &caller : callers) caller.join();

  // The child has none of the parent's helpers.
  const pid_t child = fork();
  if (!child) _exit(differs(4));
  int status = -1;
  waitpid(child, &status, 0);
  if (status) fprintf(stderr, "the forked child failed: status %d\n", status);
  return std::accumulate(wrong, wrong + 4, status != 0);
}

}  // namespace

int main() {
  if (!hdnn_instruction_set()) {
    printf("skipped: HDNN_ISA is none of %s\n", hdnn_instruction_sets());
    return 0;
  }
  const int wrong = failures<float>() + failures<double>();
  printf("%s: %s\n", hdnn_instruction_set(), wrong ? "other bits" : "the same bits everywhere");
  return wrong != 0;
}
