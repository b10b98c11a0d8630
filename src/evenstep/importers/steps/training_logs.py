"""Read the steps in logs that trainers print, among any other lines.

Read are the trainers in `KINDS`, progress bars (tqdm, Keras), MLPerf's `:::MLLOG`, and else any
lines with a time stamp, a step and a loss. In a log of several ranks lines name their rank, or
begin with it (torchrun, srun, mpirun); any other log is of one rank.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from evenstep.errors import TraceError
from evenstep.importers.content import SourceFile, beginning, lines, usable
from evenstep.importers.draft import Draft
from evenstep.importers.file_ranks import ranks_in_order
from evenstep.importers.steps import progress
from evenstep.importers.steps.records import WHOLE, Timed, trace_of
from evenstep.importers.steps.step_tables import duration_of
from evenstep.importers.steps.timers import MARKS, ONE, WORK, Timers
from evenstep.trace.ranks import MOST_RANKS
from evenstep.trace.spool.files import read_toml
from evenstep.trace.spool.layout import Phase
from evenstep.trace.trace import Trace

NAME = "training log"
MOST_STEPS = 10_000_000
LATEST_S = 1e9  # of a clock that begins with the run
LONGEST = 16_384  # characters of a line that are examined: verl prints all metrics in one
_FEWEST = 2  # lines of steps in a training log
GROWN = np.log(2.0)  # between the growth of a clock per step and its mean since the beginning
_WITH_TIMERS = "Megatron-LM"  # prints the timers of a step after its line

#: The rank at the beginning of a line (`[rank3]`, `3: `, `[1,3]:`), which may be a task's of srun;
#: before it goes the tag of a launcher, also after a time stamp: `[default3]:` of torchrun, which
#: begins with the role of the worker; `[1,3]<stdout>:` and `[3]<stdout>:` of mpirun and horovodrun.
#: `957: 0.66, ` is a step and a loss of Darknet.
_RANK = re.compile(
    r"\s{0,8}(?:\[(?i:rank|default) ?(\d{1,7})\]:?|(\d{1,7}): (?!\d{1,9}\.\d{1,9}, )"
    r"|\[\d{1,4},(\d{1,7})\]:)"
)
_TAG = re.compile(
    r"\[(?:rank|default|trainer|worker)(\d{1,7})\]:|\[(?:[\w.@-]{1,80},)?(\d{1,7})\]<std\w{3}>:"
)
#: The rank in a program's own words, before any launcher's: `[Rank 3]`, `rank: 3,`, `Node[3]`, and
#: of icefall and DLRM, `[train.py:529] (3/8) Epoch 11`, `[3] Finished training it`.
_OWN = re.compile(
    r"(?i)[\[(|] ?rank[ =:]{1,2}(\d{1,7})(?:/\d{1,7})? ?[\])|]|\brank[=:] ?(\d{1,7}),"
    r"|\bNode\[(\d{1,7})\]|\] \((\d{1,7})/\d{1,7}\) Epoch |\[(\d{1,7})\] Finished training it "
)
_RANK_WORDS = ("rank", "Rank", "RANK", "Node[", "] (", "] Finished")
_TAGGED = 160  # characters before the end of a tag
#: `2026-05-08 12:00:00,123`, also with slashes, of absl (`I0508 12:00:00.123456`), and at the
#: beginning of a line or after `Time=` without a year or a day; else `May  8 12:00:00` of syslog.
_CLOCK_TIME = r"(\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?"
_STAMP = re.compile(
    r"(?:\b(\d{4})[-/]|^\W{0,3}|\b[DIWE]|\bTime=)(?:(\d\d)[-/]?(\d\d)[T :])?" + _CLOCK_TIME
)
_OF_SYSLOG = re.compile(r"()()()\b[A-Z][a-z]{2} {1,2}\d{1,2},? (?:\d{4},? )?" + _CLOCK_TIME)
_CLOCK = {"d": 86400, "h": 3600, "m": 60, "sec": 1}  # seconds of each
_UNITS = {"K": 1e3, "m": 1e-3, "u": 1e-6}  # before a unit
_NUMBER = r"\\d+(?:\\.\\d+)?(?:[eE][+-]?\\d+)?"  # in a replacement
_WHOLE = r"\\d{1,3}(?:,\\d{3})+(?!,?\\d)|\\d{1,9}"
_FLOATS = "(?<!P)<(ms|s|rate|since|mean|clock|wall)>"

_PARTS = {*WORK, Phase.INPUT, Phase.SYNC, Phase.OPTIMIZER, WHOLE}  # that a line may tell


class LogLine(NamedTuple):
    """A step in one line."""

    number: int
    seconds: float  # nan: follows from the times of the lines
    clock_s: float  # when it was printed, or how long the run had lasted; nan unknown
    total: int = 0  # of its progress bar, or of its epoch
    epoch: int = 0
    whole: bool = False  # whether the clock shows whole seconds
    since: bool = False  # whether the seconds are those since the last line
    parts: Mapping[int, float] | None = None  # seconds of parts of the step, by phase

    @property
    def timed(self) -> bool:
        """Whether it tells a time, and not the step alone."""
        return not np.isnan(self.seconds) or not np.isnan(self.clock_s)


@dataclass(slots=True)
class Log:
    """The steps read so far, and facts about the run."""

    rows: list[tuple[int, int, float, float]] = field(default_factory=list)
    ticks: list[progress.Tick] = field(default_factory=list)  # of a clock in whole seconds
    #: Step, clock, epoch, steps of the epochs before, and whether it began its epoch, by rank.
    last: dict[int, tuple[int, float, int, int, bool]] = field(default_factory=dict)
    named: dict[int, LogLine] = field(default_factory=dict)  # steps without a time yet, by rank
    spans_s: dict[str, float] = field(default_factory=dict)  # parts of the run
    open_ms: dict[str, float] = field(default_factory=dict)  # start of open intervals of MLLOG
    samples: float = 0.0  # of a step, all ranks together, by MLLOG
    timers: Timers = field(default_factory=Timers)
    parts: dict[tuple[int, int], Mapping[int, float]] = field(default_factory=dict)  # by rank, step
    kind: str = ""
    means: list[bool] = field(default_factory=list)  # of times that stamps can tell to be means
    mixed: int = 0  # lines of other processes, or of the same step
    epoch_steps: int = 0  # of the last line


class LogKind(NamedTuple):
    """A kind of log, as `training_logs.toml` describes it; groups of patterns are numbers."""

    mark: str
    window: float  # steps whose mean a line has: those since the last line, or as many
    patterns: Sequence[re.Pattern[str]]
    bare: re.Pattern[str] | None
    guard: re.Pattern[str]  # with which a line has to begin
    coarse: bool  # whether the time is of a clock in whole seconds

    def read(self, text: str) -> LogLine | None:
        """The step in a line with the mark; None without one."""
        patterns = self.patterns if self.guard.match(text) else ()
        found = next(filter(None, (each.search(text) for each in patterns)), None)
        timed = self.bare.search(text, found.end("step")) if found and self.bare else found
        if found is None or timed is None:
            return None
        parts = {} if self.coarse else _parts(text)
        named = parts.pop(WHOLE, sum(parts.values()) if parts.keys() >= WORK else np.nan)
        groups = found.groupdict() | (timed.groupdict() if np.isnan(named) else {})
        unit = _UNITS.get(groups.pop("unit", None) or "", 1.0)
        said = {name: float(value.replace(",", "")) for name, value in groups.items() if value}
        epoch, steps = int(said.get("epoch", 0)), int(said.get("steps", 0))
        step = said["step"] + epoch * steps
        seconds = said.get("s", said.get("since", said.get("ms", np.nan) * unit / 1e3))
        if said.get("rate"):
            seconds = 1.0 / said["rate"]
        elif np.isnan(seconds):
            seconds = named
        bar_s = step * said.get("mean", np.nan) * unit
        clock_s, whole = said.get("wall", said.get("clock", bar_s * 1e3) / 1e3), False
        if "sec" in said:
            clock_s = sum(said.get(name, 0) * long for name, long in _CLOCK.items())
        if not clock_s < LATEST_S:
            clock_s, whole = _stamp(text)
        if self.window == 1 and np.isnan(seconds) and (whole or np.isnan(clock_s)):
            found = None if KINDS[BAR].mark in text else _EACH.search(text) or _BEHIND.search(text)
            seconds = _step_s(found)
        if np.isnan(seconds) and (self.window == 1 or (np.isnan(clock_s) and self.mark)):
            return None
        return LogLine(int(step), seconds, clock_s, steps, epoch, whole, "since" in said, parts)


#: Kinds in `training_logs.toml` that are read in their own ways.
TOLD, STAMPED, BAR, KERAS = "durations by name", "stamped lines", "progress bar", "Keras"
AFTER, OF_SAMPLES = "durations after their steps", ("OpenCLIP", "examples of PyTorch")
BARS = (BAR, ENDLESS := "progress bar without an end")
BARE = ("epochs", "nanoGPT")  # whose word of a duration may be any program's word of a clock
BETWEEN, ALL = 0.0, np.inf  # windows: the steps since the last line, or since the beginning


#: `Forward: 237.0ms`, `step_time=0.5`, `'forward_time': '0.3'`, `iter time (s): 0.5`,
#: `step_timing in s: 2.5`; with a mean, `Data 0.012 (0.050)`.
_PAIR = re.compile(
    r"(?<![\w/])(?!(?i:duration|seconds))"
    r"((?:(?i:step|iter(?:ation)?|batch|data) )?[A-Za-z][\w/]{0,60})"
    r"(?: \(t\)| (?:\(|in )([mu]?s)\)?)?"
    r"(?:['\"]?[:=]\s{0,4}['\"]?|\s{1,4}(?=[\d.]{1,12}\s?\(\s{0,4}[\d.]))"
    r"(\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?: ?([mu]?s|sec)\b)?"
    r"(?![\w.%/]| ?(?:[mu]?s|sec)/| (?:min(?:ute)?s?|milli\w+|h(?:ours?)?)\b(?![:=]))"
)
_DATA = re.compile(r"(?i)\bdata(?: \(t\))?\W{1,4}\d")  # beside it, a bare `time` is the step's


def _parts(text: str) -> dict[int, float]:
    """Seconds of a step and of its parts in a line, by phase, of names with a value; none of a
    run's or an epoch's."""
    found: dict[int, float] = {}
    bare = {"data": "data_time", "time": "step_time"} if _DATA.search(text) else {}
    for name, before, value, behind in _PAIR.findall(text):
        unit = before or behind
        named = f"{name} {unit}" if unit else bare.get(name.lower(), name)
        one = duration_of(named)
        if one and one.phase in _PARTS and not (one.alone or (one.total and name[:4] != "step")):
            found.setdefault(one.phase, float(value) * one.unit_s)
    return found


_VALUE = r"(?P<value>\d+(?:\.\d+)?(?:e[-+]?\d+)?) ?"
#: A number whose unit is of a step: `0.3 sec/batch`, `22 ms/it`, not `20 it/s dataloader`.
_EACH = re.compile(
    rf"(?:^|[,;(|]|(?:time|latency|speed)\b)\W{{0,3}}{_VALUE}(?:(?P<unit>[mu]?)s(?:ec)?/"
    r"(?:step|batch|iter|it)|(?P<rate>step|batche|iter|it)s?/s(?:ec)?)\b(?! [a-z]+(?: ?[,;|)]|$))"
)
#: A number behind its unit, `global_step/sec: 1.5`, `ms/batch 112.86`, that is no rounded `0.1`.
_BEHIND = re.compile(
    r"\b(?:\w{0,12}(?P<rate>step|batche|iter)s?(?:/|_per_)s(?:ec(?:ond)?)?:"
    r"|(?P<unit>[mu]?)s(?:ec)?/(?:step|batch|iter|it|tick):?)\s{1,8}(?!0\.\d\b)" + _VALUE
)


def _step_s(found: re.Match[str] | None) -> float:
    """Seconds of a step, by the value that was found; nan without one."""
    if not found or not (value := float(found["value"])):
        return np.nan
    return 1.0 / value if found["rate"] else value * _UNITS.get(found["unit"] or "", 1.0)


def _after(log: Log, text: str, rank: int) -> LogLine | None:
    """The last step that a rank's lines named, if this line alone tells how long it took."""
    if rank not in log.named or not re.match(_SHARED["training"], text):
        return None
    seconds = _parts(text).get(WHOLE) or _step_s(_BEHIND.search(text))
    return log.named.pop(rank)._replace(seconds=seconds) if seconds > 0 else None


