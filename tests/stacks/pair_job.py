"""One of two ranks: runs the examples of stacks one after the other, each with a trace of its own.

python pair_job.py FOLDER RANK PORT NAME…

A rank for all of them, since importing torch takes longer than any. What an example prints goes to
FOLDER/NAME-R.txt.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from pathlib import Path

import evenstep

EXAMPLES = Path(__file__).parents[2] / "examples" / "stacks"


def run(name, arguments, folder):
    """`python examples/stacks/NAME.py ARGUMENTS`, observed."""
    sys.argv = [name, *arguments]
    evenstep.attach(out=folder / name, verdict=False)
    text = folder / f"{name}-{os.environ['RANK']}.txt"
    with text.open("w") as output, contextlib.redirect_stdout(output):
        importlib.import_module(name).main()
    evenstep.detach()


def main(folder, rank, port, stacks):
    """Run all of them; they must not meet on one another's ports."""
    os.environ.update(RANK=rank, WORLD_SIZE="2", LOCAL_RANK=rank, MASTER_ADDR="localhost")
    sys.path.insert(0, str(EXAMPLES))
    with contextlib.suppress(PermissionError):  # so that a busy machine does not add to delays
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    for place, stack in enumerate(stacks):
        name, *arguments = stack.split()
        os.environ["MASTER_PORT"] = str(int(port) + place)
        run(name, arguments, Path(folder))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
