#define _GNU_SOURCE /* syscall */

#include "team.h"

#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

void together(int threads, Work *work, void *what) {
    static _Thread_local Team team;
    threads = threads < 1 ? 1 : threads > MOST_MEMBERS ? MOST_MEMBERS : threads;
    Team *shared = &team;
    for (int m = 0; m < threads; m++) atomic_store(&shared->taken[m].num, 0);
    if (threads == 1) {
        Member me = {shared, 0, 1};
        work(&me, what);
        return;
    }
#pragma omp parallel num_threads(threads)
    {
        Member me = {shared, omp_get_thread_num(), omp_get_num_threads()};
        work(&me, what);
    }
}

static pthread_key_t memory_key;
static pthread_once_t memory_once = PTHREAD_ONCE_INIT;
static _Thread_local char *memory;
static _Thread_local size_t memory_bytes;

static void make_memory_key(void) { pthread_key_create(&memory_key, free); }

char *own_memory(size_t num_bytes) {
    if (memory_bytes < num_bytes) {
        pthread_once(&memory_once, make_memory_key);
        free(memory);
        memory = aligned_alloc(64, (num_bytes + 4095) / 4096 * 4096);
        memory_bytes = memory ? num_bytes : 0;
        pthread_setspecific(memory_key, memory);
    }
    return memory;
}

void sleep_through(Team *team, int round) {
    atomic_fetch_add(&team->asleep, 1);
    while (atomic_load(&team->round) == round) {
#if defined(__linux__)
        syscall(SYS_futex, &team->round, FUTEX_WAIT_PRIVATE, round, NULL, NULL, 0);
#else
        sched_yield();
#endif
    }
    atomic_fetch_sub(&team->asleep, 1);
}

void wake_all(Team *team) {
#if defined(__linux__)
    syscall(SYS_futex, &team->round, FUTEX_WAKE_PRIVATE, MOST_MEMBERS, NULL, NULL, 0);
#else
    (void)team;
#endif
}
