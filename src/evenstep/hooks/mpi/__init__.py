"""MPI: calls through mpi4py, and through the profiling interface."""
