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
from typing import Any, NamedTuple

import msgspec
import numpy as np

from evenstep.errors import TraceError
from evenstep.importers.content import SourceFile, TraceFormat, beginning, lines, usable
from evenstep.importers.draft import Draft
from evenstep.importers.file_ranks import ranks_in_order
from evenstep.importers.steps import progress
from evenstep.importers.steps.records import WHOLE, Timed, trace_of
from evenstep.importers.steps.step_tables import duration_of
from evenstep.importers.steps.timers import MARKS, ONE, WORK, Timers
from evenstep.trace.ranks import MOST_RANKS
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
_RANK = re.compile(
    r"\s{0,8}(?:\[(?i:rank|default) ?(\d{1,7})\]:?|(\d{1,7}): |\[\d{1,4},(\d{1,7})\]:)"
)
_TAG = re.compile(
    r"\[(?:rank|default|trainer|worker)(\d{1,7})\]:|\[(?:[\w.@-]{1,80},)?(\d{1,7})\]<std\w{3}>:"
)
#: The rank in a program's own words, before any launcher's: `[Rank 3]`, `rank: 3,`, `Node[3]`.
_OWN = re.compile(
    r"(?i)[\[(|] ?rank[ =:]{1,2}(\d{1,7})(?:/\d{1,7})? ?[\])|]|\brank[=:] ?(\d{1,7}),"
    r"|\bNode\[(\d{1,7})\]"
)
_RANK_WORDS = ("rank", "Rank", "RANK", "Node[")
_TAGGED = 160  # characters before the end of a tag
#: `2026-05-08 12:00:00,123`, also with slashes, of absl (`I0508 12:00:00.123456`), and at the
#: beginning of a line or after `Time=` without a year or a day.
_STAMP = re.compile(
    r"(?:\b(\d{4})[-/]|^\W{0,3}|\b[DIWE]|\bTime=)(?:(\d\d)[-/]?(\d\d)[T ])?"
    r"(\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?"
)
_CLOCK = {"d": 86400, "h": 3600, "m": 60, "sec": 1}  # seconds of each
_UNITS = {"K": 1e3, "m": 1e-3, "u": 1e-6}  # before a unit
_NUMBER = r"\\d+(?:\\.\\d+)?(?:[eE][+-]?\\d+)?"  # in a replacement
_WHOLE = r"\\d{1,3}(?:,\\d{3})+(?!,?\\d)|\\d{1,9}"
_FLOATS = "<(ms|s|rate|since|mean|clock|wall)>"

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
    """A kind of log: a mark that is fast to search for ("": `_STEP`), patterns of a line, of which
    the first that fits counts, and one of a time behind the step whose name tells none.

    Groups are numbers: the `step` of all, or of an `epoch` of `steps`; how long it took, `ms` or
    `s`, all `since` the last line, or in the `mean` of a bar, with a `unit`; the `rate` of steps;
    how long the run had lasted, `clock` in ms, `wall`, or `d`, `h`, `m` and `sec`.
    """

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


#: All other kinds go before these.
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
#: No line of an evaluation, of which the loss may go behind that of the training.
_TRAINING = (
    r"(?i)(?!(?:(?!loss).)*\b(?:eval|test|val(?!ue))"
    r"|.*(?!(?<=, )\w+: )\b(?:eval|test|val(?!ue))(?!\w*[_/ ]loss))"
)


def _step_s(found: re.Match[str] | None) -> float:
    """Seconds of a step, by the value that was found; nan without one."""
    if not found or not (value := float(found["value"])):
        return np.nan
    return 1.0 / value if found["rate"] else value * _UNITS.get(found["unit"] or "", 1.0)


def _after(log: Log, text: str, rank: int) -> LogLine | None:
    """The last step that a rank's lines named, if this line alone tells how long it took."""
    if rank not in log.named or not re.match(_TRAINING, text):
        return None
    seconds = _parts(text).get(WHOLE) or _step_s(_BEHIND.search(text))
    return log.named.pop(rank)._replace(seconds=seconds) if seconds > 0 else None


def _kind(mark: str, window: float, *patterns: str, bare: str = "", guard: str = "") -> LogKind:
    """A kind whose patterns have `<step>` for a whole number, and `<ms>` or `<s>` for any."""
    made = []
    for each in (*patterns, bare):
        whole = re.sub("(?<!P)<(step|steps|epoch)>", rf"(?P<\1>{_WHOLE})", each)
        made.append(re.compile(re.sub(_FLOATS, rf"(?P<\1>{_NUMBER})", whole)))
    coarse = bool(made[0].groupindex.keys() & {"wall", "sec", "mean"})
    return LogKind(mark, window, made[:-1], made[-1] if bare else None, re.compile(guard), coarse)


