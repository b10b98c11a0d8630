"""Infer the steps of a loop that marks none: no optimizer of torch, no `evenstep.step()`.

A wait for a collective always enters Python. There the training thread reads the collectives that
it has issued since the last wait from the ring of its own spool; what repeats is a step.
"""

from __future__ import annotations

from threading import get_ident
from time import monotonic_ns

from evenstep.agent.recording.recorder import Recorder
from evenstep.hooks.repeating import MESSAGE, InferredSteps
from evenstep.hooks.torch.groups import Groups
from evenstep.trace.spool.layout import WORD_BYTES_IN, WORD_KIND, WORD_STEP, WORD_THREAD, Kind

MOST_OPEN = 1024  # calls whose end is awaited

_COLLECTIVE, _POINT_TO_POINT = int(Kind.COLLECTIVE), int(Kind.POINT_TO_POINT)


class RepeatedSteps:
    """Feeds `InferredSteps` from a spool, on the training thread."""

    def __init__(self, steps: InferredSteps, recorder: Recorder, groups: Groups) -> None:
        self._steps = steps
        self._recorder = recorder
        self._spool = recorder.spool
        self._groups = groups
        self._widths: dict[int, int] = {}  # sizes of groups, by index
        self._looked = recorder.spool.last_number()  # the last record that was read
        self._open: list[int] = []  # calls that have not ended

    @property
    def known(self) -> bool:
        """Whether steps end by repetition."""
        return self._steps.known

    @property
    def off(self) -> bool:
        """Whether other code marks the steps, from now on."""
        return self._steps.off or self._recorder.manual

    def leave(self) -> None:
        """End no more steps, because other code marks them."""
        self._steps.leave()
        self._open.clear()

    def waited(self) -> None:
        """Read new records, after a wait on any thread."""
        if self._steps.off or get_ident() != self._recorder.ident:
            return
        now, spool = monotonic_ns(), self._spool
        newest = spool.last_number()
        for seq in range(max(self._looked + 1, newest - MOST_OPEN), newest + 1):
            self._look(seq, now)
        self._looked = newest
        ended = [seq for seq in self._open if (times := spool.times(seq)) is None or times[1]]
        for seq in ended:
            self._open.remove(seq)
            self._steps.left(seq, now)

    def _look(self, seq: int, now_ns: int) -> None:
        """Enter a record, if it is a call of the training thread."""
        words, base = self._spool.words, self._spool.word_of(seq)
        last = words[base + WORD_KIND]
        kind = last >> 48 & 0xFF
        ours = words[base] == seq and not words[base + WORD_THREAD] & 0xFFFF  # number 0
        if not ours or kind not in (_COLLECTIVE, _POINT_TO_POINT):
            return
        group = words[base + WORD_STEP] >> 32
        if group not in self._widths:
            self._widths = self._groups.widths()
        width = MESSAGE if kind == _POINT_TO_POINT else self._widths.get(group, 1)
        if width == 1:
            return
        like = (group, last >> 56, last & 0xFFFFFFFF, words[base + WORD_BYTES_IN])
        learns = not self._steps.known  # the end of every call is needed
        if learns and len(self._open) < MOST_OPEN:
            self._open.append(seq)
        self._steps.entered(seq, width, like, now_ns)
        if not learns and self._steps.ending == seq:
            self._open.append(seq)
