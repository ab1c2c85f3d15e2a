// OpenSHMEM: puts, gets and atomics between neighbours in a ring; each PE checks what it has.
#include <shmem.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SIZE (1 << 18)
#define ADDITIONS 50

static char mine[SIZE], theirs[SIZE];
static long counter;

static char pattern(int pe, int at) {
    return (char)(pe * 31 + at % 251);
}

int main(void) {
    shmem_init();
    const int me = shmem_my_pe(), all = shmem_n_pes(), next = (me + 1) % all, before = (me + all - 1) % all;
    int wrong = 0;
    for (int at = 0; at < SIZE; at++) mine[at] = pattern(me, at);
    shmem_barrier_all();
    shmem_putmem(theirs, mine, SIZE, next);
    for (int i = 0; i < ADDITIONS; i++) shmem_long_atomic_inc(&counter, next);
    shmem_barrier_all();
    for (int at = 0; at < SIZE; at++) wrong += theirs[at] != pattern(before, at);
    wrong += counter != ADDITIONS;
    memset(theirs, 0, SIZE);
    shmem_barrier_all();
    shmem_getmem(theirs, mine, SIZE, before);
    for (int at = 0; at < SIZE; at++) wrong += theirs[at] != pattern(before, at);
    printf("PE %d of %d: %s\n", me, all, wrong ? "wrong data" : "data right");
    shmem_barrier_all();
    // shmem_finalize of Open MPI 4.1.4 with its spml ucx ends with signal 11, over TCP as well, and so does
    // the end of main.
    fflush(stdout);
    _exit(wrong);
}
