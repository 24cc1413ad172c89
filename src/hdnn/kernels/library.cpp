// The C interface: plans, how a call is cut, the memory it needs, and who does what.
#include <stdlib.h>
#include <string.h>

#include <cmath>
#include <memory>
#include <new>
#include <vector>

#include "pool.h"
#include "program.h"

// A program with the memory that its stages point to.
struct hdnn_plan : hdnn::Program {
  std::vector<hdnn::Stage> stage_list;
  std::vector<hdnn::i64> wires;
};

namespace hdnn {

static i64 divided_up(i64 a, i64 b) { return (a + b - 1) / b; }

// --- instruction sets --------------------------------------------------------------------------

namespace baseline {
extern const Kernels kernels[2];
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kernels[2];
}
namespace avx512 {
extern const Kernels kernels[2];
}
#endif

struct InstructionSet {
  const char *name;
  const Kernels *kernels;
};

// The best that the processor has, the system saves the registers of, and HDNN_ISA allows.
static InstructionSet best_instruction_set() {
#if defined(__x86_64__)
  const char *wish = getenv("HDNN_ISA");
  const bool want_avx512 = !wish || !strcmp(wish, "avx512");
  const bool want_avx2 = want_avx512 || !strcmp(wish, "avx2");
  __builtin_cpu_init();  // this runs before the constructor that would do it
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (want_avx512 && has_avx2 && has_avx512) return {"avx512", avx512::kernels};
  if (want_avx2 && has_avx2) return {"avx2", avx2::kernels};
#endif
  return {"baseline", baseline::kernels};
}
static const InstructionSet instruction_set = best_instruction_set();

static const Kernels &kernels_of(i64 itemsize) { return instruction_set.kernels[itemsize == 8]; }

// --- memory ------------------------------------------------------------------------------------

// Memory of a call. It stays with the thread for its next call, as fresh pages are slow to touch.
struct Arena {
  static constexpr std::align_val_t LINE{64};  // of the cache
  void *data = nullptr;
  size_t bytes = 0;
  ~Arena() { operator delete(data, LINE); }
  bool grow(size_t wanted) {
    if (wanted <= bytes) return true;
    operator delete(data, LINE);
    data = operator new(wanted, LINE, std::nothrow);
    bytes = data ? wanted : 0;
    return data;
  }
};
static thread_local Arena arena;

// Calls lay_out twice: to find how much it takes, and to take it. False: there is no memory.
template <class LayOut>
static bool take_memory(LayOut lay_out) {
  Carver memory = {0};
  lay_out(memory);
  if (!arena.grow(memory.at)) return false;
  memory = {reinterpret_cast<uintptr_t>(arena.data)};
  lay_out(memory);
  return true;
}
static Mixing take_mixing(const Program &p, Carver &memory) {
  return {memory.take<Kind>(p.stages), memory.take<i64>(p.mixed),
          memory.take<char>(p.mixed * p.itemsize)};
}

// --- plans -------------------------------------------------------------------------------------

// The first parameter if all entries are parameters in their own order, else -1.
static i64 first_of_run(const i64 *wire, i64 count) {
  for (i64 k = 0; k < count; k++)
    if (wire[k] < 1 || wire[k] != wire[0] + k) return -1;
  return count ? wire[0] - 1 : 0;
}

static void lay_out_stages(hdnn_plan &p, const hdnn_stage *stages) {
  i64 entries = 0;
  for (i64 k = 0; k < p.stages; k++) entries += stages[k].units * (stages[k].reads + 1);
  p.wires.reserve(entries);
  for (i64 k = 0; k < p.stages; k++) {
    Stage s = {stages[k]};
    const auto keep = [&p](const i64 *&wire, i64 count) {  // a copy of what the caller frees
      p.wires.insert(p.wires.end(), wire, wire + count);
      wire = p.wires.data() + p.wires.size() - count;
      return first_of_run(wire, count);
    };
    s.first_W = keep(s.W, s.units * s.reads), s.first_b = keep(s.b, s.units);
    p.gathers = p.gathers || s.first_W < 0 || s.first_b < 0;
    s.at_W = p.row, s.at_b = s.at_W + s.units * s.reads, p.row = s.at_b + s.units;
    s.at_mixing = p.mixed, p.mixed += s.reads;
    if (s.units == s.reads && s.units == s.writes && (s.units == 2 || s.units == 4) && s.carry)
      s.square = s.units;
    p.hidden = std::max({p.hidden, s.units, s.reads});
    p.activations += s.reads + s.units;
    p.work += double(p.layers) * p.networks * p.groups * p.group *
              (2 * s.units * (s.reads + (s.adjoint ? s.writes : 1)) + 20 * s.units);
    p.stage_list.push_back(s);
  }
  p.stage = p.stage_list.data();
}

// Blocks of about so many vectors of samples, alike, as a short last one would take as long as a
// full one, and even, as vectors are multiplied in pairs; segments of so many layers; and `extra`
// rows of a block beside those of passes.h. Returns the bytes of a block.
static i64 tile(Program &p, i64 vectors, i64 segment, i64 extra) {
  const i64 all = std::max<i64>(1, divided_up(p.group, p.lanes));
  const i64 each = divided_up(all, std::max<i64>(1, (all + vectors / 2) / vectors));
  p.block = (each > 1 ? each + each % 2 : 1) * p.lanes;
  p.segment = segment, p.segments = std::max<i64>(1, divided_up(p.layers, segment));
  const i64 rows = 3 * p.width + p.hidden + p.segments * p.width + segment * p.activations + extra;
  p.scratch = divided_up(rows * p.block * p.itemsize, 64) * 64 / p.itemsize;
  p.blocks = p.groups * divided_up(p.group, p.block);
  return p.scratch * p.itemsize;
}
// Saved states and activations of a segment of so many layers take the same memory.
static i64 balanced_segment(const Program &p) {
  const double ratio = double(p.layers) * p.width / std::max<i64>(1, p.activations);
  return std::max<i64>(1, std::lround(std::sqrt(ratio)));
}

// Best first: all activations at once within a core's share of the caches, also with fewer samples;
// else states at the begin of segments are saved, and the backward pass goes forward twice.
static void tile_passes(Program &p) {
  constexpr i64 PARTIAL_SUMS = 512 << 10, CHUNKS = 16;
  // Of wide layers a second forward pass costs more than memory beyond the nearest cache.
  const i64 cache = p.width < 16 ? 768 << 10 : 3 << 20;
  const i64 narrow = 64 / (p.lanes * p.itemsize);  // as many samples on machines of short vectors
  const i64 all = std::max<i64>(1, p.layers), balanced = balanced_segment(p);
  const i64 options[][2] = {{16, all},     {8, all},      {4, all},
                            {4, balanced}, {2, balanced}, {1, balanced}};
  for (const auto &[vectors, segment] : options)
    if (tile(p, vectors * narrow, segment, 0) <= cache) break;
  const i64 sums = std::max<i64>(1, p.networks * p.layers * p.row * p.itemsize);
  const i64 most = std::max<i64>(2, PARTIAL_SUMS / sums);
  const i64 wanted = divided_up(CHUNKS, std::max<i64>(1, p.networks));
  p.pieces = std::max<i64>(1, std::min({p.blocks, wanted, most}));
}

constexpr i64 MOST_BYTES = 512;  // of a row of a block: a layer's few rows stay in the first cache

// Activations of all layers would crowd out the matrices: saving states costs one forward pass
// more, little beside n backward passes.
static Program tile_jacobians(Program p) {
  constexpr i64 CACHE = 512 << 10;
  for (i64 vectors = MOST_BYTES / (p.lanes * p.itemsize); vectors > 0; vectors /= 2)
    if (tile(p, vectors, balanced_segment(p), p.width * p.width) <= CACHE) break;
  p.pieces = std::max<i64>(1, std::min(p.blocks, divided_up(16, p.networks)));
  return p;
}

// --- calls -------------------------------------------------------------------------------------

// How many threads are worth their start for so many operations.
static i64 threads_for(double work, i64 threads) {
  constexpr double SERIAL = 3e7;  // 0.2 to 0.5 ms
  return work < SERIAL || threads < 1 ? 1 : threads;
}

static int run(Call c, Work work, double operations, i64 threads) {
  const Program &p = *c.program;
  const Kernels &kernels = kernels_of(p.itemsize);
  const i64 chunks = p.networks * p.pieces;
  threads = std::min(threads_for(operations, threads), std::max<i64>(1, chunks));
  const auto lay_out = [&](Carver &memory) {
    const i64 rows = p.layers * p.row * p.itemsize;
    c.mixing = take_mixing(p, memory);
    c.rows = memory.take<char>(p.gathers ? p.networks * rows : 0);
    c.grads = memory.take<char>(c.gtheta ? chunks * rows : 0);
    c.scratch = memory.take<char>(threads * p.scratch * p.itemsize);
  };
  if (!take_memory(lay_out)) return 1;
  kernels.prepare(&c);
  parallel_for(chunks, threads, work, &c);
  for (i64 e = 0; c.gtheta && e < p.networks; e++) kernels.collect(&c, e);
  return 0;
}

// Pieces of a batch, by shape alone, so as many for any number of threads: each of at least four
// vectors and some 50 us of work, as a helper may lose its core and everybody then waits for it. An
// even number, which two threads share well.
static void cut_batch(TrainCall &c) {
  constexpr double WORTHWHILE = 6e6, MOST_PIECES = 8;
  const Program &p = *c.program;
  const i64 vectors = std::max<i64>(1, divided_up(c.batch, p.lanes));
  const double samples = double(std::max<i64>(1, p.networks * p.groups * p.group));
  const double work = 3 * p.work / samples * double(c.batch);
  c.pieces = std::max<i64>(1, std::min(i64(std::min(work / WORTHWHILE, MOST_PIECES)), vectors / 4));
  c.pieces -= c.pieces > 1 ? c.pieces % 2 : 0;
  c.block = std::min(divided_up(vectors, c.pieces), MOST_BYTES / (p.lanes * p.itemsize)) * p.lanes;
}

static int run(TrainCall c, i64 threads) {
  constexpr i64 KEEP = 32 << 20;  // bytes of activations beyond which they are computed again
  const Program &p = *c.program;
  const Kernels &kernels = kernels_of(p.itemsize);
  cut_batch(c);
  threads = std::max<i64>(1, threads);
  const i64 workers = std::min(threads, p.networks);
  c.threads = p.networks > 1 ? 1 : std::min(threads, c.pieces);
  const i64 blocks = divided_up(c.batch, c.block);
  c.keep = blocks * c.block * p.layers * p.activations * p.itemsize <= KEEP;
  c.slots = c.keep ? blocks : c.threads;
  c.room_bytes = kernels.train_bytes(&c);
  const auto lay_out = [&](Carver &memory) {
    c.mixing = take_mixing(p, memory);
    c.rooms = memory.take<char>(workers * c.room_bytes);
  };
  if (!take_memory(lay_out)) return 1;
  kernels.train_prepare(&c);
  parallel_for(p.networks, workers, kernels.train, &c);
  return 0;
}
}  // namespace hdnn

