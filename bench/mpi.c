// Two ranks of MPI: time of a message one way, and of one-sided operations with MPI_Win_flush. Prints one
// line for each: name, median in microseconds of BLOCKS blocks.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 9, LONG = 2 << 20 };
enum kind { PING_PONG, PUT, GET, ACCUMULATE, FETCH_AND_OP };

static const struct {
    const char *name;
    enum kind kind;
    int bytes, count;
} CASES[] = {
    {"ping-pong 8 B", PING_PONG, 8, 500},     {"ping-pong 2 MiB", PING_PONG, LONG, 6},
    {"MPI_Put 8 B", PUT, 8, 500},             {"MPI_Put 2 MiB", PUT, LONG, 6},
    {"MPI_Get 8 B", GET, 8, 500},             {"MPI_Get 2 MiB", GET, LONG, 6},
    {"MPI_Accumulate 8 B", ACCUMULATE, 8, 500}, {"MPI_Fetch_and_op 8 B", FETCH_AND_OP, 8, 500},
};

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void once(enum kind kind, int bytes, int rank, char *buffer, MPI_Win win) {
    long one = 1, before;
    switch (kind) {
    case PING_PONG:
        if (rank == 0) {
            MPI_Send(buffer, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
            MPI_Recv(buffer, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(buffer, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(buffer, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
        }
        return;
    case PUT: MPI_Put(buffer, bytes, MPI_BYTE, 1, 0, bytes, MPI_BYTE, win); break;
    case GET: MPI_Get(buffer, bytes, MPI_BYTE, 1, 0, bytes, MPI_BYTE, win); break;
    case ACCUMULATE: MPI_Accumulate(&one, 1, MPI_LONG, 1, 0, 1, MPI_LONG, MPI_SUM, win); break;
    case FETCH_AND_OP: MPI_Fetch_and_op(&one, &before, MPI_LONG, 1, 0, MPI_SUM, win); break;
    }
    MPI_Win_flush(1, win);
}

int main(int argc, char **argv) {
    int rank;
    char *memory, *buffer = malloc(LONG);
    MPI_Win win;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    memset(buffer, 1, LONG);
    MPI_Win_allocate(LONG, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &win);
    memset(memory, 0, LONG);
    MPI_Win_lock_all(0, win);
    for (size_t n = 0; n < sizeof CASES / sizeof CASES[0]; n++) {
        double us[BLOCKS];
        int ways = CASES[n].kind == PING_PONG ? 2 : 1;
        int is_active = rank == 0 || CASES[n].kind == PING_PONG;
        MPI_Barrier(MPI_COMM_WORLD);
        for (int block = -1; block < BLOCKS; block++) {
            double start = MPI_Wtime();
            for (int i = 0; is_active && i < CASES[n].count; i++)
                once(CASES[n].kind, CASES[n].bytes, rank, buffer, win);
            // The first block warms up.
            if (block >= 0)
                us[block] = (MPI_Wtime() - start) * 1e6 / CASES[n].count / ways;
        }
        MPI_Barrier(MPI_COMM_WORLD);
        qsort(us, BLOCKS, sizeof us[0], by_value);
        if (rank == 0)
            printf("%s: %.2f us\n", CASES[n].name, us[BLOCKS / 2]);
    }
    MPI_Win_unlock_all(win);
    MPI_Win_free(&win);
    MPI_Finalize();
    return 0;
}
