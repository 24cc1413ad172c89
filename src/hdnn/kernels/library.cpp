// The C interface: instruction sets, memory, plans, and who does what.
#include <stdlib.h>
#include <string.h>

#include <memory>
#include <new>
#include <string>
#include <tuple>
#include <vector>

#include "pool.h"
#include "tiling.h"
#include "training/training.h"

// A program with the memory that its stages point to.
struct hdnn_plan : hdnn::Program {
  std::vector<hdnn::Stage> stage_list;
  std::vector<std::vector<hdnn::Run>> runs;
};

namespace hdnn {

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
  bool here;  // the processor has it, and the system saves its registers
};

// Best first.
static std::vector<InstructionSet> instruction_sets() {
#if defined(__x86_64__)
  __builtin_cpu_init();  // this runs before the constructor that would do it
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  return {{"avx512", avx512::kernels, has_avx2 && has_avx512},
          {"avx2", avx2::kernels, has_avx2},
          {"baseline", baseline::kernels, true}};
#else
  return {{"baseline", baseline::kernels, true}};
#endif
}
// That of HDNN_ISA, or the best. Without a name where HDNN_ISA has none that is here.
static InstructionSet choose_instruction_set() {
  const char *wish = getenv("HDNN_ISA");
  for (const InstructionSet &set : instruction_sets())
    if (set.here && (!wish || !*wish || !strcmp(wish, set.name))) return set;
  return {nullptr, baseline::kernels, true};
}
static const InstructionSet instruction_set = choose_instruction_set();

static const Kernels &kernels_of(i64 itemsize) { return instruction_set.kernels[itemsize == 8]; }

// --- memory ------------------------------------------------------------------------------------

// Memory of a call. It stays with the thread for its next call, as fresh pages are slow to touch
// (0.1 ms a MB), unless it is more than KEPT: five threads in the largest blocks (tiling.h), or
// sixteen in those of most networks. What takes more computes for so long that fresh pages are a
// small part of it, and would be missed elsewhere.
class Memory {
  static constexpr size_t KEPT = 32 << 20;
  static constexpr std::align_val_t LINE{64};  // of the cache
  struct Arena {
    void *data = nullptr;
    size_t bytes = 0;
    ~Arena() { operator delete(data, LINE); }
    bool resize(size_t wanted) {
      operator delete(data, LINE);
      data = wanted ? operator new(wanted, LINE, std::nothrow) : nullptr;
      bytes = data ? wanted : 0;
      return data;
    }
  };
  static thread_local Arena arena;

 public:
  ~Memory() {
    if (arena.bytes > KEPT) arena.resize(0);
  }
  // Calls lay_out twice: to find how much it takes, and to take it. False: there is no memory.
  template <class LayOut>
  bool take(LayOut lay_out) {
    BumpAllocator memory = {0};
    lay_out(memory);
    if (memory.at > arena.bytes && !arena.resize(memory.at)) return false;
    memory = {reinterpret_cast<uintptr_t>(arena.data)};
    lay_out(memory);
    return true;
  }
};
thread_local Memory::Arena Memory::arena;

static Structure take_structure(const Program &p, BumpAllocator &memory) {
  return {memory.take<StructureKind>(p.stages), memory.take<i64>(p.reads),
          memory.take<i64>(p.reads), memory.take<char>(p.reads * p.itemsize)};
}

// --- plans -------------------------------------------------------------------------------------

// The runs of an array of codes. A parameter that stands in several places is in as many runs: its
// first places make runs with the first places of its neighbors, and so on.
static std::vector<Run> runs_of(const i64 *code, i64 count) {
  i64 ordered = 0;  // as in most matrices, which need no sorting
  while (ordered < count && code[ordered] > 0 && code[ordered] == code[0] + ordered) ordered++;
  if (count && ordered == count) return {{0, 1, code[0] - 1, count, 1}};
  struct Entry {
    i64 repeat, parameter, entry;
    bool operator<(const Entry &b) const {
      return std::tie(repeat, parameter) < std::tie(b.repeat, b.parameter);
    }
  };
  std::vector<Entry> entries;
  i64 parameters = 0;
  for (i64 k = 0; k < count; k++) parameters = std::max(parameters, std::abs(code[k]));
  std::vector<i64> repeats(parameters);
  for (i64 k = 0; k < count; k++)
    if (const i64 parameter = std::abs(code[k]) - 1; parameter >= 0)
      entries.push_back({repeats[parameter]++, parameter, k});
  std::sort(entries.begin(), entries.end());
  std::vector<Run> runs;
  for (const Entry &e : entries) {
    const i64 sign = code[e.entry] > 0 ? 1 : -1;
    if (!runs.empty()) {
      Run &r = runs.back();
      const i64 stride = e.entry - (r.entry + (r.count - 1) * r.stride);
      if (e.parameter == r.parameter + r.count && sign == r.sign &&
          (r.count == 1 || stride == r.stride)) {
        r.stride = stride, r.count++;
        continue;
      }
    }
    runs.push_back({e.entry, 1, e.parameter, 1, sign});
  }
  return runs;
}
// The first parameter if all entries are parameters in their own order, else -1.
static i64 first_of(const std::vector<Run> &runs, i64 count) {
  if (!count) return 0;
  const bool all = runs.size() == 1 && runs[0].count == count && runs[0].stride == 1;
  return all && runs[0].sign > 0 ? runs[0].parameter : -1;
}