_STEP = re.compile(
    r"(?i)(?:step|iter(?:ation)?|update|batch|tick)s?\W{0,4}?\s{0,8}\d|\d iter\b"
    r"|[\[(] {0,8}\d{1,9}/\d{1,9}(?![\d.])"
)
#: `Epoch: [0][10/5005]`, `Train: 0 [50/1251 (4%)]`, `Train: 1/3 (33%) [9/323 (2%)]`,
#: `Epoch(train)  [1][ 50/7330]`, `Iter(train) [50/400]`, `Training  [ 10/9000]`,
#: `Epoch:[0/20](100/41914)`.
_BRACKETS = (
    r"\b(?:(?:Epoch|Train)(?:\(train\))?:?\s{0,8}\[?<epoch>(?:/\d{1,9})?\]?(?: \([\d ]{1,4}%\))?"
    r"|(?:Iter|Training)(?:\(train\))?)\s{0,4}[\[(]\s{0,8}<step>/<steps>[^\])]{0,20}[\])]"
)
_COUNT = r"s?\W{0,4}?\s{0,8}<step>(?!\d|[\d.]*\s?m?s\b|\.\d)"
_OF_EPOCH = r"(?i)^(?:.{0,200}?\bepoch\W{0,4}<epoch>\b)?.{0,200}?"
#: Where lines number their steps: of all, of an epoch in brackets, before a word, or behind one.
_NUMBERED = (
    rf"(?i)^.{{0,200}}?\bglobal[_ ]?step{_COUNT}",
    rf"(?i)^.{{0,200}}?{_BRACKETS}",
    rf"{_OF_EPOCH}\b<step>/ {{0,8}}<steps> (?:batche|step|iter(?:ation)?)s\b",
    rf"{_OF_EPOCH}\b(?:step|iter(?:ation)?|update|batch(?:_id)?|tick){_COUNT}",
    r"(?i)^.{0,80}?\b(?:<epoch> Epoch\W{1,3})?\b<step> Iter\b",
)