using namespace hdnn;

hdnn_plan *hdnn_plan_new(const hdnn_problem *problem) try {
  auto p = std::make_unique<hdnn_plan>();
  static_cast<hdnn_problem &>(*p) = *problem;
  p->groups = p->pixels ? p->samples : 1, p->group = p->pixels ? p->pixels : p->samples;
  p->lanes = kernels_of(p->itemsize).bytes / p->itemsize;
  lay_out_stages(*p, problem->stage);
  tile_passes(*p);
  return p.release();
} catch (const std::bad_alloc &) {
  return nullptr;
}
void hdnn_plan_free(hdnn_plan *p) { delete p; }

int hdnn_forward(const hdnn_plan *p, const hdnn_values *values, const void *x, void *out,
                 int64_t threads) {
  return run({p, *values, x, nullptr, out}, kernels_of(p->itemsize).forward, p->work, threads);
}

int hdnn_backward(const hdnn_plan *p, const hdnn_values *values, const void *x, const void *gout,
                  void *gx, void *gtheta, void *gbeta, int64_t threads) {
  const Call c = {p, *values, x, gout, gx, gtheta, gbeta};
  return run(c, kernels_of(p->itemsize).backward, 4 * p->work, threads);
}

int hdnn_jacobians(const hdnn_plan *plan, const hdnn_values *values, const void *x,
                   const int64_t *depths, int64_t count, void *states, void *matrices,
                   int64_t threads) {
  const Program p = tile_jacobians(*plan);
  Call c = {&p, *values, x};
  c.depths = depths, c.count = count, c.states = states, c.matrices = matrices;
  return run(c, kernels_of(p.itemsize).jacobians, double(1 + p.width) * p.work, threads);
}

