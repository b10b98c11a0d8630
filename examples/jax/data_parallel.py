"""Data-parallel JAX on CPU processes: `evenstep run -- python examples/jax/data_parallel.py`.

It starts its own processes. Rank `--late` sleeps before every step; all meet at the end of each.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time


def train(rank: int, world: int, port: int, steps: int, late: int, delay_s: float) -> None:
    """One process's part: a gradient of its own batch, averaged over all of them."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", world, rank)
    from jax.experimental import multihost_utils

    import evenstep

    gradient = jax.jit(jax.grad(lambda weights, batch: jnp.mean((batch @ weights) ** 2)))
    weights, batch = jnp.ones(64), jnp.ones((32, 64)) * (rank + 1)
    for _ in range(steps):
        time.sleep(delay_s if rank == late else 0.0)
        own = gradient(weights, batch)
        weights -= 1e-4 * multihost_utils.process_allgather(own).reshape(world, -1).mean(axis=0)
        evenstep.step()
    print(f"rank {rank}: {float(weights.sum()):.4f}")


def main() -> int:
    """Start the processes, or be one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--late", type=int, default=1, help="the rank that sleeps; -1 for none")
    parser.add_argument("--delay-ms", type=float, default=20.0)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        delay_s = args.delay_ms / 1000
        train(args.rank, args.processes, args.port, args.steps, args.late, delay_s)
        return 0
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, *sys.argv[1:], "--port", str(port), "--rank"]
    environ = os.environ | {"JAX_PLATFORMS": "cpu"}
    ranks = [subprocess.Popen([*command, str(rank)], env=environ) for rank in range(args.processes)]
    return max(rank.wait() for rank in ranks)


if __name__ == "__main__":
    raise SystemExit(main())
