/* The threads that compute one call together: how they share work and how they meet.

   A call opens one parallel region, whatever number of steps it has: between steps the members
   meet at a barrier of their own. OpenMP's own sleeps at once as soon as a process has more pools
   than processors, and waking takes longer than a small product. Here a member looks for a short
   while, since the others are mostly there within microseconds, and then sleeps, so that others
   who need the processor have it. */

#ifndef MMSERVE_TEAM_H
#define MMSERVE_TEAM_H

#include "common.h"

#include <stdatomic.h>

#define MOST_MEMBERS 256
#define LOOKS 20000 /* before a member sleeps: a millisecond at most */

/* Pieces of a member's part of the work that are taken, in a cache line of its own. */
typedef struct {
    _Alignas(64) atomic_long num;
} Taken;

typedef struct {
    _Alignas(64) atomic_int arrived;
    _Alignas(64) atomic_int round;
    atomic_int asleep;
    atomic_int failed;
    Taken taken[MOST_MEMBERS];
} Team;

typedef struct {
    Team *team;
    int number, size; /* of the team */
} Member;

/* Runs `work` on so many threads at once. */
typedef void Work(const Member *me, void *what);
void together(int threads, Work *work, void *what);

/* The calling thread's own memory, kept from call to call, or NULL: at least so many bytes in whole
   cache lines, of no particular values. */
char *own_memory(size_t num_bytes);

/* Sleeps until the round is over; wakes those who sleep. */
void sleep_through(Team *team, int round);
void wake_all(Team *team);

INLINE void rest(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Returns when all members have called it; then no piece is taken. */
INLINE void meet(const Member *me) {
    Team *team = me->team;
    if (me->size == 1) {
        atomic_store_explicit(&team->taken[0].num, 0, memory_order_relaxed);
        return;
    }
    int round = atomic_load(&team->round);
    if (atomic_fetch_add(&team->arrived, 1) == me->size - 1) {
        for (int m = 0; m < me->size; m++)
            atomic_store_explicit(&team->taken[m].num, 0, memory_order_relaxed);
        atomic_store(&team->arrived, 0);
        atomic_fetch_add(&team->round, 1);
        if (atomic_load(&team->asleep)) wake_all(team);
        return;
    }
    for (int look = 0; look < LOOKS; look++) {
        if (atomic_load_explicit(&team->round, memory_order_acquire) != round) return;
        rest();
    }
    sleep_through(team, round);
}

/* [first, end) of `total` for one member: like parts, in order. */
INLINE void part_of(const Member *me, long total, long *first, long *end) {
    *first = total * me->number / me->size;
    *end = total * (me->number + 1) / me->size;
}

/* The next of `total` pieces that nobody has taken, or -1. A member takes its own part first and
   then helps others: equal threads share equally, and one that is held up holds up nobody. */
INLINE long next_piece(const Member *me, long total) {
    Team *team = me->team;
    for (int i = 0; i < me->size; i++) {
        Member whose = {team, (me->number + i) % me->size, me->size};
        long first, end;
        part_of(&whose, total, &first, &end);
        atomic_long *taken = &team->taken[whose.number].num;
        if (atomic_load_explicit(taken, memory_order_relaxed) >= end - first) continue;
        long piece = first + atomic_fetch_add_explicit(taken, 1, memory_order_relaxed);
        if (piece < end) return piece;
    }
    return -1;
}

/* The next of `total` pieces in order, or -1: for pieces of unlike size, the largest first. */
INLINE long next_in_order(const Member *me, long total) {
    long piece = atomic_fetch_add_explicit(&me->team->taken[0].num, 1, memory_order_relaxed);
    return piece < total ? piece : -1;
}

#endif