int hdnn_singular_values(const double *matrices, int64_t n, int64_t count, double *largest,
                         double *smallest) {
  double *room;
  if (!take_memory([&](Carver &memory) { room = memory.take<double>(n * n * SVD_TOGETHER); }))
    return 1;
  kernels_of(sizeof(double)).singular_values(matrices, n, count, largest, smallest, room);
  return 0;
}

int64_t hdnn_output_layer(const hdnn_solver *solver, int64_t loss, int64_t samples, int64_t q,
                          int64_t outputs, const double *Z, const double *target,
                          const double *weight, double *V) {
  const Kernels &kernels = kernels_of(sizeof(double));
  const i64 lanes = kernels.bytes / i64(sizeof(double)), width = divided_up(samples, lanes) * lanes;
  const i64 targets = loss == HDNN_SQUARED ? outputs : 1;
  OutputBatch batch = {loss, outputs, q, samples, width};
  OutputRoom room;
  const auto lay_out = [&](Carver &memory) {
    batch.Z = memory.take<double>(q * width), batch.target = memory.take<double>(targets * width);
    batch.weight = memory.take<double>(width);
    room = take_output_room(memory, outputs, q, width, true);
  };
  if (!take_memory(lay_out)) return -1;
  for (i64 p = 0; p < width; p++) {
    const i64 i = std::min(p, samples - 1);
    for (i64 k = 0; k < q; k++) batch.Z[k * width + p] = Z[i * q + k];
    for (i64 o = 0; o < targets; o++) batch.target[o * width + p] = target[i * targets + o];
    batch.weight[p] = p < samples ? weight[i] : 0.0;
  }
  return kernels.output_layer(batch, *solver, V, room);
}

int hdnn_train(const hdnn_plan *p, const hdnn_training *t, const hdnn_values *values,
               const int64_t *order, int64_t from, int64_t steps, const double *rates,
               int64_t *updates, double *losses, int64_t threads) {
  TrainCall c = {p, t, *values, order, from, steps, rates, updates, losses};
  c.batch = std::min(t->batch, t->count);
  return run(c, threads);
}

const char *hdnn_instruction_set() { return instruction_set.name; }

int64_t hdnn_interface() { return HDNN_INTERFACE; }
