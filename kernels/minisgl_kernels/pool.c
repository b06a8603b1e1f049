/* The pool: workers that take tasks from one atomic word, and a caller that takes them, too.
 *
 * `state` is (generation, tasks left). To take a task is to lower it with one compare-and-swap, which fails if the
 * call it was read for has ended, so a worker that wakes late can neither join a finished call nor be waited for.
 * What a call consists of is written while nothing is left of the call before, and counts only for who then takes
 * a task. Workers look at `state` for a short while, then sleep; they are made at the first call that wants
 * them. A forked child has none and makes its own. While one thread is calling, another's call runs on that thread.
 * Compiled with ONE_THREAD there are no workers. */

#define _GNU_SOURCE

#include "pool.h"

#ifdef ONE_THREAD

void minisgl_parallel(minisgl_task *run, const void *context, int64_t count, int num_threads)
{
    (void)num_threads;
    for (int64_t task = 0; task < count; task++)
        run(context, task, 0);
}

#else

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

enum { MOST_WORKERS = 255, LOOKS = 1000, LOOKS_FOR_THE_LAST = 200, LEFT_BITS = 32 };
enum { LATE = 200000, ALONE = 20 }; /* nanoseconds; how many times as long as the wait was */

static _Atomic uint64_t state;              /* generation << 32 | tasks left */
static _Atomic int64_t done;                /* tasks of this call that have ended */
static _Atomic(minisgl_task *) call_run;    /* these three: what a call consists of */
static _Atomic(const void *) call_context;
static _Atomic uint64_t call_size;          /* count << 32 | threads */

static atomic_flag is_busy = ATOMIC_FLAG_INIT;
static pthread_once_t once = PTHREAD_ONCE_INIT;
/* who holds is_busy reads and writes these two */
static int num_workers;
static int64_t alone_until; /* nanoseconds: no worker is asked before */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static _Atomic int num_sleepers;

static uint64_t left_of(uint64_t seen)
{
    return seen & 0xFFFFFFFFu;
}

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Takes and runs one task; 0, with the state that said so, if none is left for this worker. */
static int run_one(int worker, uint64_t *nothing_at)
{
    uint64_t seen = atomic_load(&state);
    minisgl_task *run;
    const void *context;
    uint64_t size;
    do {
        *nothing_at = seen;
        if (left_of(seen) == 0)
            return 0;
        run = atomic_load_explicit(&call_run, memory_order_relaxed);
        context = atomic_load_explicit(&call_context, memory_order_relaxed);
        size = atomic_load_explicit(&call_size, memory_order_relaxed);
        if (worker >= (int)left_of(size))
            return 0;
    } while (!atomic_compare_exchange_weak(&state, &seen, seen - 1));
    run(context, (int64_t)((size >> LEFT_BITS) - left_of(seen)), worker);
    atomic_fetch_add(&done, 1);
    return 1;
}

static void *work(void *number)
{
    const int worker = (int)(intptr_t)number;
    for (;;) {
        uint64_t seen;
        while (run_one(worker, &seen)) {
        }
        int looks = 0;
        while (looks < LOOKS && atomic_load(&state) == seen) {
            pause_briefly();
            looks++;
        }
        if (looks < LOOKS)
            continue;
        pthread_mutex_lock(&mutex);
        atomic_fetch_add(&num_sleepers, 1);
        while (atomic_load(&state) == seen)
            pthread_cond_wait(&more, &mutex);
        atomic_fetch_sub(&num_sleepers, 1);
        pthread_mutex_unlock(&mutex);
    }
    return NULL;
}

/* In a forked child: the workers are the parent's, and what they held will never be given back. */
static void forget(void)
{
    num_workers = 0;
    atomic_store(&state, atomic_load(&state) >> LEFT_BITS << LEFT_BITS);
    atomic_store(&num_sleepers, 0);
    atomic_flag_clear(&is_busy);
    pthread_mutex_init(&mutex, NULL);
    pthread_cond_init(&more, NULL);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget);
}

/* Makes workers up to number `wanted`; where the system gives no more, the others do the work. Signals are not theirs. */
static void hire(int wanted)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (num_workers < wanted && num_workers < MOST_WORKERS) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, (void *)(intptr_t)(num_workers + 1)) != 0)
            break;
        pthread_detach(thread);
        num_workers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void publish(minisgl_task *run, const void *context, int64_t count, int num_threads)
{
    const uint64_t generation = (atomic_load(&state) >> LEFT_BITS) + 1;
    atomic_store(&done, 0);
    atomic_store_explicit(&call_run, run, memory_order_relaxed);
    atomic_store_explicit(&call_context, context, memory_order_relaxed);
    atomic_store_explicit(&call_size, (uint64_t)count << LEFT_BITS | (uint64_t)num_threads, memory_order_relaxed);
    atomic_store(&state, generation << LEFT_BITS | (uint64_t)count);
    if (atomic_load(&num_sleepers) > 0) {
        pthread_mutex_lock(&mutex);
        pthread_cond_broadcast(&more);
        pthread_mutex_unlock(&mutex);
    }
}

static int64_t nanoseconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Waits for the tasks that workers have begun. A worker that lost its core in the middle of one is a sign that there
 * are more threads than cores: the caller then goes alone for a while, and so loses a bounded share of its time. */
static void wait_for_begun(int64_t count)
{
    for (int looks = 0; looks < LOOKS_FOR_THE_LAST && atomic_load(&done) < count; looks++)
        pause_briefly();
    if (atomic_load(&done) == count)
        return;
    const int64_t start = nanoseconds();
    while (atomic_load(&done) < count)
        sched_yield();
    const int64_t end = nanoseconds();
    if (end - start > LATE)
        alone_until = end + ALONE * (end - start);
}

static void run_together(minisgl_task *run, const void *context, int64_t count, int num_threads)
{
    pthread_once(&once, watch_forks);
    hire(num_threads - 1);
    publish(run, context, count, num_threads);
    uint64_t seen;
    while (run_one(0, &seen)) {
    }
    wait_for_begun(count);
}

void minisgl_parallel(minisgl_task *run, const void *context, int64_t count, int num_threads)
{
    if (num_threads > 1 && count > 1 && count <= INT32_MAX && !atomic_flag_test_and_set(&is_busy)) {
        const int is_alone = nanoseconds() < alone_until;
        if (!is_alone)
            run_together(run, context, count, num_threads);
        atomic_flag_clear(&is_busy);
        if (!is_alone)
            return;
    }
    for (int64_t task = 0; task < count; task++)
        run(context, task, 0);
}

#endif
