"""Record where the script calls collectives (file, line and function), in one step of many, and in
the first two, as a job may hang soon.

For that step the methods of torch's `ProcessGroup`, which all Python calls use, are replaced;
compiled kernels and DDP's reducer are not affected. The first collective of each kind (group,
operation, bytes) gets its call site as a name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from types import FrameType
from typing import Any

from evenstep.agent.pulse.frames import first_outside
from evenstep.agent.recording.collector import signal_behind
from evenstep.agent.recording.recorder import Recorder
from evenstep.hooks.wrapping import replace_attribute, undo
from evenstep.trace.spool.layout import HALF_NAME, WORD_BYTES_IN, WORD_KIND, WORD_STEP, Kind

EVERY_STEPS = 64
MOST_SITES = 256  # different ones in a trace
#: How the names of methods begin that issue an operation; torch 2.13 has renamed some of them.
_ISSUES = re.compile("_?(all|broadcast|reduce|gather|scatter|barrier|monitored_barrier|send|recv)")

_MOVES = (int(Kind.COLLECTIVE), int(Kind.POINT_TO_POINT))


class CallSites:
    """Records the call sites of the training thread's first steps and every `EVERY_STEPS`-th."""

    def __init__(self, torch: Any, recorder: Recorder) -> None:
        self._group = torch._C._distributed_c10d.ProcessGroup
        self._library = str(Path(torch.__file__).parent)
        self._recorder = recorder
        self._undo: list[Callable[[], None]] = []
        self._seen: set[tuple[int, int, int]] = set()
        self._sites: set[str] = set()

    def begins(self, step: int) -> int:
        """A step begins: replace the methods for it, or restore them; return the next such step."""
        if self._undo:
            self.remove()
        if step < 2 or step % EVERY_STEPS == 0:
            self._seen.clear()
            for name in filter(_ISSUES.match, tuple(vars(self._group))):
                self._replace(name)
            return step + 1
        return step + EVERY_STEPS - step % EVERY_STEPS

    def remove(self) -> None:
        """Restore torch's own methods."""
        undo(self._undo)

    def _replace(self, name: str) -> None:
        original = vars(self._group)[name]  # `getattr` may unwrap it
        spool = self._recorder.spool

        def method(*args: Any, **kwargs: Any) -> Any:
            if get_ident() != self._recorder.ident:
                return original(*args, **kwargs)
            before = spool.last_number()
            result = original(*args, **kwargs)
            try:
                self._note(before, sys._getframe(1))
            except Exception as error:  # the spool was shut in the meantime, or a script's handler
                if signal_behind(error) is not None:
                    raise
            return result

        method._torchdynamo_disable = True  # type: ignore[attr-defined]
        self._undo.append(replace_attribute(self._group, name, method))

    def _note(self, before: int, frame: FrameType) -> None:
        """Name the first collective after record `before`, if its kind has no name in this step."""
        spool = self._recorder.spool
        words = spool.words
        for seq in range(before + 1, spool.last_number() + 1):
            base = spool.word_of(seq)
            last = words[base + WORD_KIND]
            if words[base] != seq or last >> 48 & 0xFF not in _MOVES:
                continue
            like = (words[base + WORD_STEP] >> 32, last >> 56, words[base + WORD_BYTES_IN])
            if like in self._seen:
                return
            self._seen.add(like)
            site = first_outside(frame, self._library)
            if site and (site in self._sites or len(self._sites) < MOST_SITES):
                self._sites.add(site)
                spool.halves[base * 4 + HALF_NAME] = spool.name_id(site)
            return
