// Messages, collectives and one-sided operations of MPI; every rank checks what it receives.
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define LARGEST (1 << 20)
#define ADDITIONS 50

static int rank, ranks;

static void require(int good, const char *what) {
    if (!good) {
        fprintf(stderr, "rank %d: wrong data: %s\n", rank, what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static unsigned char pattern(int from, int round, size_t at) {
    return (unsigned char)(from * 31 + round * 7 + (int)(at % 251));
}

// Each rank sends to the next one and receives from the one before: eager and rendezvous sizes.
static void ring(unsigned char *out, unsigned char *in) {
    const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    int round = 0;
    for (size_t size = 1; size <= LARGEST; size *= 8, round++) {
        for (size_t at = 0; at < size; at++) out[at] = pattern(rank, round, at), in[at] = 0;
        MPI_Sendrecv(out, (int)size, MPI_BYTE, next, round, in, (int)size, MPI_BYTE, before, round,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (size_t at = 0; at < size; at++) require(in[at] == pattern(before, round, at), "message");
    }
}

static void collectives(void) {
    enum { EACH = 1024 };
    int64_t *out = malloc(sizeof(*out) * EACH * (size_t)ranks);
    int64_t *in = malloc(sizeof(*in) * EACH * (size_t)ranks);
    for (int i = 0; i < EACH; i++) out[i] = (int64_t)rank * i;
    MPI_Allreduce(out, in, EACH, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < EACH; i++) require(in[i] == (int64_t)i * ranks * (ranks - 1) / 2, "allreduce");
    for (int i = 0; i < EACH * ranks; i++) out[i] = rank * 1000000 + i;
    MPI_Alltoall(out, EACH, MPI_INT64_T, in, EACH, MPI_INT64_T, MPI_COMM_WORLD);
    for (int from = 0; from < ranks; from++)
        for (int i = 0; i < EACH; i++)
            require(in[from * EACH + i] == from * 1000000 + rank * EACH + i, "alltoall");
    free(out);
    free(in);
}

// Slot 0 is a counter, slot 1 a sum; each rank has one slot after them.
static void one_sided(void) {
    int64_t *memory;
    MPI_Win window;
    MPI_Win_allocate((MPI_Aint)sizeof(*memory) * (2 + ranks), sizeof(*memory), MPI_INFO_NULL, MPI_COMM_WORLD,
                     &memory, &window);
    for (int i = 0; i < 2 + ranks; i++) memory[i] = 0;
    MPI_Win_fence(0, window);
    for (int to = 0; to < ranks; to++) {
        const int64_t value = 100 * rank + to;
        MPI_Put(&value, 1, MPI_INT64_T, to, 2 + rank, 1, MPI_INT64_T, window);
        MPI_Win_fence(0, window);
    }
    for (int from = 0; from < ranks; from++) require(memory[2 + from] == 100 * from + rank, "put");
    int64_t got = -1;
    const int next = (rank + 1) % ranks;
    MPI_Get(&got, 1, MPI_INT64_T, next, 2 + rank, 1, MPI_INT64_T, window);
    MPI_Win_fence(0, window);
    require(got == 100 * rank + next, "get");
    const int64_t mine = rank + 1;
    MPI_Accumulate(&mine, 1, MPI_INT64_T, 0, 1, 1, MPI_INT64_T, MPI_SUM, window);
    MPI_Win_fence(0, window);
    if (rank == 0) require(memory[1] == (int64_t)ranks * (ranks + 1) / 2, "accumulate");
    MPI_Win_fence(0, window);
    const int64_t one = 1;
    int64_t before = -1, last = -1;
    MPI_Win_lock_all(0, window);
    for (int i = 0; i < ADDITIONS; i++) {
        MPI_Fetch_and_op(&one, &before, MPI_INT64_T, 0, 0, MPI_SUM, window);
        MPI_Win_flush(0, window);
        require(before > last && before < (int64_t)ranks * ADDITIONS, "fetch_and_op");
        last = before;
    }
    MPI_Win_unlock_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
        MPI_Fetch_and_op(&one, &before, MPI_INT64_T, 0, 0, MPI_NO_OP, window);
        MPI_Win_unlock(0, window);
        require(before == (int64_t)ranks * ADDITIONS, "sum of fetch_and_op");
    }
    MPI_Win_free(&window);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    unsigned char *out = malloc(LARGEST), *in = malloc(LARGEST);
    ring(out, in);
    collectives();
    one_sided();
    free(out);
    free(in);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) printf("%d ranks: all data right\n", ranks);
    MPI_Finalize();
    return 0;
}