_STEP = re.compile(
    r"(?i)(?:step|iter(?:ation)?|update|batch|tick)s?\W{0,4}?\s{0,8}\d|\d iter\b"
    r"|[\[(] {0,8}\d{1,9}/\d{1,9}(?![\d.])"
)
_TABLES = read_toml(Path(__file__).with_suffix(".toml"))
_SHARED: Mapping[str, Any] = _TABLES.pop("shared")


def _pattern(text: str) -> str:
    """A pattern without its abbreviations."""
    whole = re.sub(r"\{([a-z_]+)\}", lambda found: _pattern(_SHARED[found[1]]), text)
    whole = re.sub("(?<!P)<(step|steps|epoch)>", rf"(?P<\1>{_WHOLE})", whole)
    return re.sub(_FLOATS, rf"(?P<\1>{_NUMBER})", whole)


def _kind(
    patterns: str | list[str], mark: str = "", window: float = BETWEEN, bare: str = "",
    guard: str = "",
) -> LogKind:  # fmt: skip
    listed = _SHARED[patterns] if isinstance(patterns, str) else patterns
    made = [re.compile(_pattern(each)) for each in listed]
    coarse = bool(made[0].groupindex.keys() & {"wall", "sec", "mean"})
    behind = re.compile(_pattern(bare)) if bare else None
    return LogKind(mark, window, made, behind, re.compile(_pattern(guard)), coarse)


