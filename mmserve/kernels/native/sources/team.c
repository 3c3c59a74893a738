#define _GNU_SOURCE /* syscall */

#include "team.h"

#include <omp.h>
#include <sched.h>
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
