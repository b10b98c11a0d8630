/* A ring all-reduce, message by message: `ring BYTES` all-reduces so many bytes, and every rank
   prints when it was through, in nanoseconds. For smpicc. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int bytes = (int)(atof(argv[1]) / ranks);
    char *sent = malloc(bytes), *got = malloc(bytes);
    double begin = MPI_Wtime();
    for (int round = 0; round < 2 * (ranks - 1); round++) {
        MPI_Request both[2];
        MPI_Irecv(got, bytes, MPI_BYTE, (rank + ranks - 1) % ranks, 0, MPI_COMM_WORLD, &both[0]);
        MPI_Isend(sent, bytes, MPI_BYTE, (rank + 1) % ranks, 0, MPI_COMM_WORLD, &both[1]);
        MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
    }
    printf("%.3f\n", 1e9 * (MPI_Wtime() - begin));
    MPI_Finalize();
    return 0;
}
