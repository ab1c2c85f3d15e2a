// Times of MPI: a ping-pong between two ranks; with more ranks, an allreduce.
//
//     pingpong BYTES ROUNDS    prints the median of ten blocks, in microseconds one way or per allreduce
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS 10

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void round_trip(char *memory, int bytes, int rank) {
    for (int turn = 0; turn < 2; turn++) {
        if (rank == turn)
            MPI_Send(memory, bytes, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD);
        else
            MPI_Recv(memory, bytes, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    if (argc != 3) {
        fprintf(stderr, "usage: pingpong BYTES ROUNDS\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    const int bytes = atoi(argv[1]), rounds = atoi(argv[2]);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    char *memory = calloc(1, (size_t)bytes), *sum = calloc(1, (size_t)bytes);
    double blocks[BLOCKS];
    for (int block = -1; block < BLOCKS; block++) {
        MPI_Barrier(MPI_COMM_WORLD);
        const double start = MPI_Wtime();
        for (int i = 0; i < rounds; i++) {
            if (ranks == 2)
                round_trip(memory, bytes, rank);
            else
                MPI_Allreduce(memory, sum, bytes / (int)sizeof(int), MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        }
        const double took = (MPI_Wtime() - start) / rounds * 1e6;
        if (block >= 0) blocks[block] = ranks == 2 ? took / 2 : took;
    }
    qsort(blocks, BLOCKS, sizeof(*blocks), compare);
    if (rank == 0) printf("median %.2f us\n", (blocks[BLOCKS / 2 - 1] + blocks[BLOCKS / 2]) / 2);
    free(memory);
    free(sum);
    MPI_Finalize();
    return 0;
}
