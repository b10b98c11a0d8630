"""The agent of a running job taken out and put back between two steps.

`detach` and `attach` would open a spool every time and read the machine's layout anew, so the
agent stays and what runs per event is removed: the collectives' kernels or hooks, `Work.wait`, the
phase and optimizer hooks, the collector's callback, and the work of the background thread (its
rhythm goes on). Off, torch is as it was without evenstep; what stays is an idle thread and memory.
"""

from __future__ import annotations

from typing import Any

from evenstep.agent.recording.phases import Word
from evenstep.attachment import agent
from evenstep.hooks.torch.install import TorchHooks


class Toggle:
    """Switches the attached agent, which must be attached and is on at first."""

    def __init__(self, torch: Any) -> None:
        attached = agent.current()
        if attached is None:
            raise RuntimeError("evenstep is not attached")
        self.on = True
        self._torch = torch
        self._agent = attached
        sampler: Any = attached._background.sampler
        tick = sampler.tick
        period_s = attached.config.sample_period_s
        sampler.tick = lambda: tick() if self.on else period_s

    def switch(self, on: bool) -> None:
        """Put everything in place, or take it out."""
        if on == self.on:
            return
        self.on = on
        attached = self._agent
        if not on:
            attached._hooks["torch"].remove()
            attached._pauses.remove()
            return
        hooks: Any = attached._hooks["torch"]
        attached._hooks["torch"] = TorchHooks(
            self._torch, attached, hooks._groups,
            session=hooks._native and hooks._native.session,
        )  # fmt: skip
        attached._hooks["torch"].install()
        attached._pauses.install()
        attached.recorder.words[Word.ATTENDED] = 0

    @property
    def collectives(self) -> int:
        """Collectives the recorder has been told of in the step that runs."""
        recorder = self._agent.recorder
        return len(recorder.issued(recorder.after, recorder.spool.last_number()))

    def check(self) -> None:
        """Raise `RuntimeError` where the agent has given up: there would be nothing to measure."""
        if self._agent.failure:
            raise RuntimeError(f"the agent stopped observing: {self._agent.failure}")
