"""Pacing changed while the job runs: a small file in the run's folder that every rank looks at.

Each rank asks once per sampling period, on the background thread, whether the file has changed,
and takes a change over at the end of a step. Where ranks pace together (`pace.sharing`) only rank 0
reads the file. It tells the others through the job's store from which step on the change holds, far
enough ahead for all of them to hear of it, so that no two ranks follow different rules in a step.
Where each rank decides alone they follow within a period of each other. Only delays change: never
what is computed, nor the order of collectives.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import monotonic_ns
from typing import Any, NamedTuple

from evenstep.agent import config
from evenstep.errors import ConfigError
from evenstep.pacing import PacerSettings
from evenstep.trace.layout import Actuator, Kind
from evenstep.trace.spool import Spool

FILE = "control.json"
SCHEMA = "evenstep.control/1"
MOST_BYTES = 4096

LEAD_PERIODS = 3  # the others hear within one, and their rhythm may be disturbed
LEAD_STEPS = 8
RHYTHM = 4  # looks whose distances say how often ranks look: the sampler rests when it costs much


class Change(NamedTuple):
    """How pacing is to be from `first_step` on; None leaves a value as it is."""

    number: int  # of the request: 1, 2, 3 … in a run's folder
    mode: str
    threshold: float | None = None
    max_delay: float | None = None
    first_step: int = 0  # the first step that is decided by it; 0 is as soon as it is heard

    def applied_to(self, settings: PacerSettings) -> PacerSettings:
        """The settings of a pacer that follows the change."""
        return replace(
            settings,
            mode=self.mode,
            imbalance=settings.imbalance if self.threshold is None else self.threshold,
            max_delay=settings.max_delay if self.max_delay is None else self.max_delay,
        )


def valid(values: Mapping[str, Any], *, number: int) -> Change:
    """A change of these values. Raises `ConfigError` naming the one that cannot be."""
    names = ("mode", "threshold", "max_delay")
    given = {f"pace.{name}": values.get(name) for name in names}
    if given["pace.mode"] is None:
        raise ConfigError("pace.mode is missing; give on, off or observe")
    found = config.resolve(given, {}, {})
    threshold = None if given["pace.threshold"] is None else found.pace_threshold
    max_delay = None if given["pace.max_delay"] is None else found.pace_max_delay
    return Change(number, found.pace_mode, threshold, max_delay)


def write(folder: Path, change: Change, run_id: str) -> Path:
    """Ask the ranks of a run to follow a change; the file appears whole or not at all."""
    path = folder / FILE
    values = {name: getattr(change, name) for name in ("number", "mode", "threshold", "max_delay")}
    scratch = folder / f".{FILE}.{os.getpid()}"
    text = json.dumps({"schema": SCHEMA, "run_id": run_id, **values}, indent=2)
    try:
        scratch.write_text(text + "\n")
        scratch.replace(path)
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}; a run is controlled by its owner"
        ) from error
    return path


def read(folder: Path, run_id: str) -> Change | None:
    """What was last asked of this run; None if nothing was, or of another run in this folder.

    Raises `ConfigError` naming what in the file cannot be.
    """
    path = folder / FILE
    try:
        text = path.read_bytes()[:MOST_BYTES]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    try:
        found = json.loads(text)
        number = found["number"]
        if found["schema"] != SCHEMA or type(number) is not int or number < 1:
            raise ValueError
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged; write it with `evenstep ctl`") from error
    if found.get("run_id") != run_id:
        return None
    try:
        return valid(found, number=number)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


class Control:
    """One rank's ear for changes. `poll` belongs to the background thread, `due` to both.

    `due` holds what was heard and is not in force yet: the background thread appends, the training
    thread takes from the left.
    """

    def __init__(self, folder: Path, run_id: str, *, leads: bool) -> None:
        self.due: deque[Change] = deque(maxlen=16)
        self._folder = folder
        self._run_id = run_id
        self._leads = leads
        self._seen: tuple[int, int, int] | None = None  # the file as it last was
        self._store: Any = None  # the clone all messages go through; None: each rank alone
        self._key = ""
        self._heard: Change | None = None  # the last one that came through the store
        self._looks_ns: deque[int] = deque(maxlen=RHYTHM + 1)

    def connect(self, store: Any, prefix: str) -> None:
        """From here on rank 0 reads the file for all ranks."""
        self._store, self._key = store, f"{prefix}/control"
        self._seen = None  # what has been read before is said to all now

    def disconnect(self) -> None:
        """The store is gone: each rank reads the file itself."""
        self._store = None

    def poll(self, step: int, *, step_ns: int, period_ns: int) -> None:
        """Look for a change; `step` is the one that runs. Raises what a damaged file deserves."""
        self._looks_ns.append(monotonic_ns())
        if self._store is not None and not self._leads:
            self._listen()
            return
        change = self._changed_file()
        if change is None:
            return
        if self._store is not None:
            change = change._replace(first_step=step + lead(step_ns, self._rhythm_ns(period_ns)))
            self._store.set(self._key, json.dumps(change).encode())
        self.due.append(change)

    def _rhythm_ns(self, period_ns: int) -> int:
        """The longest time between two of the latest looks; other ranks' will be alike."""
        between = (later - earlier for earlier, later in pairwise(self._looks_ns))
        return max(period_ns, *between, 0)

    def _changed_file(self) -> Change | None:
        try:
            found = (self._folder / FILE).stat()
        except FileNotFoundError:
            return None
        stamp = (found.st_mtime_ns, found.st_ino, found.st_size)
        if stamp == self._seen:
            return None
        self._seen = stamp
        return read(self._folder, self._run_id)

    def _listen(self) -> None:
        """Take what rank 0 has said, without ever waiting for it."""
        if not self._store.check([self._key]):
            return
        change = Change(*json.loads(bytes(self._store.multi_get([self._key])[0])))
        if change != self._heard:
            self._heard = change
            self.due.append(change)


def record(spool: Spool, settings: PacerSettings, *, number: int, step: int) -> None:
    """Write into the trace how pacing is from `step` on, and which request asked for it."""
    words = f"asked to: {settings.mode}"
    words += f" (threshold {settings.imbalance:g}, max delay {settings.max_delay:g})"
    now = monotonic_ns()
    spool.put(now, now, int(Kind.PACING), int(Actuator.NONE), step, name=spool.name_id(words))
    spool.add_fact(
        "pace",
        {
            "mode": settings.mode,
            "threshold": settings.imbalance,
            "max_delay": settings.max_delay,
            "request": number,
            "since_step": step,
        },
    )


def lead(step_ns: int, rhythm_ns: int) -> int:
    """How many steps ahead a change is made, so that every rank has heard of it."""
    return LEAD_STEPS + LEAD_PERIODS * rhythm_ns // max(step_ns, 1)