// The same of W', from the codes of W (units, reads).
static i64 first_of_transposed(const Stage &s) {
  if (s.units * s.reads == 0 || s.W[0] < 1) return -1;
  for (i64 i = 0; i < s.units; i++)
    for (i64 k = 0; k < s.reads; k++)
      if (s.W[i * s.reads + k] != s.W[0] + k * s.units + i) return -1;
  return s.W[0] - 1;
}

// Which stages are the first, on the way back, that give gradients to their part of theta: those
// may overwrite what is there, if every parameter is in one of them, in order.
static void find_fresh(hdnn_plan &p) {
  const auto first = [](const Stage &s) { return std::max(s.first_W, s.first_transposed); };
  i64 covered = 0;
  p.overwrites = true;
  for (i64 k = p.stages - 1; k >= 0; k--) {
    Stage &s = p.stage_list[k];
    s.fresh = true;
    for (i64 later = k + 1; later < p.stages; later++) {
      const Stage &other = p.stage[later];
      s.fresh = s.fresh && (first(s) + s.units * s.reads <= first(other) ||
                            first(other) + other.units * other.reads <= first(s));
    }
    p.overwrites = p.overwrites && first(s) >= 0;
    covered += s.fresh ? s.units * s.reads : 0;
  }
  p.overwrites = p.overwrites && covered == p.theta;
  for (Stage &s : p.stage_list) s.fresh = s.fresh && p.overwrites;
}

static void lay_out_stages(hdnn_plan &p, const hdnn_stage *stages) {
  for (i64 k = 0; k < p.stages; k++) {
    Stage s = {stages[k]};
    const auto keep = [&p](const i64 *&code, i64 count, Runs &runs) {
      const std::vector<Run> &all = p.runs.emplace_back(runs_of(code, count));
      runs = {all.data(), i64(all.size())}, code = nullptr;  // which the caller frees
      return first_of(all, count);
    };
    const i64 transposed = first_of_transposed(s);
    s.first_W = keep(s.W, s.units * s.reads, s.runs_W), s.first_b = keep(s.b, s.units, s.runs_b);
    s.first_transposed = s.first_W < 0 ? transposed : -1;
    p.gathers = p.gathers || s.first_W < 0 || s.first_b < 0;
    s.at_W = p.row, s.at_b = s.at_W + s.units * s.reads, p.row = s.at_b + s.units;
    s.at_S = p.reads, p.reads += s.reads;
    if (s.units == s.reads && s.units == s.writes && (s.units == 2 || s.units == 4) && s.carry)
      s.small = s.units;
    p.hidden = std::max({p.hidden, s.units, s.reads});
    p.activations += s.reads + s.units;
    p.work += double(p.layers) * p.networks * p.points *
              (2 * s.units * (s.reads + (s.adjoint ? s.writes : 1)) + 20 * s.units);
    p.stage_list.push_back(s);
  }
  p.stage = p.stage_list.data();
  find_fresh(p);
}

// --- calls -------------------------------------------------------------------------------------

static int run(Call c, Work work, double operations, i64 threads) {
  const Program &p = *c.program;
  const i64 chunks = p.networks * p.pieces, rows = p.period * p.row * p.itemsize;
  const bool gradients = c.gtheta || c.gbeta;
  threads = std::min(threads_for(operations, threads), std::max<i64>(1, chunks));
  const auto lay_out = [&](BumpAllocator &memory) {
    c.structure = take_structure(p, memory);
    c.rows = memory.take<char>(p.gathers ? p.networks * rows : 0);
    const i64 partial = p.direct ? p.row * p.itemsize : rows;
    c.partial = memory.take<char>(gradients ? threads * partial : 0);
    c.total = memory.take<char>(gradients && !p.direct ? p.networks * rows : 0);
    c.turns = memory.take<i64>(gradients ? p.networks * p.period : 0);
    c.scratch = memory.take<char>(threads * p.scratch * p.itemsize);
  };
  Memory memory;
  if (!memory.take(lay_out)) return 1;
  kernels_of(p.itemsize).prepare(&c);
  parallel_for(chunks, threads, work, &c);
  return 0;
}

