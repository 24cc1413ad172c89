// Training without autograd: many steps of Adam on one network in one call.
//
// A step: the samples of a batch go forward and leave Z = (y_N, 1) in double; the output layer
// V = (W, mu) is minimized on them (coordinate descent: V is no weight of the network) or
// differentiated (joint descent: W and mu are weights, and an input projection y_0 = P x + nu may
// be), both by output.h; the gradient of y_N goes back along the activations; penalties are added;
// Adam moves the weights. In: data, their order, weights and moments. Out: the latter, moved, and
// the losses of every batch.
//
// All weights of a network stand in one array, `values`; gradients and moments have the same
// layout. A batch is cut into blocks of samples, stored sample-minor (products.h), and blocks are
// dealt to pieces. A piece adds its gradients to an array of its own: rows of W and b as in
// passes.h, and behind these P and nu. The arrays are added in the order of the pieces. All cuts
// are by shape, so the bits do not depend on the threads, which share the pieces of a network, or
// whole networks where there are several.
#pragma once
#include "output.h"
#include "passes.h"

namespace hdnn::HDNN_ISA {

// Where weights stand in `values`: theta, beta, and in joint descent W, mu, P, nu.
struct Layout {
  i64 rows;                // layers with parameters of their own: L or 1
  i64 beta, W, mu, P, nu;  // first entries
  i64 size;
  Layout(const Program &p, const hdnn_training &t) {
    rows = p.shared ? 1 : p.layers, beta = rows * p.theta, W = beta + rows * p.beta;
    const i64 outputs = t.coordinate ? 0 : t.outputs, inputs = t.coordinate ? 0 : t.inputs;
    mu = W + outputs * p.width, P = mu + outputs, nu = P + p.width * inputs;
    size = nu + (inputs ? p.width : 0);
  }
};

// Memory of a block: rows of its width.
template <class T>
struct BlockRoom {
  T *x, *g, *u, *d;  // state, its gradient, two of passes.h
  T *activations;    // (L activations), of all layers
  T *inputs;         // (inputs), of the projection
  BlockRoom(const TrainCall &c, Carver &memory) {
    const Program &p = *c.program;
    x = memory.take<T>(p.width * c.block), g = memory.take<T>(p.width * c.block);
    u = memory.take<T>(p.width * c.block), d = memory.take<T>(p.hidden * c.block);
    activations = memory.take<T>(p.layers * p.activations * c.block);
    inputs = memory.take<T>(c.training->inputs * c.block);
  }
};

// Memory of a network in training.
template <class T>
struct TrainRoom {
  T *rows;                       // (L, row), assembled weights
  T *partial;                    // (pieces, L row + those of P and nu), gradients
  T *stiffness, *change, *pull;  // (theta and beta), see `smoothness`
  double *Z, *target, *weight;   // a whole batch, see OutputBatch
  double *V;                     // (outputs, n + 1): of joint descent, W and mu in double
  double *covector;              // (n, width): gradient of y_N
  OutputRoom output;
  char *blocks;  // (slots) of block_bytes
  i64 block_bytes;

  static i64 whole_vectors(i64 samples) { return (samples + LANES<T> - 1) / LANES<T> * LANES<T>; }

