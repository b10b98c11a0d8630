"""A request to change a running job's pacing, and its file in the run's folder."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from evenstep.agent.settings import config
from evenstep.agent.settings.selection import ALL, OFF, PACE, Selection
from evenstep.errors import ConfigError
from evenstep.trace.spool.files import read_own, write_whole

if TYPE_CHECKING:
    from evenstep.pacing import PacerSettings

FILE = "control.json"
SCHEMA = "evenstep.control/1"
MOST_BYTES = 4096


class SettingsChange(NamedTuple):
    """A change from `first_step` on; None leaves a value as it is."""

    number: int  # of the request: 1, 2, 3 … in a run's folder
    mode: Literal["off", "observe", "on"] | None  # of pacing
    threshold: float | None = None
    max_delay: float | None = None
    ranks: str | None = None  # these four are as in `Selection`, or "all"
    nodes: str | None = None
    partitions: str | None = None
    first_nodes: int | str | None = None
    act: str | None = None  # the actions, as in the settings
    first_step: int = 0  # the first step that it applies to; 0: as soon as it is received

    def applied_to(self, settings: PacerSettings, *, chosen: bool = True) -> PacerSettings:
        """The settings after the change; only a chosen rank may be held."""
        mode = self.mode and allowed_mode(self.mode, chosen=chosen)
        asked = {"mode": mode, "imbalance": self.threshold, "max_delay": self.max_delay}
        given: Any = {name: value for name, value in asked.items() if value is not None}
        return replace(settings, **given)

    def part_of(self, before: Selection) -> Selection:
        """The part of the job that is paced from now on."""
        given = {name: getattr(self, name) for name in Selection._fields}
        return before._replace(
            **{k: None if v == ALL else v for k, v in given.items() if v is not None}
        )


#: Values of pacing that a request may change, in the file and on the command line.
VALUES = ("mode", "threshold", "max_delay", *Selection._fields)


def allowed_mode(mode: str, *, chosen: bool) -> str:
    """The mode of a rank inside (`chosen`) or outside the part of the job that is paced."""
    return mode if chosen or mode != "on" else "observe"


def valid(values: Mapping[str, Any], *, number: int) -> SettingsChange:
    """Make a change of these values. Raises `ConfigError` naming an invalid one."""
    given = {f"pace.{name}": values.get(name) for name in VALUES}
    act = values.get("act")
    if given["pace.mode"] is None and act is None:
        raise ConfigError("pace.mode is missing; give on, off or observe")
    found = config.resolve({**given, "act": act}, {}, {})
    taken: dict[str, Any] = {"mode": None, "act": None if act is None else found.act}
    for name in VALUES:
        if given[f"pace.{name}"] is not None:
            value = getattr(found, f"pace_{name}")
            taken[name] = ALL if value is None else value
    if act is not None:  # pacing is one of the actions
        paces, stays_off = PACE in found.act.split(","), taken["mode"] == OFF
        taken["mode"] = "on" if paces else OFF if stays_off else "observe"
    return SettingsChange(number, **taken)


def write(folder: Path, change: SettingsChange, run_id: str, *, name: str = FILE) -> Path:
    """Write a request to the ranks of a run; the file appears whole or not at all."""
    path = folder / name
    try:
        write_whole(path, encode(change, run_id))
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}; a run is controlled by its owner"
        ) from error
    return path


def read(folder: Path, run_id: str, *, name: str = FILE) -> SettingsChange | None:
    """The last request to this run; None without one, or for another run in this folder.

    Raises `ConfigError` naming an invalid value.
    """
    path = folder / name
    try:
        data = read_own(path, MOST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise ConfigError(f"{path} is not followed: {reason}") from error
    return decode(data, run_id, str(path))


def encode(change: SettingsChange, run_id: str) -> bytes:
    """A change as bytes of the file and of rank 0's message."""
    document = {"schema": SCHEMA, "run_id": run_id, **change._asdict()}
    return (json.dumps(document, indent=2) + "\n").encode()


def decode(data: bytes, run_id: str, place: str) -> SettingsChange | None:
    """The inverse; `place` is its origin in messages. Returns and raises as `read`."""
    try:
        if len(data) > MOST_BYTES:
            raise ValueError
        found = json.loads(data)
        number, first_step = found["number"], found.get("first_step", 0)
        if found["schema"] != SCHEMA or type(number) is not int or number < 1:
            raise ValueError
        if type(first_step) is not int or first_step < 0:
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{place} is damaged; write it with `evenstep ctl`") from error
    if found.get("run_id") != run_id:
        return None
    try:
        return valid(found, number=number)._replace(first_step=first_step)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error