static int run(TrainingCall c, i64 threads) {
  constexpr i64 KEEP = 32 << 20;  // bytes of activations beyond which they are computed again
  const hdnn_training &t = *c.training;
  const Program p = tile_training(*c.program, std::min(t.batch, t.count), t.inputs);
  const TrainingKernels &kernels = *kernels_of(p.itemsize).training;
  threads = std::max<i64>(1, threads);
  const i64 workers = std::min(threads, p.networks);
  c.program = &p;
  c.threads = p.networks > 1 ? 1 : std::min(threads, p.pieces);
  c.keep = p.blocks * p.block * p.layers * p.activations * p.itemsize <= KEEP;
  c.workspace_bytes = kernels.bytes(&c);
  const auto lay_out = [&](BumpAllocator &memory) {
    c.structure = take_structure(p, memory);
    c.workspaces = memory.take<char>(workers * c.workspace_bytes);
  };
  Memory memory;
  if (!memory.take(lay_out)) return 1;
  kernels.prepare(&c);
  parallel_for(p.networks, workers, kernels.train, &c);
  return 0;
}
static int run(RolloutCall c, i64 threads) {
  constexpr i64 MOST_PIECES = 16, MOST_BYTES = 32 << 20;  // of partial gradients
  const hdnn_rollout &p = *c.rollout;
  // Samples of a piece: the fewer steps share matrices, the more its partial gradients cost.
  const i64 fewest = std::max<i64>(8, 32 * p.period / std::max<i64>(1, p.steps));
  const Kernels &kernels = kernels_of(p.itemsize);
  const i64 width = p.states + p.inputs + 1, E = std::max<i64>(1, p.networks);
  const i64 weights = p.period * (p.units * width + p.states * (width + p.units)) * p.itemsize;
  c.pieces = std::min({p.samples / fewest, divided_up(MOST_PIECES, E), MOST_BYTES / (E * weights)});
  c.pieces = std::max<i64>(1, c.pieces);
  c.most = divided_up(p.samples, c.pieces);
  kernels.measure_rollout(&c);
  const bool back = c.gx || c.gu || c.gA;
  const double work = double(E) * p.samples * p.steps * 2 * (back ? 3 : 1) *
                      (double(p.units) * (width + 10) + double(p.states) * (width + p.units));
  const i64 pieces = p.networks * c.pieces;
  threads = std::min(threads_for(work, threads), std::max<i64>(1, pieces));
  const auto lay_out = [&](BumpAllocator &memory) {
    c.forward = memory.take<char>(c.forward_bytes);
    c.backward = memory.take<char>(back ? c.backward_bytes : 0);
    c.partial = memory.take<char>(c.gA ? pieces * c.partial_bytes : 0);
    c.scratch = memory.take<char>(threads * c.scratch_bytes);
  };
  Memory memory;
  if (!memory.take(lay_out)) return 1;
  if (!back) c.backward = nullptr;
  if (!c.gA) c.partial = nullptr;
  kernels.prepare_rollout(&c);
  parallel_for(pieces, threads, back ? kernels.rollout_backward : kernels.rollout_forward, &c);
  if (c.gA) kernels.finish_rollout(&c);
  return 0;
}
}  // namespace hdnn

using namespace hdnn;

hdnn_plan *hdnn_plan_new(const hdnn_problem *problem) try {
  auto p = std::make_unique<hdnn_plan>();
  static_cast<hdnn_problem &>(*p) = *problem;
  p->points = p->samples * std::max<i64>(1, p->pixels);
  p->lanes = kernels_of(p->itemsize).bytes / p->itemsize;
  lay_out_stages(*p, problem->stage);
  tile_passes(*p);
  return p.release();
} catch (const std::bad_alloc &) {
  return nullptr;
}
void hdnn_plan_free(hdnn_plan *p) { delete p; }

int64_t hdnn_plan_activations(const hdnn_plan *p) {
  return p->networks * p->blocks * p->block * p->layers * p->activations * p->itemsize;
}

