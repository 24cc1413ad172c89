// Training without autograd: many steps of Adam on one network in one call.
//
// A step: the samples of a batch go forward and leave Z = (y_N, 1) in double; the output layer
// V = (W, mu) is minimized on them (coordinate descent: V is no weight of the network) or
// differentiated (joint descent: W and mu are weights, and an input projection y_0 = P x + nu may
// be), both by output.h; the gradient of y_N goes back along the activations; penalties are added;
// Adam moves the weights. In: data, their order, weights and moments. Out: the latter, moved, and
// the losses of every batch.
//
// All weights of a network stand in one array, `parameters`; gradients and moments have the same
// layout. A batch is cut into blocks of samples, stored sample-minor (products.h), and blocks are
// dealt to pieces. A piece adds its gradients to an array of its own: rows of W and b as in
// passes.h, and behind these P and nu. The arrays are added in the order of the pieces. All cuts
// are by shape, so the bits do not depend on the threads, which share the pieces of a network, or
// whole networks where there are several.
#pragma once
#include "../passes.h"
#include "output.h"

namespace hdnn::HDNN_ISA {

// Where weights stand in `parameters`: theta, beta, and in joint descent W, mu, P, nu.
struct Offsets {
  i64 beta, W, mu, P, nu;  // first entries
  i64 size;
  Offsets(const Program &p, const hdnn_training &t) {
    beta = p.period * p.theta, W = beta + p.period * p.beta;
    const i64 outputs = t.coordinate ? 0 : t.outputs, inputs = t.coordinate ? 0 : t.inputs;
    mu = W + outputs * p.width, P = mu + outputs, nu = P + p.width * inputs;
    size = nu + (inputs ? p.width : 0);
  }
};

// Memory of a network in training.
template <class T>
struct TrainingWorkspace {
  T *rows;                       // (period, row), assembled weights
  T *partial;                    // (pieces, period row + those of P and nu), gradients
  T *stiffness, *change, *pull;  // (theta and beta), see `smoothness`
  double *Z, *target, *weight;   // a whole batch, see OutputBatch
  double *V;                     // (outputs, n + 1): of joint descent, W and mu in double
  double *covector;              // (n, width): gradient of y_N
  OutputWorkspace output;
  T *blocks;  // (all blocks, or threads) of p.scratch; the extra rows are inputs of the projection

  TrainingWorkspace(const TrainingCall &c, const Offsets &at, BumpAllocator &memory) {
    const Program &p = *c.program;
    const i64 width = whole_vectors(p, p.points), outputs = c.training->outputs;
    output = take_output_workspace(memory, outputs, p.width + 1, width, c.training->coordinate);
    rows = memory.take<T>(p.period * p.row);
    partial = memory.take<T>(p.pieces * (p.period * p.row + at.size - at.P));
    stiffness = memory.take<T>(at.W), change = memory.take<T>(at.W), pull = memory.take<T>(at.W);
    Z = memory.take<double>((p.width + 1) * width), target = memory.take<double>(outputs * width);
    weight = memory.take<double>(width), V = memory.take<double>(outputs * (p.width + 1));
    covector = memory.take<double>(p.width * width);
    blocks = memory.take<T>((c.keep ? p.blocks : c.threads) * p.scratch);
  }
};

INLINE float square_root(float a) { return __builtin_sqrtf(a); }
INLINE double square_root(double a) { return __builtin_sqrt(a); }

template <class T>
static double dot(const T *a, const T *b, i64 count) {
  Vec<T> lanes = {};
  i64 k = 0;
  for (; k + LANES<T> <= count; k += LANES<T>) lanes += load<T>(a + k) * load<T>(b + k);
  double total = 0;
  for (int i = 0; i < LANES<T>; i++) total += lanes[i];
  for (; k < count; k++) total += a[k] * b[k];
  return total;
}

// Rows of numbers of one type to rows of another, `from_row` and `to_row` numbers apart.
template <class From, class To>
static void convert(const From *from, i64 from_row, To *to, i64 to_row, i64 rows, i64 width) {
  for (i64 i = 0; i < rows; i++)
    for (i64 p = 0; p < width; p++) to[i * to_row + p] = To(from[i * from_row + p]);
}

// alpha/2 sum_jk h_j repeats_k (theta_jk - theta_{j-1,k})^2 of theta (rows, columns), where
// stiffness_jk = alpha h_j repeats_k; its gradient is added to g.
template <class T>
static double smoothness(const T *theta, i64 rows, i64 columns, const T *stiffness, T *change,
                         T *pull, T *g) {
  const i64 count = (rows - 1) * columns;
  for (i64 k = 0; k < count; k++) {
    change[k] = theta[columns + k] - theta[k];
    pull[k] = stiffness[columns + k] * change[k];
  }
  for (i64 k = 0; k < count; k++) g[columns + k] += pull[k];
  for (i64 k = 0; k < count; k++) g[k] -= pull[k];
  return 0.5 * dot<T>(pull, change, count);
}

// One network in training.
template <class T>
struct Descent {
  const TrainingCall &c;
  const Program &p;
  const hdnn_training &t;
  const i64 e, data;  // the network, and whose data it has
  const Offsets at;
  TrainingWorkspace<T> space;
  T *parameters, *first, *second, *gradient;
  double *V;
  const Network<T> net;
  // The batch: its samples, and what makes their weights sum to 1 (0 where they sum to 0).
  const i64 *indices;
  OutputBatch batch;
  double scale;

