"""Data-parallel gradient descent in numpy over MPI, without any framework.

    mpiexec -n 2 evenstep run -- python examples/mpi/averaging.py
    evenstep run -- mpiexec -n 2 python examples/mpi/averaging.py

Rank `--late` sleeps before every step. The script knows nothing of evenstep.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from mpi4py import MPI


def main() -> None:
    """Fit a line, each rank on its own samples."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--late", type=int, default=1, help="the rank that sleeps; -1 for none")
    parser.add_argument("--delay-ms", type=float, default=20.0)
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    random = np.random.default_rng(comm.rank)
    truth = comm.bcast(np.linspace(-1, 1, 256) if comm.rank == 0 else None)
    weights, total = np.zeros(256), np.empty(256)
    for _ in range(args.steps):
        time.sleep(args.delay_ms / 1000 if comm.rank == args.late else 0.0)
        batch = random.standard_normal((512, 256))
        gradient = batch.T @ (batch @ (weights - truth)) / len(batch)
        comm.Allreduce(gradient, total)
        weights -= 0.2 * total / comm.size
    error = comm.allreduce(float(np.abs(weights - truth).max()), MPI.MAX)
    if comm.rank == 0:
        print(f"largest error after {args.steps} steps: {error:.4f}")


if __name__ == "__main__":
    main()