KINDS = {name: _kind(**table) for name, table in _TABLES.items()}


def _stamp(text: str) -> tuple[float, bool]:
    """The first time stamp in a line, in s, and whether it has whole seconds; nan without one."""
    found = _STAMP.search(text[:200]) or _OF_SYSLOG.search(text[:200])
    if found is None:
        return np.nan, False
    day = f"{found[1] or '2000'}-{found[2] or '01'}-{found[3] or '01'}"
    try:
        at = datetime.fromisoformat(f"{day} {found[4]}+00:00")
    except ValueError:
        return np.nan, False
    return at.timestamp() + float(f"0.{found[5] or 0}"), not found[5]


# -- MLPerf ----------------------------------------------------------------------------------------

_MLLOG = ":::MLLOG "
_SPANS = {"init": "init_s", "run": "run_s", "eval": "evaluation_s"}


class _Event(msgspec.Struct):
    """A line of MLPerf's logging."""

    key: str
    time_ms: float
    value: Any = None
    metadata: dict[str, Any] = {}


def _mlperf(log: Log, text: str) -> LogLine | None:
    """The step in a line of MLLOG, if any; a start or end of a part of the run goes into `log`."""
    try:
        event = msgspec.json.decode(text.partition(_MLLOG)[2], type=_Event)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        return None
    name, _, edge = event.key.rpartition("_")
    if edge == "start" and name:
        log.open_ms.setdefault(name, event.time_ms)
    elif edge in ("stop", "end") and name in log.open_ms:
        begun_ms = log.open_ms.pop(name)
        if part := _SPANS.get(name):
            log.spans_s[part] = log.spans_s.get(part, 0.0) + (event.time_ms - begun_ms) / 1e3
    if event.key == "global_batch_size":
        log.samples = _amount(event.value)
    if event.key not in ("tracked_stats", "train_loss"):
        return None
    said = {**event.metadata, **(event.value if isinstance(event.value, dict) else {})}
    number, samples, rate = (_amount(said.get(k)) for k in ("step", "samples_count", "throughput"))
    seconds = _amount(said.get("train_step_time", said.get("step_time")))
    if log.samples >= 1:
        since_s = (event.time_ms - log.open_ms.get("run", np.nan)) / 1e3
        if number > rate * since_s / log.samples**0.5:  # nearer to the samples so far than to steps
            samples, number = number, np.nan
        number = round(samples / log.samples) if np.isnan(number) and samples >= 0 else number
        seconds = log.samples / rate if np.isnan(seconds) and rate > 0 else seconds
    if np.isnan(number) or number % 1 or (np.isnan(seconds) and event.key == "tracked_stats"):
        return None
    return LogLine(int(number), seconds, event.time_ms / 1e3)