  Descent(const TrainingCall &call, i64 network, BumpAllocator memory)
      : c(call),
        p(*call.program),
        t(*call.training),
        e(network),
        data(t.shared_data ? 0 : e),
        at(p, t),
        space(call, at, memory),
        parameters((T *)t.parameters + e * at.size),
        first((T *)t.first + e * at.size),
        second((T *)t.second + e * at.size),
        gradient((T *)t.gradients + e * at.size),
        V(t.coordinate ? t.V + e * t.outputs * (p.width + 1) : space.V),
        net{&p,
            parameters,
            parameters + at.beta,
            (const T *)c.values.S,
            c.values.h,
            c.values.steps ? c.values.steps + e * p.layers : nullptr,
            c.structure,
            space.rows} {
    const double *h = t.smoothness + e * p.layers;
    for (i64 j = 0; j < p.period; j++) {
      for (i64 k = 0; k < p.theta; k++)
        space.stiffness[j * p.theta + k] = T(t.alpha * h[j] * t.repeats[k]);
      for (i64 k = 0; k < p.beta; k++)
        space.stiffness[at.beta + j * p.beta + k] = T(t.alpha * h[j] * t.repeats[p.theta + k]);
    }
  }

  // Targets and weights of a batch; idle lanes repeat the last sample with weight 0.
  void choose_batch(i64 number) {
    const i64 begin = (c.from + number) * t.batch, samples = smaller(t.batch, t.count - begin);
    indices = c.order + data * t.count + begin;
    batch = {t.loss,  t.outputs,    p.width + 1, samples, whole_vectors(p, samples),
             space.Z, space.target, space.weight};
    const i64 targets = t.loss == HDNN_SQUARED ? t.outputs : 1;
    const double *weight = t.weight + data * t.count, *target = t.target + data * t.count * targets;
    double total = 0;
    for (i64 k = 0; k < samples; k++) total += weight[indices[k]];
    scale = total > 0 ? 1.0 / total : 0.0;
    for (i64 k = 0; k < batch.width; k++) {
      const i64 i = indices[smaller(k, samples - 1)];
      for (i64 o = 0; o < targets; o++) space.target[o * batch.width + k] = target[i * targets + o];
      space.weight[k] = k < samples ? weight[i] * scale : 0.0;
    }
    fill<double>(space.Z + p.width * batch.width, batch.width, 1.0);
  }

  // --- blocks ---

  // A block of the batch, with its memory, and where its gradients are added.
  struct Task {
    Block block;
    Workspace<T> space;
    T *rows, *projection;
  };
  typedef void (Descent::*Phase)(const Task &);
  Phase phase;
  T *partial_of(i64 piece) const {
    return space.partial + piece * (p.period * p.row + at.size - at.P);
  }