  TrainRoom(const TrainCall &c, const Layout &at, Carver &memory) {
    const Program &p = *c.program;
    const i64 width = whole_vectors(c.batch), outputs = c.training->outputs;
    output = take_output_room(memory, outputs, p.width + 1, width, c.training->coordinate);
    rows = memory.take<T>(p.layers * p.row);
    partial = memory.take<T>(c.pieces * (p.layers * p.row + at.size - at.P));
    stiffness = memory.take<T>(at.W), change = memory.take<T>(at.W), pull = memory.take<T>(at.W);
    Z = memory.take<double>((p.width + 1) * width), target = memory.take<double>(outputs * width);
    weight = memory.take<double>(width), V = memory.take<double>(outputs * (p.width + 1));
    covector = memory.take<double>(p.width * width);
    Carver block = {0};
    BlockRoom<T>(c, block);
    block_bytes = i64(block.at), blocks = memory.take<char>(c.slots * block_bytes);
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
  const TrainCall &c;
  const Program &p;
  const hdnn_training &t;
  const i64 e, data;  // the network, and whose data it has
  const Layout at;
  TrainRoom<T> room;
  T *values, *first, *second, *gradient;
  double *V;
  const Network<T> net;
  // The batch: its samples, and what makes their weights sum to 1 (0 where they sum to 0).
  const i64 *indices;
  OutputBatch batch;
  double scale;

  Descent(const TrainCall &call, i64 network, Carver memory)
      : c(call),
        p(*call.program),
        t(*call.training),
        e(network),
        data(t.shared_data ? 0 : e),
        at(p, t),
        room(call, at, memory),
        values((T *)t.values + e * at.size),
        first((T *)t.first + e * at.size),
        second((T *)t.second + e * at.size),
        gradient((T *)t.gradients + e * at.size),
        V(t.coordinate ? t.V + e * t.outputs * (p.width + 1) : room.V),
        net{&p,
            values,
            values + at.beta,
            (const T *)c.values.S,
            c.values.h,
            c.values.steps ? c.values.steps + e * p.layers : nullptr,
            c.mixing,
            room.rows} {
    const double *h = t.steps + e * p.layers;
    for (i64 j = 0; j < at.rows; j++) {
      for (i64 k = 0; k < p.theta; k++)
        room.stiffness[j * p.theta + k] = T(t.alpha * h[j] * t.repeats[k]);
      for (i64 k = 0; k < p.beta; k++)
        room.stiffness[at.beta + j * p.beta + k] = T(t.alpha * h[j] * t.repeats[p.theta + k]);
    }
  }

  // Targets and weights of a batch; idle lanes repeat the last sample with weight 0.
  void choose_batch(i64 number) {
    const i64 begin = (c.from + number) * t.batch, samples = smaller(t.batch, t.count - begin);
    indices = c.order + data * t.count + begin;
    batch = {t.loss, t.outputs,   p.width + 1, samples, room.whole_vectors(samples),
             room.Z, room.target, room.weight};
    const i64 targets = t.loss == HDNN_SQUARED ? t.outputs : 1;
    const double *weight = t.weight + data * t.count, *target = t.target + data * t.count * targets;
    double total = 0;
    for (i64 k = 0; k < samples; k++) total += weight[indices[k]];
    scale = total > 0 ? 1.0 / total : 0.0;
    for (i64 k = 0; k < batch.width; k++) {
      const i64 i = indices[smaller(k, samples - 1)];
      for (i64 o = 0; o < targets; o++) room.target[o * batch.width + k] = target[i * targets + o];
      room.weight[k] = k < samples ? weight[i] * scale : 0.0;
    }
    fill<double>(room.Z + p.width * batch.width, batch.width, 1.0);
  }

  // --- blocks ---

  // Part of a batch, with its memory, and where its gradients are added.
  struct Block {
    i64 first, samples, width;
    BlockRoom<T> room;
    T *rows, *projection;
  };
  typedef void (Descent::*Phase)(const Block &);
  Phase phase;
  T *partial_of(i64 piece) const {
    return room.partial + piece * (p.layers * p.row + at.size - at.P);
  }

  // One phase of a step, on all blocks of the batch.
  void for_all_blocks(Phase next) {
    phase = next;
    const auto work = [](void *self, i64 piece, i64 worker) {
      ((Descent *)self)->for_blocks_of(piece, worker);
    };
    parallel_for(c.pieces, c.threads, work, this);
  }
  void for_blocks_of(i64 piece, i64 worker) {
    const i64 blocks = (batch.samples + c.block - 1) / c.block;
    T *rows = partial_of(piece), *projection = rows + p.layers * p.row;
    fill<T>(rows, p.layers * p.row + at.size - at.P, T(0));
    const i64 begin = piece * blocks / c.pieces, end = (piece + 1) * blocks / c.pieces;
    for (i64 turn = begin; turn < end; turn++) {
      // The last blocks of the way forward are still in the cache on the way back.
      const i64 k = phase == &Descent::backward ? begin + end - 1 - turn : turn;
      const i64 samples = smaller(c.block, batch.samples - k * c.block);
      Carver memory = {(uintptr_t)room.blocks + (c.keep ? k : worker) * room.block_bytes};
      const BlockRoom<T> own(c, memory);
      (this->*phase)({k * c.block, samples, room.whole_vectors(samples), own, rows, projection});
    }
  }

  // Idle lanes repeat the last sample.
  void read_samples(const Block &b, i64 features, T *to) const {
    const T *X = (const T *)t.X + data * t.count * features;
    for (i64 k = 0; k < b.width; k++) {
      const T *line = X + indices[b.first + smaller(k, b.samples - 1)] * features;
      for (i64 f = 0; f < features; f++) to[f * b.width + k] = line[f];
    }
  }
  void forward(const Block &b) {
    const BlockRoom<T> &r = b.room;
    read_samples(b, t.inputs ? t.inputs : p.width, t.inputs ? r.inputs : r.x);
    if (t.inputs)
      product<T, BIAS>({values + at.P, t.inputs, 1}, p.width, t.inputs, r.inputs,
                       {r.x, values + at.nu}, b.width);
    advance<T, true>(net, 0, p.layers, r.x, r.activations, r.d, r.u, b.width);
    convert<T, double>(r.x, b.width, room.Z + b.first, batch.width, p.width, b.width);
  }
  void backward(const Block &b) {
    const BlockRoom<T> &r = b.room;
    if (!c.keep) forward(b);
    convert<double, T>(room.covector + b.first, batch.width, r.g, b.width, p.width, b.width);
    retreat<T, true>(net, 0, p.layers, r.g, r.activations, r.d, r.u, b.width, b.rows);
    if (!t.inputs) return;
    const Pair<T> pair = {r.g, r.inputs};
    gram<T>(&pair, 1, p.width, t.inputs, b.width, b.projection);
    for (i64 f = 0; f < p.width; f++) {
      Vec<T> total[1] = {};
      for (i64 k = 0; k < b.width; k += LANES<T>) total[0] += load<T>(r.g + f * b.width + k);
      add_totals<T, 1, 1>(total, b.projection + p.width * t.inputs + f, 0);
    }
  }

  // --- the output layer ---

  // f of output.h: minimized over V (coordinate descent), or evaluated with its gradient (joint).
  double output_layer() {
    const i64 n = p.width, q = batch.q;
    const double alpha_c = t.output.alpha_c;
    if (t.coordinate) {
      solve_output_layer(batch, t.output, V, room.output);
      return room.output.loss + alpha_c * squared_norm(V, t.outputs * q);
    }
    const double value = evaluate(batch, V, alpha_c, room.output);
    hdnn::HDNN_ISA::gradient(batch, V, alpha_c, room.output);
    convert<double, T>(room.output.gradient, q, gradient + at.W, n, t.outputs, n);
    convert<double, T>(room.output.gradient + n, q, gradient + at.mu, 1, t.outputs, 1);
    return value;
  }
  // How many samples V classifies correctly, in room that is free again.
  double correct() {
    logits_of(batch, V, room.output.probability);
    return double(count_correct(batch, room.output.probability));
  }

  // --- the step ---

  // Gradients of the hidden layers and of the projection: those of all pieces together.
  void add_up_gradients() {
    const i64 rows = p.layers * p.row, projection = at.size - at.P;
    T *total = room.partial;
    for (i64 piece = 1; piece < c.pieces; piece++)
      for (i64 k = 0; k < rows + projection; k++) total[k] += partial_of(piece)[k];
    fill<T>(gradient, at.W, T(0));
    scatter_gradients<T>(p, total, gradient, gradient + at.beta);
    for (i64 k = 0; k < projection; k++) gradient[at.P + k] = total[rows + k];
  }
  double add_smoothness() {
    if (!(t.alpha > 0)) return 0;
    return smoothness<T>(values, at.rows, p.theta, room.stiffness, room.change, room.pull,
                         gradient) +
           smoothness<T>(values + at.beta, at.rows, p.beta, room.stiffness + at.beta, room.change,
                         room.pull, gradient + at.beta);
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
    T *__restrict w = values, *__restrict m = first, *__restrict v = second;
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
      convert<T, double>(values + at.W, p.width, V, batch.q, t.outputs, p.width);
      convert<T, double>(values + at.mu, 1, V + p.width, batch.q, t.outputs, 1);
    }
    for_all_blocks(&Descent::forward);
    losses[0] = losses[1] = 0;
    if (scale > 0) {
      losses[1] = output_layer();
      losses[0] = room.output.loss;
      product<double, FRESH>({V, 1, batch.q}, p.width, t.outputs, room.output.residual,
                             {room.covector}, batch.width);
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
static i64 train_bytes(const TrainCall *c) {
  Carver memory = {0};
  TrainRoom<T>(*c, Layout(*c->program, *c->training), memory);
  return i64(memory.at);
}

template <class T>
static void train_prepare(TrainCall *c) {
  find_mixing<T>(*c->program, (const T *)c->values.S, c->mixing);
}

// All steps of one network, in the memory of one worker.
template <class T>
static void train(void *call, i64 network, i64 worker) {
  const TrainCall &c = *(const TrainCall *)call;
  Descent<T>(c, network, {(uintptr_t)c.rooms + worker * c.room_bytes}).run();
}
}  // namespace hdnn::HDNN_ISA
