"""Read step tables: a row per worker and step with its duration, in CSV, JSON or Parquet.

Also read are tables with a column per worker, and files of experiment trackers: a column of
durations per run (Weights & Biases), a row per metric (MLflow), the history of one metric or of all
(TensorBoard, MLflow's store). Columns and units are found by names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from math import lgamma
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.errors import TraceError, nothing_read
from evenstep.importers.content import SourceFile, usable
from evenstep.importers.draft import Draft
from evenstep.importers.file_ranks import ranks_in_order
from evenstep.importers.kineto.names import MOST_NAMES, patterns_of, phase
from evenstep.importers.steps import tensorboard
from evenstep.importers.steps.records import WHOLE, WORK, Timed, trace_of
from evenstep.importers.tables import (
    COLUMNS,
    RELATIVE,
    Table,
    TableFile,
    column_of,
    columns_of,
    read_table,
    spell,
    table_file,
)
from evenstep.trace.columns import key_numbers, positions_by_key
from evenstep.trace.ranks import natural
from evenstep.trace.spool.layout import Phase
from evenstep.trace.trace import Trace

Array = npt.NDArray[np.float64]
Scalars = dict[str, list[tuple[int, float, float]]]  # step, time in s and value, by metric
Tracker = Callable[[Path, list[str]], Scalars]

NAME = "step table"
NAMES = COLUMNS["steps"]
_OF_ASCEND = {"sync": Phase.SYNC, "other": Phase.OTHER, "whole": WHOLE}
_TRUE = ("1", "1.0", "true")
#: What may be all of a name; of those in a group, as of `steps/sec`, the first two make a rate.
_UNIT_NAMES = ("sec", "second", "secs", "seconds", "ms", "us", "ns")
MOST_CELLS = 0.9  # share of workers × steps
MINOR = 0.05  # share of rows: fewer fall where clocks are set
BY_CHANCE = 0.01  # most, that all rows of a worker grow although they are durations
DAY_S = 86_400.0
LARGEST = float(1 << 53)  # whole numbers that a float64 tells apart
_STEP_TIME = re.compile(
    r"^(?:(?:train |avg |per )?(?:step|iter|iteration|batch|global step)s? (?:time|duration|timing"
    r"|cost)s?|(?:time|seconds) per (?:step|iter|iteration|batch)|end to end|duration|latency"
    r"|elapsed time per iteration|time this iter|seconds|train step timing(?: in)?)$"
)
_STEP = re.compile("step|iter|iteration|batch")  # whose durations have a unit of their own
_TOTAL = re.compile("(?:step )?total(?: time)?|elapsed(?: time)?")  # maybe since the beginning
_PARTS = patterns_of("parts")  # beside those of names in profiles
_WORKER = (
    r"(?:(?:node|host)[ _-]?\d{1,6}[ _./:-]?)?"
    r"(?:(?:global[ _-]?)?(?:rank|worker|process|replica|gpu|device|node)[ _.#-]?)?\d{1,7}"
)
_SAMPLED = re.compile(r"util|power|temperature|clock", re.IGNORECASE)  # by a monitor, at any time
_TIMED = re.compile(r"\b(?:times?|timings?|timers?)\b")  # in the name of a group of durations
#: A worker before or after the name of its durations: `rank3`, `gpu3.step_time_s`, `ms (rank 3)`.
_OF_WORKER = re.compile(
    rf"(?P<run>{_WORKER})(?:[ _./:|-]+(?P<of>.*))?"
    rf"|(?P<by>.+?)[ _./:|(-]+(?P<at>(?=[a-z]){_WORKER})\)?",
    re.IGNORECASE,
)
_EXTREMES = ("__MIN", "__MAX")  # beside each column of a run, in an export of Weights & Biases


class Duration(NamedTuple):
    """A column of durations."""

    name: str
    run: str  # in a table with a column per run or worker
    phase: int  # a `Phase`, or WHOLE
    unit_s: float
    total: bool = False  # of a step, or of all since the beginning
    alone: bool = False  # of a step only where no other time of it is told


class StepColumns(NamedTuple):
    """The names of a table's columns; "" for one that is missing."""

    file: TableFile
    rank: str
    places: list[str]  # of hosts and devices, where there is no rank
    step: str
    time: str
    phase: str
    epoch: str  # within which steps may be counted
    metric: str  # whose value stands in the column of the only duration
    durations: list[Duration]  # empty: durations follow from the times


