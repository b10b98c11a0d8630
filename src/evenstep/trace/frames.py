"""The frames of a stack as a trace has them: "train/loop.py:31 step", innermost first.

Files of Python and torch and generated code are in angle brackets, those of other installed
packages begin with the folder of packages: "site-packages/peft/tuners/lora.py:9 forward".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from operator import ne

SEPARATOR = " < "  # between frames
PACKAGES = "-packages/"  # ends the folder's name: "site-packages", of Debian "dist-packages"
_TYPED = ("<stdin>", "<ipython")  # begin the frames of code that a person has typed


def distance(frame: str) -> int:
    """How far from the script: 0 of it, 1 of a package, 2 generated, 3 of Python or torch."""
    if frame.startswith("<") and not frame.startswith(_TYPED):
        return 3 - frame.startswith("<string>")
    return int(PACKAGES in frame)


def own_place(frames: Sequence[str]) -> str:
    """The innermost of the frames that are nearest to the script; "" of none."""
    return min(frames, key=distance, default="")


def called_there(frames: Sequence[str]) -> str:
    """The innermost frame of an installed package that `own_place` had called; "" of none."""
    inside = takewhile(partial(ne, own_place(frames)), frames)
    return next((frame for frame in inside if distance(frame) == 1), "")