  // One phase of a step, on all blocks of the batch.
  void for_all_blocks(Phase next) {
    phase = next;
    const auto work = [](void *self, i64 piece, i64 worker) {
      ((Descent *)self)->for_blocks_of(piece, worker);
    };
    parallel_for(p.pieces, c.threads, work, this);
  }
  void for_blocks_of(i64 piece, i64 worker) {
    const i64 blocks = (batch.samples + p.block - 1) / p.block;
    T *rows = partial_of(piece), *projection = rows + p.period * p.row;
    fill<T>(rows, p.period * p.row + at.size - at.P, T(0));
    const i64 begin = piece * blocks / p.pieces, end = (piece + 1) * blocks / p.pieces;
    for (i64 turn = begin; turn < end; turn++) {
      // The last blocks of the way forward are still in the cache on the way back.
      const i64 k = phase == &Descent::backward ? begin + end - 1 - turn : turn;
      const Block block = block_at(p, k, batch.samples);
      T *memory = space.blocks + (c.keep ? k : worker) * p.scratch;
      (this->*phase)({block, Workspace<T>(p, memory, block.width), rows, projection});
    }
  }

  // Idle lanes repeat the last sample.
  void read_samples(const Block &b, i64 features, T *to) const {
    const T *X = (const T *)t.X + data * t.count * features;
    for (i64 k = 0; k < b.width; k++) {
      const T *line = X + indices[b.first + smaller(k, b.points - 1)] * features;
      for (i64 f = 0; f < features; f++) to[f * b.width + k] = line[f];
    }
  }
  void forward(const Task &task) {
    const Workspace<T> &s = task.space;
    const i64 width = task.block.width;
    read_samples(task.block, t.inputs ? t.inputs : p.width, t.inputs ? s.extra : s.x);
    if (t.inputs)
      product<T, BIAS>({parameters + at.P, t.inputs, 1}, p.width, t.inputs, s.extra,
                       {s.x, parameters + at.nu}, width);
    advance<T, true>(net, 0, p.layers, s, s.activations);
    convert<T, double>(s.x, width, space.Z + task.block.first, batch.width, p.width, width);
  }
  void backward(const Task &task) {
    const Workspace<T> &s = task.space;
    const i64 width = task.block.width;
    if (!c.keep) forward(task);
    convert<double, T>(space.covector + task.block.first, batch.width, s.g, width, p.width, width);
    backpropagate<T, true>(net, 0, p.layers, s, s.g, s.activations, task.rows);
    if (!t.inputs) return;
    const Pair<T> pair = {s.g, s.extra};
    gram<T>(&pair, 1, p.width, t.inputs, width, task.projection);
    for (i64 f = 0; f < p.width; f++) {
      Vec<T> total[1] = {};
      for (i64 k = 0; k < width; k += LANES<T>) total[0] += load<T>(s.g + f * width + k);
      add_totals<T, 1, 1>(total, task.projection + p.width * t.inputs + f, 0);
    }
  }

  // --- the output layer ---

  // f of output.h: minimized over V (coordinate descent), or evaluated with its gradient (joint).
  double output_layer() {
    const i64 n = p.width, q = batch.q;
    const double alpha_c = t.output.alpha_c;
    if (t.coordinate) {
      solve_output_layer(batch, t.output, V, space.output);
      return space.output.loss + alpha_c * squared_norm(V, t.outputs * q);
    }
    const double value = evaluate(batch, V, alpha_c, space.output);
    hdnn::HDNN_ISA::gradient(batch, V, alpha_c, space.output);
    convert<double, T>(space.output.gradient, q, gradient + at.W, n, t.outputs, n);
    convert<double, T>(space.output.gradient + n, q, gradient + at.mu, 1, t.outputs, 1);
    return value;
  }
  // How many samples V classifies correctly, in memory that is free again.
  double correct() {
    logits_of(batch, V, space.output.probability);
    return double(count_correct(batch, space.output.probability));
  }

  // --- the step ---

