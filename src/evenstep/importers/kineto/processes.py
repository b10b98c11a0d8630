"""A file into which the profiles of several processes were put, as one per process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.errors import TraceError
from evenstep.importers.kineto.file import KinetoFile, RowKind
from evenstep.importers.kineto.names import CALL, COMMS, OPTIMIZER_STEP, annotation, step_number
from evenstep.importers.kineto.places import info_of

Array = npt.NDArray[Any]

MOST_PROCESSES = 1_024


def by_process(file: KinetoFile) -> list[KinetoFile]:
    """A file per process that takes steps or part in collectives, in order of their numbers.

    A device that has a process number of its own, as profilers write it, belongs to the process in
    the same place. Raises `TraceError` where there are more or fewer devices than processes.
    """
    index: dict[Any, int] = {}
    of_thread = [index.setdefault(process, len(index)) for process, _ in file.threads]
    numbers, process = list(index), np.array(of_thread)[file.rows.thread]
    ranks = sorted(_training(file, process), key=lambda number: _order(numbers[number]))
    if len(ranks) < 2:
        return [file]
    if len(ranks) > MOST_PROCESSES:
        raise TraceError(
            f"{file.path} holds {len(ranks)} processes that train, more than any host runs"
        )
    owner = np.arange(len(numbers))
    on_device = np.unique(process[file.rows.row == int(RowKind.KERNEL)])
    strange = [number for number in on_device.tolist() if number not in ranks]
    if strange and len(strange) != len(ranks):
        raise TraceError(
            f"{file.path} holds {len(ranks)} processes and kernels of {len(strange)} "
            "devices, and does not say whose they are; export one file per process"
        )
    owner[sorted(strange, key=lambda number: _order(numbers[number]))] = ranks[: len(strange)]
    return [_part(file, str(numbers[number]), owner[process] == number) for number in ranks]


def _training(file: KinetoFile, process: Array) -> list[int]:
    """Processes with a mark of a step, of an optimizer, or a collective."""
    names = np.array([_marks(name) for name in file.names], bool)
    host = np.isin(file.rows.row, [int(RowKind.OPERATOR), int(RowKind.ANNOTATION)])
    return [int(number) for number in np.unique(process[host & names[file.rows.name]])]


def _marks(name: str) -> bool:
    told = name == COMMS or name.startswith((CALL, OPTIMIZER_STEP))
    return told or step_number(name) is not None or annotation(name) is not None


def _order(number: Any) -> tuple[bool, int, str]:
    """Process numbers by size; what is no number after them."""
    text = str(number)
    whole = text.isascii() and text.isdigit() and len(text) < 20
    return not whole, int(text) if whole else 0, text


def _part(file: KinetoFile, process: str, mine: Array) -> KinetoFile:
    said = {key: value for key, value in info_of(file).items() if key != "rank"}
    header = {**file.header, "distributedInfo": said}
    return replace(file, header=header, rows=file.rows.select(mine), process=process)
