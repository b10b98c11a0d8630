"""Hooks that observe torch, MPI and JAX in the process and feed the recorder, without edits.

Each stack implements the protocols of `agent.stacks`, with hooks that are installed, disarmed at
once and removed:

    torch/     kernels (compiled or Python's own), phases, device times
    mpi/       replaced methods of mpi4py, and a shim for C and Fortran
    jax/       the calls of one process

Limits. Hooks call the recorder and nothing above it. Operations that a stack does not show are in
the trace's facts ("unseen"), and the report lists them.

To add a stack: a `Stack` and its `Hooks` in a folder of their own, a maker in `attachment.agent`.
"""