_SECONDS = r"<s>s?(?![\w.]| (?:ms|min|h))"
_TIME = r"(?<!Data )(?<!Forward )\b[Tt]ime:?\s{1,4}" + _SECONDS
_ITER = r"\biter: <step>\b"
_OF_SAMPLES = r"\bTrain Epoch: <epoch> \[\s{0,12}(?P<step>\d{1,12})/\d{1,12} "
_ELAPSED = r" \[(?:(?P<h>\d{1,4}):)?(?P<m>\d\d):(?P<sec>\d\d)[<,][^\]]{0,60}(?:s/it|it/s)"
KINDS = {
    # `iteration 10/ 500 | … | elapsed time per iteration (ms): 1.5`, and with `_` and `=`
    "Megatron-LM": _kind("elapsed", BETWEEN, r"\biteration=?\s{1,12}<step>/\s{0,12}\d{1,9} \|"),
    "nanotron": _kind("elapsed_time_per_iteration_ms", BETWEEN,
        r"\biteration: <step> / \d{1,9} \|.{0,400}?_time_per_iteration_ms: <ms>(?P<unit>K)?"),
    "DeepSpeed": _kind("step=", BETWEEN,
        r"(?:\bglobal_|\[Rank \d+\] )step=<step>, (?:RunningAvgSamplesPerSec|skipped)="),
    "DeepSpeed's pipeline": _kind("iter time (s)", BETWEEN, r"\bsteps: <step> loss: "),
    "MaxText": _kind("completed step", 1, r"\bcompleted step: <step>, seconds: <s>"),
    "verl": _kind("timing_s/step:", 1, r"^.{0,80}?\bstep:<step> - .*?\btiming_s/step:<s>"),
    "OLMo": _kind("[step=", BETWEEN, r"\[step=<step>/\d{1,9}[,\]]"),
    "Paddle": _kind("batch_cost", BETWEEN, *_NUMBERED, guard=_TRAINING),
    "ESPnet": _kind("train_time=", BETWEEN,
        r"\b<epoch>epoch:train:\d{1,9}-<step>batch:.*?\btrain_time=<s>"),
    # `Step 50/ 1000; acc: 7.5; …; 18916/18871 tok/s; 6 sec`, and of older ones `Epoch 1, 50/ 657;`
    "OpenNMT": _kind(" tok/s;", BETWEEN,
        r"\b(?:Step |Epoch\s{1,4}<epoch>,.{0,20}?)\s{0,9}<step>/\s{0,9}<steps>;"
        r".*tok/s;\s{1,9}<wall> s"),
    "PaddleNLP": _kind("interval_steps_per_second", BETWEEN, r"\bglobal_step: <step>,",
        bare=r"\binterval_steps_per_second: <rate>"),
    # `step:500/1480 train_loss:3.7 train_time:130164ms step_avg:265.64ms`
    "modded-nanogpt": _kind("train_time:", BETWEEN,
        r"\bstep:<step>/\d{1,9} .{0,200}?\btrain_time:<clock>ms"),
    "YOLOX": _kind("iter_time: ", BETWEEN, r"\bepoch: <epoch>/\d{1,9}, iter: <step>/<steps>,"),
    # `step 63/74 | loss 3.40 | … | 44.58 ms |`, `510 | loss 5.24 | … | 8175.64ms`
    "llm.c": _kind("loss", 1,
        r"^(?:.{0,40}?\bstep )?\s{0,8}<step>(?:/\d{1,9})?(?: \||,) loss[ :].{0,200}?"
        r"(?:\| |\bdt: )<ms> ?ms\b"),
    "NeMo": _kind("train_step_timing in s", 1, r"(?:\|\s{0,4}|iteration )<step>/\d{1,9} "),
    "torchvision": _kind("eta: ", 20, _BRACKETS + r"\s{1,4}eta: ", bare=_TIME),
    "MMEngine": _kind("(train)", 10, _BRACKETS, bare=_TIME),
    "mmcv": _kind(", data_time: ", BETWEEN, _BRACKETS, bare=_TIME),
    "epochs": _kind("ime", 1, r"^(?!.*(?i:global[_ ]?step)).*?" + _BRACKETS, bare=_TIME),
    # `Train Epoch: 0 [ 6464/109468 (3%)] … Data (t): 0.158 Batch (t): 0.559`, of samples so far
    OF_SAMPLES[0]: _kind("Batch (t): ", 1,
        _OF_SAMPLES + r".{0,400}?\bBatch \(t\): <s>"),
    OF_SAMPLES[1]: _kind("Train Epoch: ", BETWEEN, _OF_SAMPLES,
        guard=r"(?i)(?!.*(?:time|sec\b|global.step))"),
    "detectron2": _kind("last_time: ", 1, _ITER, bare=r"\blast_time: " + _SECONDS),
    "maskrcnn-benchmark": _kind("eta: ", 20, _ITER, bare=r"\btime: <s> \("),
    "detectron2 without last_time": _kind("time: ", ALL, _ITER, bare=r"\btime: " + _SECONDS),
    # `iter 100: loss 2.31, time 123.45ms`, `step 5 | … | dt: 12.3ms`, `Iteration: 5, …, Time: 1.5`
    "nanoGPT": _kind("", 1, r"^.{0,80}?\b(?:[Ii]ter(?:ation)?|[Ss]tep):?\s{1,8}<step>\s?[:,/ |]",
        bare=r"(?<!ing )\b(?:[Tt]ime|dt):? {0,4}(?:<ms> ?ms\b|<s>(?: ?s(?:ec)?\b|\s*$))",
        guard=_TRAINING),
    # also in the form `"num_updates": "2", … "wall": "75"`
    "fairseq": _kind("num_updates", BETWEEN,
        r'\bnum_updates(?:=|": "| )<step>"?[, ].{0,400}?\bwall(?:=|": "| )<wall>'),
    "ms-swift": _kind("global_step/max_steps", BETWEEN,
        r"global_step/max_steps.: .<step>/<steps>.{0,200}?\belapsed_time.: .(?:(?P<d>\d{1,4})d )?"
        r"(?:(?P<h>\d{1,2})h )?(?:(?P<m>\d{1,2})m )?(?P<sec>\d{1,2})s"),
    "TF Estimator": _kind(" sec)", BETWEEN, r"\bloss = .{0,80}?\bstep = <step> \(<since> sec\)"),
    "BigDL": _kind("records in ", 1,
        r"\[Iteration <step>\].{0,80}?\bTrained \d{1,9} records in <s> seconds"),
    # `[epoch: 27, iter:  22,100, lr:(1.0e-04,)] [eta: 1 day, 17:57:28, time (data): 0.386 (0.002)]`
    "BasicSR": _kind("time (data): ", BETWEEN, r"\biter: {0,8}<step>,.*? time \(data\): <s> \("),
    # any line with a step and how long it or its parts took
    TOLD: _kind("", 1, *_NUMBERED, guard=_TRAINING + r"(?=.*(?:time|[mu]s\b|sec|/s\b|[\d ]s/))"),
    # any line with a time stamp, a step and a loss or accuracy, as of torchtitan and MXNet; without
    # a stamp, or with nothing but a step, its time may follow in a line of its own
    STAMPED: _kind("", BETWEEN, *_NUMBERED, guard=_TRAINING
        + r"(?=.*(?:loss|accuracy)|\W{0,4}(?:step|batch)\W{1,3}\d{1,9}(?:/\d{1,9})?\W{0,3}$)"),
    # `12/100 [===>..] - 2s 22ms/step`, also with `━━━`, and `100/100 - 2s - 2s/epoch - 22ms/step`
    KERAS: _kind("/step", BETWEEN,
        r"(?<![\d.])(?P<step>[1-9]\d{0,8})/<steps> (?:\[[=>.]{1,99}\]|[━╸]{1,99}|-).{0,200}? "
        r"<mean>(?P<unit>[mu]?)s/step"),
    # `12%|█▏  | 12/100 [00:14<01:46,  1.21s/it]`, but not of what goes before steps, or is in them
    BAR: _kind("%|", BETWEEN,
        r"^(?![^%|]{0,160}\b(?:Processed|Generating|Loading|Downloading|Tokenizing|Map)\b[^%|:,;.]*:"
        r"? *\d+%\|)"
        r".{0,16000}?\d{1,3}%\|[^|]{0,200}\|\s{0,4}(?P<step>[1-9]\d{0,8})/<steps>" + _ELAPSED),
    # `Epoch 0: |   | 12/? [00:14<00:00,  1.21s/it]`, `epoch 3: 12it [00:14,  1.21s/it, loss=2.5]`
    ENDLESS: _kind(" [", BETWEEN,
        r"^.{0,16000}?\|\s{0,4}(?P<step>[1-9]\d{0,8})/\?" + _ELAPSED,
        r"(?i)^(?=.*(?:loss|epoch|train|step)).{0,200}?(?<!\S)(?P<step>[1-9]\d{0,8})it" + _ELAPSED,
        guard=r"(?=.*(?:it/s|s/it))(?![^|]{0,200}\b(?i:val|eval|test|predict|sanity|(?:down)?load"
        "|(?:pre)?process|generat|tokeni|map))"),
}  # fmt: skip