int hdnn_forward(const hdnn_plan *p, const hdnn_values *values, const void *x, void *out,
                 void *activations, int64_t threads) {
  const Call c = {p, *values, x, nullptr, out, nullptr, nullptr, activations};
  return run(c, kernels_of(p->itemsize).forward, p->work, threads);
}

int hdnn_backward(const hdnn_plan *p, const hdnn_values *values, const void *x, const void *gout,
                  const void *activations, void *gx, void *gtheta, void *gbeta, int64_t threads) {
  void *kept = const_cast<void *>(activations);  // read only, on the way back
  const Call c = {p, *values, x, gout, gx, gtheta, gbeta, kept};
  return run(c, kernels_of(p->itemsize).backward, (kept ? 3 : 4) * p->work, threads);
}

int hdnn_jacobians(const hdnn_plan *plan, const hdnn_values *values, const void *x,
                   const int64_t *depths, int64_t count, void *states, void *matrices,
                   int64_t threads) {
  const Program p = tile_jacobians(*plan);
  Call c = {&p, *values, x};
  c.depths = depths, c.count = count, c.states = states, c.matrices = matrices;
  return run(c, kernels_of(p.itemsize).jacobians, double(1 + p.width) * p.work, threads);
}

int hdnn_rollout_forward(const hdnn_rollout *rollout, const void *W, const void *A, const void *x,
                         const void *u, void *states, void *last, int64_t threads) {
  return run(RolloutCall{rollout, W, A, x, u, states, last}, threads);
}

int hdnn_rollout_backward(const hdnn_rollout *rollout, const void *W, const void *A, const void *u,
                          const void *states, const void *gstates, const void *glast, void *gx,
                          void *gu, void *gW, void *gA, int64_t threads) {
  void *known = const_cast<void *>(states);  // read only, on the way back
  RolloutCall c = {rollout, W, A, nullptr, u, known};
  c.gstates = gstates, c.glast = glast, c.gx = gx, c.gu = gu, c.gW = gW, c.gA = gA;
  return run(c, threads);
}

int hdnn_singular_values(const double *matrices, int64_t n, int64_t count, double *largest,
                         double *smallest) {
  double *space;
  const auto lay_out = [&](BumpAllocator &memory) {
    space = memory.take<double>((n * n + n) * SVD_TOGETHER);
  };
  Memory memory;
  if (!memory.take(lay_out)) return 1;
  kernels_of(sizeof(double)).singular_values(matrices, n, count, largest, smallest, space);
  return 0;
}

int64_t hdnn_output_layer(const hdnn_solver *solver, int64_t loss, int64_t samples, int64_t q,
                          int64_t outputs, const double *Z, const double *target,
                          const double *weight, double *V) {
  const Kernels &kernels = kernels_of(sizeof(double));
  const i64 lanes = kernels.bytes / i64(sizeof(double)), width = divided_up(samples, lanes) * lanes;
  const i64 targets = loss == HDNN_SQUARED ? outputs : 1;
  OutputBatch batch = {loss, outputs, q, samples, width};
  OutputWorkspace space;
  const auto lay_out = [&](BumpAllocator &memory) {
    batch.Z = memory.take<double>(q * width), batch.target = memory.take<double>(targets * width);
    batch.weight = memory.take<double>(width);
    space = take_output_workspace(memory, outputs, q, width, true);
  };
  Memory memory;
  if (!memory.take(lay_out)) return -1;
  for (i64 p = 0; p < width; p++) {
    const i64 i = std::min(p, samples - 1);
    for (i64 k = 0; k < q; k++) batch.Z[k * width + p] = Z[i * q + k];
    for (i64 o = 0; o < targets; o++) batch.target[o * width + p] = target[i * targets + o];
    batch.weight[p] = p < samples ? weight[i] : 0.0;
  }
  return kernels.training->output_layer(batch, *solver, V, space);
}

int hdnn_train(const hdnn_plan *p, const hdnn_training *t, const hdnn_values *values,
               const int64_t *order, int64_t from, int64_t batches, const double *rates,
               int64_t *updates, double *losses, int64_t threads) {
  return run({p, t, *values, order, from, batches, rates, updates, losses}, threads);
}

const char *hdnn_instruction_set() { return instruction_set.name; }

const char *hdnn_instruction_sets() {
  static const std::string names = [] {
    std::string names;
    for (const InstructionSet &set : instruction_sets())
      if (set.here) names += (names.empty() ? "" : " ") + std::string(set.name);
    return names;
  }();
  return names.c_str();
}

int64_t hdnn_interface() { return HDNN_INTERFACE; }
