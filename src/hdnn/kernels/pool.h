// Threads: helpers that take pieces of a caller's work, one by one, while the caller works too.
//
// Helpers start when first wanted, and sleep between jobs after looking out for the next one for a
// short while: the steps of a training follow each other faster than a sleeping thread wakes. Any
// number of callers may have a job open; each finishes its own, so none waits for a helper that has
// not begun. A forked child has no helpers and starts anew.
#pragma once
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "program.h"

#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace hdnn {

constexpr int LOOKS = 4000;  // some 50 us

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}
template <class Condition>
void look_out(Condition condition) {
  for (int k = 0; k < LOOKS && !condition(); k++) pause();
}

class Pool {
  struct Job {
    Work work;
    void *context;
    i64 pieces;
    std::atomic<i64> next_piece{0}, next_worker{1}, helpers{0};
    void help() { run(next_worker.fetch_add(1)); }
    void run(i64 worker) {
      for (i64 piece; (piece = next_piece.fetch_add(1)) < pieces;) work(context, piece, worker);
    }
  };
  std::mutex mutex;
  std::condition_variable wake, done;
  std::vector<Job *> open;      // once for every helper that may come
  std::atomic<i64> waiting{0};  // size of `open`, to look at without the mutex
  i64 started = 0, sleeping = 0;

  void serve() {
    for (;;) {
      look_out([this] { return waiting.load(std::memory_order_relaxed) > 0; });
      std::unique_lock<std::mutex> lock(mutex);
      sleeping++;
      wake.wait(lock, [this] { return !open.empty(); });
      sleeping--;
      Job *job = open.back();
      open.pop_back();
      waiting = i64(open.size());
      job->helpers++;
      lock.unlock();
      job->help();
      lock.lock();
      job->helpers--;  // from here on the job may be gone
      done.notify_all();
    }
  }
  void call_helpers(Job &job, i64 wanted) {
    try {
      open.insert(open.end(), size_t(wanted), &job);
      for (; started < wanted; started++) std::thread([this] { serve(); }).detach();
    } catch (const std::exception &) {  // no more threads: those that are there will do
    }
    waiting = i64(open.size());
    if (sleeping > 0) wake.notify_all();
  }

 public:
  void run(i64 pieces, i64 threads, Work work, void *context) {
    Job job{work, context, pieces};
    {
      const std::lock_guard<std::mutex> lock(mutex);
      call_helpers(job, std::min(threads, pieces) - 1);
    }
    job.run(0);
    {
      const std::lock_guard<std::mutex> lock(mutex);  // who has not begun need not come any more
      open.erase(std::remove(open.begin(), open.end(), &job), open.end());
      waiting = i64(open.size());
    }
    look_out([&job] { return job.helpers.load() == 0; });
    std::unique_lock<std::mutex> lock(mutex);
    done.wait(lock, [&job] { return job.helpers.load() == 0; });
  }
};

inline Pool *&the_pool() {
  static Pool *pool = [] {  // never freed: helpers outlive static objects
#if !defined(_WIN32)
    pthread_atfork(nullptr, nullptr, [] { the_pool() = new Pool; });
#endif
    return new Pool;
  }();
  return pool;
}

void parallel_for(i64 pieces, i64 threads, Work work, void *context) {
  if (std::min(pieces, threads) > 1) return the_pool()->run(pieces, threads, work, context);
  for (i64 piece = 0; piece < pieces; piece++) work(context, piece, 0);
}

// Earlier pieces have begun, on threads that wait for none but still earlier ones.
void await_turn(const i64 *turn, i64 piece) {
  const auto here = [=] { return __atomic_load_n(turn, __ATOMIC_ACQUIRE) == piece; };
  look_out(here);
  while (!here()) std::this_thread::yield();
}
void end_turn(i64 *turn, i64 piece) { __atomic_store_n(turn, piece + 1, __ATOMIC_RELEASE); }
}  // namespace hdnn
