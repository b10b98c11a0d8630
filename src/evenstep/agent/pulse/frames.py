"""Where a thread is, as people read it: "train/loop.py:31 step", innermost first.

File, line and function, never a variable's value. Frames of evenstep itself are left out; files of
Python and torch, in which nobody's own code is, stand in angle brackets.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import CodeType, FrameType

DEEPEST = 12  # frames kept, from the innermost
_OURS = str(Path(__file__).parents[2])
_PYTHON = str(Path(os.__file__).parent)
_PACKAGES, _TORCH = "-packages/", "-packages/torch/"  # "site-packages", of Debian "dist-packages"
_PARTS = 3  # of a file's path: enough to know it by


def frames_of(frame: FrameType) -> list[str]:
    """The frames of a running thread."""
    return _told((each.f_code, line) for each, line in walk_stack(frame))


def first_outside(frame: FrameType, folder: str) -> str:
    """The innermost of the frames whose file is neither ours nor below a folder; "" for none."""
    for each, line in walk_stack(frame):
        file, ours = _place(each.f_code.co_filename)
        if not ours and not each.f_code.co_filename.startswith(folder):
            return f"{file}:{line} {each.f_code.co_name}"
    return ""


def frames_of_error(error: BaseException) -> list[str]:
    """The frames an exception came through."""
    walked = [(each.f_code, line) for each, line in walk_tb(error.__traceback__)]
    return _told(reversed(walked))


def _told(walked: Iterable[tuple[CodeType, int | None]]) -> list[str]:
    named = ((*_place(code.co_filename), code.co_name, line) for code, line in walked)
    told = (f"{file}:{line} {name}" for file, ours, name, line in named if not ours)
    return list(islice(told, DEEPEST))


@lru_cache(maxsize=1024)
def _place(file: str) -> tuple[str, bool]:
    """The end of a file's path, and whether it is one of ours."""
    end = "/".join(Path(file).parts[-_PARTS:])
    python = file.startswith(_PYTHON) and _PACKAGES not in file
    return f"<{end}>" if python or _TORCH in file else end, file.startswith(_OURS)
