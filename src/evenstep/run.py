"""`torchrun … -m evenstep.run train.py ARGS`: run a script as `python train.py` does, observed.

For jobs that can use neither `evenstep run` nor environment variables. `-m evenstep.run -m
package.module ARGS` runs a module. The run is not diagnosed at its end: use `evenstep diagnose`.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from evenstep import attachment
from evenstep.agent import arming

USAGE = "usage: python -m evenstep.run (SCRIPT | -m MODULE) [ARGUMENTS…]"


def main(argv: Sequence[str]) -> int:
    """Arm evenstep in this process and run the script in it."""
    os.environ.setdefault("EVENSTEP", "1")
    arming.arm_when_asked(attachment.arm)
    if argv and argv[0] == "-m" and len(argv) > 1:
        sys.argv[:] = argv[1:]  # runpy replaces the first by the module's path
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return 0
    if not argv or argv[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        return 2
    script = Path(argv[0])
    if not script.exists():
        print(f"evenstep: there is no script {argv[0]!r} in {Path.cwd()}", file=sys.stderr)
        return 2
    sys.argv[:] = argv
    if not getattr(sys.flags, "safe_path", False):  # then `-m` has put the current folder there
        sys.path[0] = str(script.resolve().parent)
    runpy.run_path(argv[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