def recognises(source: SourceFile) -> bool:
    """Whether a file has a step or a time, and a duration or a worker."""
    return _tracker_of(source) is not None or layout_of(source) is not None


def _tracker_of(source: SourceFile) -> Tracker | None:
    """The reader of an experiment tracker's files; None of a table."""
    if tensorboard.recognises(source.head):
        return tensorboard.scalars
    return tensorboard.scalars_of_run if tensorboard.is_run(source) else None


def layout_of(source: SourceFile) -> StepColumns | None:
    """Find the columns of a table; None where it is not of steps."""
    file = table_file(source)
    if file is None:
        return None
    named, ascend = columns_of(file, "steps"), columns_of(file, "ascend")
    rank, step, time, part = (named[what] for what in ("rank", "step", "time", "phase"))
    if not step and named["none"]:
        return None
    durations = [found for name in file.names if (found := duration_of(name)) is not None]
    if ascend["sync"]:
        rank, part = rank or ascend["rank"], ""
        durations = [Duration(ascend[what], "", int(of), 1e-6)
                     for what, of in _OF_ASCEND.items() if ascend[what]]  # fmt: skip
    if time in [each.name for each in durations]:
        time = ""
    metric, value = named["metric"], named["value"]
    if metric and value and not durations:
        durations = [Duration(value, "", WHOLE, 1.0)]
    else:
        metric, durations = "", durations or _of_workers(file, step or time)
    if not durations and file.names == ["Wall time", "Step", "Value"]:  # TensorBoard, one metric
        told = duration_of(source.path.name.partition("tag-")[2].removesuffix(".csv"))
        durations = [told._replace(name="Value")] if told else []
    sampled = not step and any(map(_SAMPLED.search, file.names))
    if not (step or time) or not (durations or (time and (step or (rank and not sampled)))):
        return None
    epoch = "" if named["epoch"] == step else named["epoch"]
    located = (column_of(file, [name]) for name in NAMES["host"] + NAMES["device"])
    places = [name for name in located if name and step and not rank]
    return StepColumns(file, rank, places, step, time, part, epoch, metric, durations)


def _of_workers(file: TableFile, place: str) -> list[Duration]:
    """The columns of a table that has nothing but one per worker, in the file's own unit."""
    runs = [name for name in file.names if name != place]
    if len(runs) < 2 or not all(re.fullmatch(_WORKER, name, re.IGNORECASE) for name in runs):
        return []
    part, unit = _told_by_name(file.path)
    return [Duration(name, name, part, unit or 1.0) for name in runs]


def _told_by_name(path: Path) -> tuple[int, float]:
    """The part of steps and the unit of a file's durations, by its name; 0 without one."""
    told = duration_of(path.name.partition(".")[0])
    return (told.phase, told.unit_s) if told else (WHOLE, 0.0)


@lru_cache(MOST_NAMES)
def duration_of(name: str) -> Duration | None:
    """Parse a name of durations: `perf/step_time_ms`, `run-3 - time_metrics/forward(s)`."""
    if name.endswith(_EXTREMES):
        return None
    run, _, metric = name.rpartition(" - ")
    if not run and (of := _OF_WORKER.fullmatch(name)):
        run, metric = of["run"] or of["at"], of["of"] or of["by"] or ""
    (of_all, all_unit), (core, unit) = (spell(part) for part in metric.rpartition("/")[::2])
    core = core.removeprefix("t ")  # `t_step_ms`
    total = _TOTAL.fullmatch(core) and (unit is not None or not core.endswith("total"))
    whole = total or (unit is not None and _STEP.fullmatch(core))
    if unit is None and _TIMED.search(of_all):
        unit = all_unit or 1.0
    if whole or _STEP_TIME.match(core) or core in _UNIT_NAMES[2 * bool(of_all) :]:
        return Duration(name, run, WHOLE, unit or 1.0, bool(total), core == "latency")
    word = core.removesuffix(" time")
    part = next((one for one, words in _PARTS.items() if words.fullmatch(word)), phase(word))
    if part is None or (unit is None and not core.endswith((" time", " cost"))):
        return None
    return Duration(name, run, int(part), unit or 1.0)


