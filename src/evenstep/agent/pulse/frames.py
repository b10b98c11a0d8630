"""The frames of a thread as text: "train/loop.py:31 step", innermost first.

File, line and function, never a variable's value. Frames of evenstep are left out; files of Python,
of torch and of what only it calls are in angle brackets, those of other installed packages begin
with the folder of packages ("site-packages/").
"""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from itertools import accumulate, chain, filterfalse, islice, repeat, takewhile
from operator import attrgetter, methodcaller, truth
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import CodeType, FrameType
from typing import Any

from evenstep.trace.frames import PACKAGES, distance

DEEPEST = 12  # frames kept, from the innermost
MOST_WALKED = 32 * DEEPEST  # frames read: those of evenstep are not kept
_OURS = str(Path(__file__).parents[2])
_PYTHON = str(Path(os.__file__).parent)
_TORCH = tuple(f"-packages/{name}" for name in ("torch/", "typing_extensions.py", "sympy/"))
#: A frame as `traceback` and `faulthandler` write it.
_QUOTED = re.compile(r'^ *File "(.+)", line (\d+),? in (.+)$', re.MULTILINE)
_INSTALLED = re.compile(rf"[^/]*{PACKAGES}.*")
_PARTS = 3  # last parts of a file's path that are shown
_named: Callable[[CodeType], tuple[str, str]] = attrgetter("co_filename", "co_name")
_called: Callable[..., Any] = methodcaller("__call__")


def frames_of_thread(ident: int) -> list[str]:
    """The frames of a running thread; none where there is no such thread, or where it only waits
    for others at the interpreter's end.

    Python 3.11 may collect garbage where it makes the object of a frame. A callback of the
    collector, or a finalizer, that then lets another thread run leaves the list of threads locked
    (until 3.11.9: github.com/python/cpython/issues/106883), or an object of a frame that has
    returned: what is read through it is other memory. So garbage is not collected meanwhile, and
    all is read by one statement within which no Python code and no other thread runs.
    """
    innermost = map(methodcaller("get", ident), map(_called, (sys._current_frames,)))
    walk = accumulate(chain(innermost, repeat("f_back", MOST_WALKED)), getattr)
    read: Callable[[], list[Any]] = partial(
        list, map(attrgetter("f_code", "f_lineno"), takewhile(truth, walk))
    )
    if sys.version_info[:2] != (3, 11) or not gc.isenabled():
        return _of_script(read())
    try:
        _, walked, _ = map(_called, (gc.disable, read, gc.enable))
    except BaseException:
        gc.enable()
        raise
    return _of_script(walked)


def _of_script(walked: list[Any]) -> list[str]:
    """The frames of these codes and lines; none of those that C calls when a script has ended."""
    ends = bool(walked) and _named(walked[-1][0]) == (threading.__file__, "_shutdown")
    return [] if ends else _texts((*_named(code), line) for code, line in walked)


def first_outside(frame: FrameType, folder: str = _OURS) -> str:
    """The innermost frame whose file is neither ours, nor Python's or torch's, nor below `folder`;
    "" for none."""
    for each, line in walk_stack(frame):
        name = each.f_code.co_filename
        file, ours = _place(name)
        bracketed = file.startswith("<") and file != name  # that of `python -c` is "<string>"
        if not (ours or bracketed or name.startswith(folder)):
            return f"{file}:{line} {each.f_code.co_name}"
    return ""


class ScriptEnd:
    """Where the script ended that runs on this thread: the last line of its module that was
    executed. A bare `raise SystemExit` leaves nothing else. The frame may be kept: what it refers
    to lives as long as the interpreter."""

    def __init__(self) -> None:
        self._module: FrameType | None = None
        for frame, _ in walk_stack(sys._getframe()):
            file, ours = _place(frame.f_code.co_filename)
            if frame.f_code.co_name == "<module>" and not (ours or distance(file)):
                self._module = frame

    def frames(self) -> list[str]:
        """That line as the one frame; none where the script is still running on this thread."""
        module = self._module
        if module is None or any(each is module for each, _ in walk_stack(sys._getframe())):
            return []
        return _texts([(*_named(module.f_code), module.f_lineno)])


def frames_of_errors(raised: Iterable[BaseException], message: str) -> list[str]:
    """The frames exceptions came through, each led to the next; before them those of a traceback
    that the first one's `message` quotes, as of a loader's worker."""
    quoted = ((file, name, int(line)) for file, line, name in reversed(_QUOTED.findall(message)))
    walks = (reversed(list(walk_tb(error.__traceback__))) for error in raised)
    own = ((*_named(each.f_code), line) for walk in walks for each, line in walk)
    return _texts(chain(quoted, own))


def frames_of_report(text: str) -> list[str]:
    """The frames in a report of `faulthandler`: of the thread that the signal struck or, where that
    runs no Python, of the main one, which comes last, and not where there are over a hundred."""
    listed, cut, _ = text.partition("\n...\n")
    threads = re.split(r"^(?=(?:Current t|T)hread 0x)", listed, flags=re.MULTILINE)[1:]
    found = {each.startswith("C"): _QUOTED.findall(each) for each in threads}
    told = found.get(True) or ([] if cut else found.get(False, []))
    return _texts((file, name, int(line)) for file, line, name in told)


def _texts(walked: Iterable[tuple[str, str, int | None]]) -> list[str]:
    """The innermost frames, of these files, functions and lines, and behind them the script's
    innermost where none of them is."""
    named = ((*_place(file), name, line) for file, name, line in walked)
    texts = (f"{file}:{line} {name}" for file, ours, name, line in named if not ours)
    kept = list(islice(texts, DEEPEST))
    if all(map(distance, kept)):
        kept += islice(filterfalse(distance, texts), 1)
    return kept


@lru_cache(maxsize=1024)
def _place(file: str) -> tuple[str, bool]:
    """The end of a file's path, and whether the file is ours."""
    path = os.path.normpath(file)
    installed = _INSTALLED.search(path)
    bracketed = (file.startswith(_PYTHON) and not installed) or any(part in file for part in _TORCH)
    end = "/".join(Path(path).parts[-_PARTS:])
    end = installed[0] if installed and not bracketed else end
    return f"<{end}>" if bracketed else end, file.startswith(_OURS)