def _stamp(text: str) -> tuple[float, bool]:
    """The first time stamp in a line, in s, and whether it has whole seconds; nan without one."""
    found = _STAMP.search(text[:200])
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
    if event.key != "tracked_stats" or not isinstance(event.value, dict):
        return None
    said = {**event.metadata, **event.value}
    number, samples, rate = (_amount(said.get(k)) for k in ("step", "samples_count", "throughput"))
    seconds = _amount(said.get("train_step_time", said.get("step_time")))
    if log.samples >= 1:
        number = round(samples / log.samples) if np.isnan(number) and samples >= 0 else number
        seconds = log.samples / rate if np.isnan(seconds) and rate > 0 else seconds
    if np.isnan(number + seconds) or number % 1:
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
        mean = "times of this log are means since its beginning: ups and downs are not in it"
        yield f"{mean}; a newer version prints last_time"
    elif window == 1 < apart:
        yield f"a line of this log times one step of about {apart:.0f}: the others are not in it"
    elif max(window, apart) > 1:
        mean = f"a line of this log is the mean of about {window or apart:.0f} steps"
        yield f"{mean}: shorter ups and downs are not in it"


FORMAT = TraceFormat(NAME, recognises, read)


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


_TRUST = dict.fromkeys((*KINDS, "MLPerf"), 5)
_TRUST |= {"": 0, AFTER: 1, KERAS: 2, **dict.fromkeys(BARS, 2), STAMPED: 3, TOLD: 4}


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
    if later_s >= progress.COARSE_S and said.number > before + 1:
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