  // Gradients of the hidden layers and of the projection: those of all pieces together.
  void add_up_gradients() {
    const i64 rows = p.period * p.row, projection = at.size - at.P;
    T *total = space.partial;
    for (i64 piece = 1; piece < p.pieces; piece++)
      for (i64 k = 0; k < rows + projection; k++) total[k] += partial_of(piece)[k];
    for (i64 j = 0; j < p.period; j++)
      scatter_gradients<T>(p, total + j * p.row, gradient + j * p.theta,
                           gradient + at.beta + j * p.beta);
    for (i64 k = 0; k < projection; k++) gradient[at.P + k] = total[rows + k];
  }
  double add_smoothness() {
    if (!(t.alpha > 0)) return 0;
    return smoothness<T>(parameters, p.period, p.theta, space.stiffness, space.change, space.pull,
                         gradient) +
           smoothness<T>(parameters + at.beta, p.period, p.beta, space.stiffness + at.beta,
                         space.change, space.pull, gradient + at.beta);
  }
  // What brings the norm of the gradient down to `clip`.
  double shrinking() const {
    if (!(t.clip > 0)) return 1.0;
    const double factor = t.clip / (__builtin_sqrt(dot<T>(gradient, gradient, at.size)) + 1e-6);
    return factor < 1.0 ? factor : 1.0;
  }
  // Adam, or AdamW; coordinate descent has no weight decay.
  void move(double learning_rate) {
    const double updates = double(++c.updates[e]),
                 weight_decay = t.coordinate ? 0.0 : t.weight_decay;
    const T correction = T(1.0 / __builtin_sqrt(1.0 - __builtin_pow(BETA2, updates)));
    const T rate = T(learning_rate / (1.0 - __builtin_pow(BETA1, updates)));
    const T keep = T(t.decoupled ? 1.0 - learning_rate * weight_decay : 1.0);
    const T decay = T(t.decoupled ? 0.0 : weight_decay), shrink = T(shrinking());
    const T a = T(1.0 - BETA1), b = T(BETA2), rest = T(1.0 - BETA2), tiny = T(1e-8);
    T *__restrict w = parameters, *__restrict m = first, *__restrict v = second;
    const T *__restrict g = gradient;
    for (i64 k = 0; k < at.size; k++) {
      const T d = shrink * g[k] + decay * w[k];
      m[k] += a * (d - m[k]);
      v[k] = b * v[k] + rest * d * d;
      w[k] = keep * w[k] - rate * m[k] / (square_root(v[k]) * correction + tiny);
    }
  }

  // One batch, and its losses. False where they are not finite: then the weights stay.
  bool step(i64 number, double *losses) {
    choose_batch(number);
    assemble<T>(net);
    if (!t.coordinate) {
      convert<T, double>(parameters + at.W, p.width, V, batch.q, t.outputs, p.width);
      convert<T, double>(parameters + at.mu, 1, V + p.width, batch.q, t.outputs, 1);
    }
    for_all_blocks(&Descent::forward);
    losses[0] = losses[1] = 0;
    if (scale > 0) {
      losses[1] = output_layer();
      losses[0] = space.output.loss;
      product<double, FRESH>({V, 1, batch.q}, p.width, t.outputs, space.output.residual,
                             {space.covector}, batch.width);
    }
    losses[2] = correct();
    if (!(scale > 0)) return true;  // nothing counts: no step
    for_all_blocks(&Descent::backward);
    add_up_gradients();
    losses[1] += add_smoothness();
    if (losses[1] - losses[1] != 0) return false;
    move(c.rates[number]);
    return true;
  }
  void run() {
    double *losses = c.losses + e * c.count * 3;
    i64 number = 0;
    while (number < c.count && step(number, losses + 3 * number)) number++;
    for (i64 k = 3 * (number + 1); k < 3 * c.count; k++) losses[k] = __builtin_nan("");
  }
};

template <class T>
static i64 training_bytes(const TrainingCall *c) {
  BumpAllocator memory = {0};
  TrainingWorkspace<T>(*c, Offsets(*c->program, *c->training), memory);
  return i64(memory.at);
}

template <class T>
static void prepare_training(TrainingCall *c) {
  classify_S<T>(*c->program, (const T *)c->values.S, c->structure);
}

// All steps of one network, in the memory of one worker.
template <class T>
static void train(void *call, i64 network, i64 worker) {
  const TrainingCall &c = *(const TrainingCall *)call;
  Descent<T>(c, network, {(uintptr_t)c.workspaces + worker * c.workspace_bytes}).run();
}
}  // namespace hdnn::HDNN_ISA
