"""What disturbs jobs from outside, carried out at its time: for tiers whose links are real.

A thread of the campaign's process. It looks every few milliseconds at how far the jobs are, so that
what goes by steps happens in the step it is meant for, or at most one later where steps are shorter
than that.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence

from lab.board import Pulse
from lab.fair.disturbances import Disturbance
from lab.fair.link import Fabric

LOOK_S = 0.003
_BURN = "import sys; from lab.fair.disturbances import burn; burn(float(sys.argv[1]))"


class Conductor:
    """Tells disturbances the time and the jobs' steps until it is closed."""

    def __init__(self, disturbances: Sequence[Disturbance], pulses: Mapping[int, Pulse]) -> None:
        self.failure: Exception | None = None
        self._disturbances = disturbances
        self._pulses = pulses
        self._seen = dict.fromkeys(pulses, -1)
        self._clock = Fabric([])  # of an emulated link only its time is needed
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evenstep-lab", daemon=True)
        if disturbances:
            self._thread.start()

    def close(self) -> None:
        """Nothing happens from here on."""
        self._over.set()
        if self._disturbances:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._over.wait(LOOK_S):
                self._look()
        except Exception as error:  # said by the tier's check
            self.failure = error

    def _look(self) -> None:
        self._clock.now_ns = time.monotonic_ns()
        for job, pulse in self._pulses.items():
            step = pulse.steps
            if step > self._seen[job]:
                self._seen[job] = step
                for one in self._disturbances:
                    one.stepped(job, step, self._clock)
        for one in self._disturbances:
            if one.due_ns <= self._clock.now_ns:
                one.act(self._clock)


def hog_command(share: float) -> list[str]:
    """Computes for a share of the time until it is killed."""
    return [sys.executable, "-c", _BURN, str(share)]