def _lasts(name: str) -> bool:
    """Whether a column's name looks like one of durations."""
    core, unit = spell(name.rpartition(" - ")[2].rpartition("/")[2])
    return not name.endswith(_EXTREMES) and (unit is not None or core.endswith(" time"))


# -- reading ---------------------------------------------------------------------------------------


def read(sources: Sequence[SourceFile]) -> Trace:
    """Read all tables as one trace; a table that names no rank is a rank of its own."""
    draft = Draft()
    parts: list[Timed] = []
    places: list[str] = []  # names of workers in the source, by number
    by_path = ranks_in_order([source.path for source in sources])

    def timed(source: SourceFile) -> list[Timed]:
        own = by_path[source.path]
        if tracker := _tracker_of(source):
            return _metrics(source.path, tracker(source.path, draft.limits), own, draft.limits)
        layout = layout_of(source)
        return _rows(layout, own, places, draft.limits) if layout else []

    for found in usable(sources, draft.limits, timed):
        parts += found
    if not parts:
        raise nothing_read(draft.limits, "no values")
    rows = Timed(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    try:
        return trace_of(rows, draft, {"source": NAME}, dict(enumerate(places)))
    except TraceError as error:
        raise TraceError(f"{sources[0].path}: {error}") from None


def _rows(layout: StepColumns, own: int, places: list[str], limits: list[str]) -> list[Timed]:
    """The rows of a table, once per column of durations."""
    names = [layout.step, layout.time, layout.epoch, *(each.name for each in layout.durations)]
    warm = column_of(layout.file, NAMES["warm_up"])
    texts = list(filter(None, (layout.rank, *layout.places, layout.phase, layout.metric, warm)))
    table = read_table(layout.file, [name for name in dict.fromkeys(names) if name], texts, limits)
    table = _without_warm_up(table, warm, limits) if warm else table
    length = len(next(iter(table.numbers.values())))
    if not length:
        return []
    unit = spell(layout.time)[1]
    time = table.numbers.get(layout.time, np.full(length, np.nan))
    time = time * unit if unit else _seconds(time)
    rank = np.full(length, own)
    told = table.texts[layout.rank] if layout.rank else _by_places(layout, table, own)
    if told is not None:
        kinds, code = told
        numbers = _number_workers(kinds, places, bool(layout.rank))
        rank = np.append(np.array(numbers, np.int64), -1)[code]
    if not unit and "elapsed" not in layout.time.lower() and np.nanmax(time, initial=0.0) < DAY_S:
        time = _continued(rank, time, DAY_S)  # of the day, which begins anew at midnight
    number = table.numbers.get(layout.step)
    number = _count_steps(rank, time) if number is None else number
    if layout.step and layout.epoch:
        number = _through_epochs(rank, number, table.numbers[layout.epoch])
    if layout.step.lower() == "epoch" and not (layout.phase or layout.metric):
        places_told = len(np.unique(np.stack([rank, number // 1]), axis=1).T)
        number = number if places_told == length else positions_by_key(rank)
    part = _parts(table, layout.phase) if layout.phase else np.full(length, WHOLE)
    layout, time = _told_apart(layout, table, (rank, number, time), limits)
    if not layout.durations:
        return [_between(rank, number, time, part)]
    workers = _workers(layout, places)
    if layout.metric:
        found = _by_metric(layout, table, (rank, number, time))
        return found or [_between(rank, number, time, part)]
    _tell_units(layout, {layout.rank, layout.step, layout.time, layout.phase, *names}, limits)
    parts = not workers and np.isfinite(time).any() and not _make_steps(layout.durations)
    found = [_between(rank, number, time, part)] if parts else []
    within = np.isin(number, found[0].number) if parts else True
    for each in layout.durations:
        seconds = table.numbers[each.name] * each.unit_s
        mine = np.full(length, workers[each.run]) if workers else rank
        there = (np.isfinite(seconds) | (len(layout.durations) == 1 and not parts)) & within
        kind = np.where(part == WHOLE, each.phase, part)
        found.append(_timed_steps(mine, number, time, seconds, kind, there))
    return found


def _without_warm_up(table: Table, name: str, limits: list[str]) -> Table:
    """The rows that are not of a warm-up; all where there are no others."""
    kinds, code = table.texts[name]
    keep = ~np.isin(code, [at for at, kind in enumerate(kinds) if kind.lower() in _TRUE])
    if keep.all() or not keep.any():
        return table
    limits.append(f"{int((~keep).sum())} rows are of a warm-up ({name}): left out")
    texts = {each: (told, at[keep]) for each, (told, at) in table.texts.items()}
    return Table({each: values[keep] for each, values in table.numbers.items()}, texts)


def _by_places(layout: StepColumns, table: Table, own: int) -> tuple[list[str], Array] | None:
    """Names of workers by where they run, of table `own` where no host is told, and the one of each
    row, -1 unknown; None of one worker, or where most of them do not have most steps, as of columns
    that are measured."""
    parts = [told for name in layout.places if (told := table.texts[name])[0]]
    if not parts:
        return None
    worker = key_numbers(*(at for _, at in parts))
    first = np.unique(worker, return_index=True)[1]
    number, at = np.unique(table.numbers[layout.step], return_inverse=True)
    there = len(np.unique(worker * len(number) + at))
    if len(first) < 2 or there < MOST_CELLS * len(first) * len(number):
        return None
    host = f"table {own}/" if own and not column_of(layout.file, NAMES["host"]) else ""
    names = [host + "/".join(kinds[at[row]] for kinds, at in parts) for row in first.tolist()]
    unknown = np.min([at for _, at in parts], axis=0) < 0
    return names, np.where(unknown, -1, worker)


def _make_steps(durations: Iterable[Duration]) -> bool:
    """Whether some are of steps or their work, and not of loading or of checkpoints alone."""
    return any(each.phase in WORK for each in durations)


def _through_epochs(rank: Array, number: Array, epoch: Array) -> Array:
    """Numbers of steps over all epochs, where most epochs begin with a lower number."""
    at = np.lexsort((rank,))
    begins = (np.diff(epoch[at]) > 0) & (np.diff(rank[at]) == 0)
    anew = begins & (np.diff(number[at]) < 0)
    if np.nansum(epoch % 1) or 2 * anew.sum() <= begins.sum():
        return number
    return number + (epoch - np.nanmin(epoch)) * (np.nanmax(number) + 1)


def _told_apart(
    layout: StepColumns, table: Table, rows: tuple[Array, Array, Array], limits: list[str]
) -> tuple[StepColumns, Array]:
    """The layout and the times of rows, by whose values it is told what names leave open: whether
    `elapsed_time` is a step's or the run's, and whether `time` is a step's or a clock's."""
    rank, number, time = rows
    known = layout.step.lower() in NAMES["of_run"]
    values = {each: table.numbers[each.name] * each.unit_s for each in layout.durations}
    own, of_run = _of_steps(values, lambda one: known or _keeps_growing(rank, values[one]))
    if len(own) < len(values):
        time = _continued(rank, values[of_run[0]]) if of_run else time
        return layout._replace(durations=own), time
    (core, unit), parts = spell(layout.time), list(values.values())
    least = np.nansum(parts, axis=0) if parts else np.zeros(len(rank))
    open_ = all(each.phase != WHOLE for each in layout.durations)
    if core == "time" and layout.step and open_ and _runs_back(rank, number, time, least):
        limits.append(f"{layout.time} does not grow from step to step: it is taken for durations")
        durations = [*layout.durations, Duration(layout.time, "", WHOLE, unit or 1.0)]
        return layout._replace(durations=durations), np.full(len(time), np.nan)
    return layout, time


def _of_steps(
    told: Collection[Duration], grows: Callable[[Duration], bool]
) -> tuple[list[Duration], list[Duration]]:
    """The durations of steps and of their parts, and those of the run: totals that grow."""
    if not all(each.alone for each in told if each.phase == WHOLE):
        told = [each for each in told if not each.alone]
    stated = any(each.phase == WHOLE and not each.total for each in told)
    of_run = [each for each in told if each.total and grows(each)]
    return [each for each in told if not each.total or not (stated or each in of_run)], of_run


def _workers(layout: StepColumns, places: list[str]) -> dict[str, int]:
    """The number of each run that has columns of its own; empty where there is only one."""
    runs = sorted({each.run for each in layout.durations}, key=natural)
    if len(runs) < 2:
        return {}
    if all(re.fullmatch(_WORKER, run, re.IGNORECASE) for run in runs):
        return dict(zip(runs, _number_workers(runs, places), strict=True))
    places += runs
    return {run: at for at, run in enumerate(runs)}


def _by_metric(layout: StepColumns, table: Table, rows: tuple[Array, Array, Array]) -> list[Timed]:
    """Rows of a table in which one column names what another holds."""
    kinds, code = table.texts[layout.metric]
    values = table.numbers[layout.durations[0].name]
    known = {one: code == at for at, kind in enumerate(kinds) if (one := duration_of(kind))}
    own, _ = _of_steps(known, lambda one: _keeps_growing(rows[0][known[one]], values[known[one]]))
    return [
        _timed_steps(*rows, values * one.unit_s, np.full(len(code), one.phase), known[one])
        for one in own
    ]


def _tell_units(layout: StepColumns, told: set[str], limits: list[str]) -> None:
    """What a table leaves open about its durations."""
    first = layout.durations[0]
    if first.name == first.run and not _told_by_name(layout.file.path)[1]:
        limits.append(f"{layout.file.path} names no unit of its durations: taken to be seconds")
    if relative := [each.name for each in layout.durations if each.name.endswith(RELATIVE)]:
        limits.append(f"{relative[0]} is a share of time: durations have no known unit")
    if others := [name for name in layout.file.names if name not in told and _lasts(name)]:
        limits.append(f"columns of durations that are none of a known part: {', '.join(others)}")


def _runs_back(rank: Array, number: Array, time: Array, least: Array) -> bool:
    """Whether times are none of a clock: of a worker's rows, in the order of the file and in that
    of steps, they fall, or grow by less than the parts of a step take."""
    orders = [np.lexsort(keys) for keys in ((rank,), (number, rank))]
    falls = [(np.diff(time[at]) < least[at][1:]) & (np.diff(rank[at]) == 0) for at in orders]
    return min(float(each.mean()) if len(each) else 0.0 for each in falls) > MINOR


def _keeps_growing(rank: Array, time: Array) -> bool:
    """Whether a worker's times are those since the beginning of its run: they grow by more than
    they began with, or in more steps than durations would by chance."""
    at = np.lexsort((rank,))
    rank, time = rank[at][np.isfinite(time[at])], time[at][np.isfinite(time[at])]
    steps = np.diff(time)[np.diff(rank) == 0]
    if len(steps) < 2 or (steps < 0).mean() > MINOR or not time.max() > 2 * steps[0]:
        return False
    first = time[np.diff(rank, prepend=rank[0] - 1) != 0]
    grown = np.bincount(np.unique(rank, return_inverse=True)[1][1:][np.diff(rank) == 0])
    chance = -sum(map(lgamma, grown + 2.0))  # its logarithm: of all orders of so many, one
    sure = np.median(steps) > 0 and chance < np.log(BY_CHANCE)
    return bool(sure or steps[steps > 0].sum() > first.sum())  # in whole seconds


def _continued(rank: Array, time: Array, day_s: float = 0.0) -> Array:
    """Times that go on where those of a worker fall, in the order of the file, by the last before:
    as of a run that was resumed and began anew; or by a day, where by more than half of it."""
    found = time.copy()
    for one in np.unique(rank):
        mine = np.flatnonzero((rank == one) & np.isfinite(time))
        anew = np.diff(time[mine]) < -day_s / 2
        found[mine[1:]] += np.cumsum(anew * (day_s or time[mine[:-1]]))
    return found


def _seconds(time: Array) -> Array:
    """Times in seconds: those since 1970 may be in ms, µs or ns."""
    return time / 1000.0 ** max(int(np.log10(float(np.nanmax(time, initial=1.0))) - 8) // 3, 0)


def _metrics(path: Path, tags: Scalars, own: int, limits: list[str]) -> list[Timed]:
    """A row per step and metric of durations; without such a metric, the time between steps."""
    named = {found: np.array(tags[tag]).T for tag in tags if (found := duration_of(tag))}
    told, _ = _of_steps(named, lambda one: _keeps_growing(0 * named[one][0], named[one][2]))
    rows, within = list[Timed](), None
    if tags and not _make_steps(told):
        limits.append(f"{path} has no durations of steps: a step is taken to last until the next")
        number, time, _ = np.array(max(tags.values(), key=len)).T
        rows.append(_between(np.full(len(time), own), number, time, np.full(len(time), WHOLE)))
        within = rows[0].number
    for duration in told:
        number, time, value = named[duration]
        rank, part = np.full(len(time), own), np.full(len(time), duration.phase)
        there = slice(None) if within is None else np.isin(number, within)
        rows.append(_timed_steps(rank, number, time, value * duration.unit_s, part, there))
    return rows


def _timed_steps(
    rank: Array, number: Array, time: Array, seconds: Array, part: Array,
    there: npt.NDArray[np.bool_] | slice = slice(None),
) -> Timed:  # fmt: skip
    number = np.where(np.abs(number) < LARGEST, number, -1)  # nan is neither
    whole = [column[there].astype(np.int64) for column in (rank, number, part)]
    return Timed(whole[0], whole[1], time[there], seconds[there], whole[2])


def _number_workers(kinds: Sequence[str], places: list[str], ranks: bool = True) -> list[int]:
    """The rank of each worker: the number at the end of its name, if names are of `ranks`, -1 of
    `(4, 7)`, several; else the index of the name in those of all tables, `places`."""
    numbers = [re.search(r"(\d{1,7})(?:\.0+)?$", text) for text in kinds]
    told = [int(found[1]) for found in numbers if found]
    if ranks and len(set(told)) == sum(not text.startswith("(") for text in kinds) > 0:
        return [int(found[1]) if found else -1 for found in numbers]
    places += sorted(set(kinds) - set(places), key=natural)
    index = {name: number for number, name in enumerate(places)}
    return [index[text] for text in kinds]


def _parts(table: Table, name: str) -> Array:
    """The phase of each row: OTHER for an unknown name, WHOLE for none."""
    kinds, code = table.texts[name]
    known = [
        WHOLE if _STEP_TIME.match(f"{text.lower()} time") else int(phase(text) or Phase.OTHER)
        for text in kinds
    ]
    return np.append(np.array(known, np.int64), WHOLE)[code]


def _count_steps(rank: Array, time: Array) -> Array:
    """Steps of a table without numbers: indices of times that workers share, else of their rows."""
    times, place = np.unique(time, return_inverse=True)
    if len(times) * (len(np.unique(rank)) + 1) <= 2 * len(time):  # most are those of most workers
        return np.where(np.isfinite(time), place, -1).astype(float)
    order = np.argsort(time, kind="stable")
    number = np.empty(len(rank))
    number[order] = positions_by_key(rank[order])
    return number


def _between(rank: Array, number: Array, time: Array, part: Array) -> Timed:
    """Rows of a table with times only: a step lasts until the worker's next one."""
    order = np.lexsort([time, rank])
    rank, number, time, part = rank[order], number[order], time[order], part[order]
    seconds = np.append(np.diff(time), np.nan) / np.maximum(np.append(np.diff(number), 1), 1)
    return _timed_steps(rank, number, time, seconds, part, ~np.append(np.diff(rank) != 0, True))