def _amount(value: Any) -> float:
    """A number in [0, 1e15); nan for anything else."""
    return float(value) if type(value) in (int, float) and 0 <= value < 1e15 else np.nan


# -- reading ---------------------------------------------------------------------------------------


def recognises(source: SourceFile) -> bool:
    """Whether some lines of a text have steps."""
    log, found = Log(), 0
    for text in chain.from_iterable(map(_shown, beginning(source))):
        found += _MLLOG in text or any(mark in text for mark in MARKS)
        found += _take(log, text[:LONGEST], 0)
        if found >= _FEWEST:
            return True
    return False


def read(sources: Sequence[SourceFile]) -> Trace:
    """Read all logs as one trace. Raises `TraceError` where none has two steps."""
    draft, log = Draft(), Log()
    by_path = ranks_in_order([source.path for source in sources])
    list(usable(sources, draft.limits, lambda one: _read_file(log, one, by_path[one.path])))
    if log.kind == STAMPED and len(log.rows) >= len(log.ticks):
        log.ticks.clear()
    elif log.kind == STAMPED and log.ticks:  # a bar that times more than such lines
        log.rows, log.kind = [], BAR
    counted, lost_s = progress.rows(log.ticks, draft.limits) if log.ticks else ([], 0.0)
    between = _between(log, draft.limits)
    window = KINDS[log.kind].window if log.kind in KINDS and between is log.rows else BETWEEN
    if window == 1 and log.means and np.mean(log.means) > 1 - progress.MIXED:
        window = BETWEEN
    batch = (log.kind in OF_SAMPLES and math.gcd(*(row[1] for row in between))) or 1
    log.rows = between + counted
    ahead = np.diff(sorted({row[1] for row in log.rows if row[0] == log.rows[0][0]}))
    apart = float(np.median(ahead)) / batch if len(ahead) else 1.0  # of steps between two lines
    if window and apart > 2:
        log.rows = list(_alike(log, batch)) or log.rows
    whole_s = {number: seconds for _, number, _, seconds in log.rows}
    if log.rows:
        log.timers.micro.clear()
    parts = list(log.timers.rows(whole_s if log.kind == _WITH_TIMERS else {}))
    if parts and log.kind != _WITH_TIMERS:  # some kinds number only some of their steps
        log.rows, log.kind, apart = [], log.kind or "timers", 1.0
    told = [*((*row, WHOLE) for row in log.rows), *parts]
    for at in {row[:2] for row in log.rows} & log.parts.keys() if not parts else ():
        told += [(*at, np.nan, lasted, part) for part, lasted in log.parts[at].items() if lasted]
    if not told:
        least = progress.SHORTEST_S if log.ticks else progress.COARSE_S
        few = f"two steps with the time (at least {least:.0f} s where it is in whole seconds)"
        raise TraceError(f"{sources[0].path} has no {few} between them")
    rank, number, start, seconds, part = np.array(told, float).T
    seconds *= batch if window == BETWEEN else 1
    draft.limits += [f"this log counts samples: {batch} are taken to be a step"] * (batch > 1)
    rows = Timed(rank.astype(int), number.astype(int) // batch, start, seconds, part.astype(int))
    trace = trace_of(rows, draft, {"source": f"{NAME} ({log.kind})", **log.spans_s}, {})
    trace.limits += log.timers.limits()
    if log.mixed > progress.MIXED * len(log.rows):
        trace.limits.append(progress.ONE_OF_SEVERAL)
    lost_s = lost_s or trace.run.get("lost_work_s", 0.0) * apart
    trace.run |= {"lost_work_s": lost_s} if lost_s else {}
    trace.limits += _means(apart, window)
    return trace


def _between(log: Log, limits: list[str]) -> list[progress.Row]:
    """The rows with times of steps. A bare `time` that grows from each line of a rank to the next
    as the steps done do, within `GROWN`, is of a clock since the run's or the epoch's beginning."""
    rows = np.array(log.rows, float).reshape(-1, 4)
    rank, number, start, seconds = rows[np.argsort(rows[:, 0], kind="stable")].T
    ahead, more = np.diff(number), np.diff(seconds)
    along = (np.diff(rank) == 0) & (ahead > 0)
    grows = along & (more > 0)
    mean = more[grows] / ahead[grows]
    done = ((number - 1) % (log.epoch_steps or np.inf) + 1)[1:][grows]
    apart = np.abs(np.log(mean * done / seconds[1:][grows]))
    clock = log.kind in BARE and len(mean) > max(_FEWEST, (1 - progress.MIXED) * along.sum())
    if not clock or apart.max() > GROWN:
        return log.rows
    limits.append("times of this log grow with the steps: they are taken for those since the first")
    begun = (start + seconds)[1:][grows] - mean
    whose = rank[1:][grows].astype(int), number[1:][grows].astype(int)
    return list(zip(*(each.tolist() for each in (*whose, begun, mean)), strict=True))


def _alike(log: Log, least: int) -> Iterator[progress.Row]:
    """The rows but, of lines that time one step of several, those of the first steps of epochs,
    which stand for themselves alone: numbers are `least` apart from step to step."""
    before: dict[int, int] = {}
    for row in log.rows:
        ahead = row[1] % log.epoch_steps if log.epoch_steps else row[1] - before.get(row[0], 0)
        before[row[0]] = row[1]
        if ahead > least:
            yield row


def _means(apart: float, window: float) -> Iterator[str]:
    """What the times of a kind with this window mean, where lines are so many steps apart."""
    if window == ALL:
        yield "times of this log are means since its beginning: ups and downs are not in it"
    elif window == 1 < apart:
        yield f"a line of this log times one step of about {apart:.0f}: the others are not in it"
    elif max(window, apart) > 1:
        mean = f"a line of this log is the mean of about {window or apart:.0f} steps"
        yield f"{mean}: shorter ups and downs are not in it"


def _shown(text: str) -> list[str]:
    """What a terminal showed in turn, where a line has bars, as syslog keeps it."""
    return text.split("#015") if any(KINDS[bar].mark in text for bar in (KERAS, *BARS)) else [text]


def _read_file(log: Log, source: SourceFile, own: int) -> None:
    for line in lines(source.path):
        for text in _shown(line.text):
            _take(log, text[:LONGEST], own)
        if len(log.rows) + len(log.ticks) > MOST_STEPS:
            raise TraceError(f"{source.path}: only the first {MOST_STEPS} steps were read")


def _take(log: Log, text: str, own: int) -> bool:
    """Take in one line; whether it has a step with a time."""
    own_word = any(word in text for word in _RANK_WORDS) and _OWN.search(text, 0, _TAGGED)
    tag = own_word or _TAG.search(text, 0, _TAGGED) or _RANK.match(text)
    rank = int(next(filter(None, tag.groups()), own)) if tag else own
    kind = "MLPerf" if _MLLOG in text else ""
    said = _mlperf(log, text) if kind else None
    numbered = not kind and _STEP.search(text)
    for name, reader in KINDS.items() if not kind else ():
        marked = reader.mark in text if reader.mark else numbered
        if marked and (one := reader.read(text)) is not None:
            said, kind = one, name
            if one.timed:
                break
    if said is None:
        number = log.rows[-1][1] if log.kind == _WITH_TIMERS and log.rows else None
        clock_s, whole = _stamp(text) if ONE in text else (np.nan, False)
        shown = text[tag.end() :] if tag else text
        log.timers.take(shown, rank, number, np.nan if whole else clock_s)
        kind, said = AFTER, _after(log, text, rank)
    if said is None or not said.timed:
        log.named |= {rank: said} if said else {}
        return False
    if _TRUST[kind] < _TRUST[log.kind] and not (kind in BARS and log.kind == STAMPED):
        return True
    if _TRUST[kind] > _TRUST[log.kind]:
        log.ticks, log.rows, log.last = log.ticks if kind == STAMPED else [], [], {}
        log.parts.clear()
    log.kind = max(log.kind, kind, key=_TRUST.__getitem__)
    if rank < MOST_RANKS and kind in KINDS and KINDS[kind].coarse and said.clock_s < LATEST_S:
        once = not any(end in text for end in ("=]", "━"))  # of a bar of Keras
        total = progress.ENDLESS if kind == ENDLESS else said.total
        tick = progress.Tick(rank, said.number, total, said.clock_s)
        log.ticks.append(tick._replace(cut_s=0.0, once=once) if kind == KERAS else tick)
    elif rank < MOST_RANKS:
        _enter(log, rank, said)
    return True


_TRUST = dict.fromkeys(KINDS, 6)
_TRUST |= {"": 0, AFTER: 1, KERAS: 2, **dict.fromkeys(BARS, 2), STAMPED: 3, TOLD: 4, "MLPerf": 5}


def _enter(log: Log, rank: int, said: LogLine) -> None:
    """Add a row for the step, with the line's duration or the time since an earlier step."""
    log.epoch_steps = said.total
    before, clock_s, epoch, base, first = log.last.get(rank, (-1, np.nan, -1, 0, False))
    if (begins := said.epoch > epoch) and said.number + base < before + first:  # and so do numbers
        base = before
    said = said._replace(number=said.number + base)
    if log.kind in OF_SAMPLES and base < said.number < before:
        return  # of a shorter last batch: all before it are counted as if they were as short
    coarse = said.whole and np.isnan(said.seconds) and said.number >= before
    if coarse and abs(said.clock_s - clock_s) < progress.COARSE_S:  # at midnight it falls
        return
    # several lines may have the same second
    if said.since or said.number < before or said.clock_s != clock_s:
        log.last[rank] = said.number, said.clock_s, max(said.epoch, epoch), base, begins
    seconds, later_s = said.seconds, said.clock_s - clock_s
    if later_s >= progress.COARSE_S:
        log.means.append(abs(later_s - (said.number - before) * seconds) < 1.0)
    if said.since:
        seconds = seconds / (said.number - before) if said.number > before >= 0 else np.nan
    elif np.isnan(seconds) and said.number > before >= 0:
        seconds = later_s / (said.number - before)
    again = log.rows and log.rows[-1][:2] == (rank, said.number)
    if seconds > 0 and again and not said.clock_s - sum(log.rows[-1][2:]) > seconds:
        log.mixed += log.rows.pop()[3] != seconds  # of several processes: no step done again
    if seconds > 0:
        log.rows.append((rank, said.number, said.clock_s - seconds, seconds))
        if said.parts and sum(said.parts.values()) <= seconds:
            log.parts[rank, said.number] = said.parts
