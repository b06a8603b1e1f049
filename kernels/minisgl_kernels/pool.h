/* One pool of threads for all kernels: run(context, task, worker) for every task in 0:count, in any order.
 *
 * The caller works itself and waits only for tasks that a worker has begun. Tasks write apart from each other, so
 * no bit depends on who ran them. Definition: pool.c */

#ifndef MINISGL_POOL_H
#define MINISGL_POOL_H

#include <stdint.h>

/* worker: 0 is the caller, others are below num_threads; two tasks of one worker never run at once */
typedef void minisgl_task(const void *context, int64_t task, int worker);

void minisgl_parallel(minisgl_task *run, const void *context, int64_t count, int num_threads);

#endif
