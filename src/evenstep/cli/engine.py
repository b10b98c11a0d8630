"""`--engine`, `--address` and `--workers`: who carries out the work of a command."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from evenstep.errors import UsageError

if TYPE_CHECKING:
    from evenstep.workers.engines import Engine


def add_arguments(parser: argparse.ArgumentParser, *, workers: str) -> None:
    """The three options; `workers` says how many there are without `--workers`."""
    parser.add_argument(
        "--engine", choices=("local", "ray"), default="local",
        help="processes of this machine (default), or a Ray cluster",
    )  # fmt: skip
    parser.add_argument(
        "--address", metavar="HOST:PORT", help="of a running Ray cluster; one of our own without"
    )
    parser.add_argument("--workers", metavar="N", type=int, help=f"processes ({workers})")


def chosen(args: argparse.Namespace, *, workers: int | None = None) -> Engine:
    """The engine that was asked for. Raises `UsageError` for options that do not fit."""
    if args.workers is not None and args.workers < 1:
        raise UsageError(f"--workers must be at least 1, found {args.workers}")
    if args.engine == "ray":
        from evenstep.workers.ray_engine import RayEngine

        return RayEngine(args.address, args.workers)
    if args.address is not None:
        raise UsageError("--address is of a Ray cluster: add --engine ray")
    from evenstep.workers.engines import Local

    return Local(args.workers or workers)


def is_here(engine: Engine) -> bool:
    """Whether this process itself does the work."""
    from evenstep.workers.engines import Local

    return isinstance(engine, Local) and engine.workers == 1
