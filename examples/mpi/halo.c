/* A ring of ranks that exchange their edges and agree on a residual; rank 1 is late.
 *
 *     mpicc -o halo examples/mpi/halo.c -lm
 *     evenstep run --mpi-shim -- mpiexec -n 2 ./halo
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

enum { CELLS = 4096, STEPS = 60, LATE_US = 20000 };

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    static double cells[CELLS + 2];
    double residual, largest = 0;
    cells[CELLS / 2] = rank + 1;
    for (int step = 0; step < STEPS; step++) {
        if (rank == 1) usleep(LATE_US);
        residual = 0;
        for (int i = 1; i <= CELLS; i++) {
            double change = (cells[i - 1] - 2 * cells[i] + cells[i + 1]) / 3;
            cells[i] += change;
            residual = fmax(residual, fabs(change));
        }
        MPI_Allreduce(&residual, &largest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        MPI_Sendrecv(&cells[CELLS], 1, MPI_DOUBLE, (rank + 1) % size, 0, &cells[0], 1, MPI_DOUBLE,
                     (rank + size - 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Pcontrol(1); /* a step ends here; without this line, evenstep finds out itself */
    }
    if (rank == 0) printf("residual %.3g\n", largest);
    MPI_Finalize();
    return 0;
}
