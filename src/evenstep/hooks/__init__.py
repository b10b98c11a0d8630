"""From a stack to the recorder: torch, MPI and JAX seen from inside, without an edit.

Each stack answers the questions of `agent.stacks` (who is this rank, is it armed) and brings hooks
that are installed, disarmed in an instant and removed:

    torch/     kernels, compiled or Python's own, phases, device times
    mpi/       mpi4py's methods replaced, and a shim behind C and Fortran
    jax/       the calls of one process

Limits. Hooks call the recorder and nothing above it. What a stack does not show stands in the
trace's facts ("unseen"), and the report says so.

To add a stack: a `Stack` and its `Hooks` in a folder of their own, a maker in `attachment.stacks`.
"""
