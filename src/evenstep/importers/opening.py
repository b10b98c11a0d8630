"""Recognise what a user's paths are, and read them as one trace.

Runs of evenstep are recognised without importing any other format; formats are imported one by one
until one recognises the file.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from evenstep.errors import MissingExtra, TraceError, UsageError, nothing_read
from evenstep.trace.reports import report_file
from evenstep.trace.spool.layout import MAGIC
from evenstep.values import merged

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory

    from evenstep.importers.content import SourceFile, TraceFormat
    from evenstep.trace.trace import Trace

#: Modules of this package, each a `TraceFormat`, and what they read. The first that recognises a
#: file reads it.
FORMATS: Mapping[str, str] = {
    "kineto.kineto": "a Kineto or Chrome trace in JSON", "horovod": "a timeline of Horovod",
    "xplane.xplane": "an XPlane profile of JAX", "otf2.otf2": "the anchor of an OTF2 archive",
    "nsys.nsys": "an SQLite export of Nsight Systems",
    "flight_recorder.flight_recorder": "a flight recorder dump of torch.distributed",
    "flight_recorder.watchdog": "a log with a timeout of torch's watchdog",
    "nccl.inspector": "JSON lines of the NCCL Inspector",
    "operations.operation_tables": "an operation table in Parquet or CSV",
    "nccl.durations": "a table of collectives' durations",
    "steps.step_tables": "a table of steps in CSV, JSON lines or Parquet",
    "steps.training_logs": "a training log", "nccl.debug": "a log with NCCL_DEBUG=INFO",
    "nccl.tests": "a log of nccl-tests, or floors of evenstep probe",
}  # fmt: skip
#: About the fabric: what they tell is merged into `Trace.run`, where the diagnosis finds it.
COMPANIONS = ("nccl.debug", "nccl.tests")
LOG = "steps.training_logs"  # may have lines of the formats after it, too
WHOLE_STEPS = (LOG, "steps.step_tables")  # tell least of a run, and more
EXPECTED = "a run's folder, an attempt, a spool, a store, " + ", ".join(FORMATS.values())
DEEPEST = 5  # levels below a folder: JAX writes rank0/plugins/profile/STAMP/HOST.xplane.pb
MOST_FILES = 20_000  # in a folder: one with more is not a folder of ranks


@dataclass(slots=True)
class Bundle:
    """The files of one trace: a run of evenstep, or files of one foreign format."""

    path: Path  # the run, or the folder or first file that was given
    format: TraceFormat | None = None  # None: a run of evenstep
    sources: list[SourceFile] = field(default_factory=list)


class InputPaths(NamedTuple):
    """A user's paths, sorted by trace and format."""

    bundles: list[Bundle]
    companions: list[tuple[TraceFormat, list[SourceFile]]]
    limits: list[str]  # paths that are not used, and why
    folders: list[TemporaryDirectory[str]]  # unpacked archives, kept as long as this object


def load(path: str | Path, *, attempt: int | None = None) -> Trace:
    """Read a run, or another tool's file or folder of files, as a trace.

    Of a run with several attempts the last one is read unless `attempt` names another. Files that
    are missing, damaged or foreign are left out and named in `limits`; raises `TraceError` when
    none is usable.
    """
    return open_trace([path], attempt=attempt)


def open_trace(paths: Sequence[str | Path], *, attempt: int | None = None) -> Trace:
    """Read all paths as one trace; companion logs are merged into `Trace.run`.

    Raises `UsageError` where the paths are several traces, `TraceError` where they are none.
    """
    given = sort_out([Path(path) for path in paths])
    if len(given.bundles) > 1:
        found = ", ".join(str(bundle.path) for bundle in given.bundles)
        raise UsageError(f"these are {len(given.bundles)} traces ({found}); give one at a time")
    return open_bundle(given.bundles[0], given, attempt=attempt)


def open_bundle(bundle: Bundle, given: InputPaths, *, attempt: int | None = None) -> Trace:
    """Read one of several traces, with all companion logs."""
    if bundle.format is None:
        from evenstep.trace.loading import load as load_run

        trace = load_run(bundle.path, attempt=attempt)
    else:
        for source in bundle.sources:
            report_file(source.path, read=False)
        trace = bundle.format.read(bundle.sources)
    for companion, sources in given.companions:
        trace.run = merged(trace.run, _beside(companion, sources, trace.limits))
    trace.limits += given.limits
    return trace


def _beside(
    companion: TraceFormat, sources: Sequence[SourceFile], limits: list[str]
) -> Mapping[str, Any]:
    """What companion logs say; `limits` names those that are damaged."""
    try:
        told: Mapping[str, Any] = companion.read(sources)
        return told
    except TraceError as error:
        sound = [one for one in sources if len(sources) > 1 and _beside(companion, [one], limits)]
        if len(sources) == 1:
            limits.append(f"left out: {error}")
        return companion.read(sound) if sound else {}


def sort_out(paths: Sequence[Path]) -> InputPaths:
    """Sort paths into traces and companions. Raises `TraceError` where no path is of a trace.

    Spools of one attempt become that attempt. Files of one foreign format are one trace, unless
    files in different folders share a name. Each folder is a trace of its own.
    """
    given = InputPaths([], [], [], [])
    loose = []
    for path in _attempts(paths):
        if not path.exists():
            raise TraceError(f"there is no {path}; give a run's folder or a profile's file")
        inside = _unpack(given, path)
        if is_run(inside):
            given.bundles.append(Bundle(inside))
        elif inside.is_dir():
            _take(given, _inside(inside), folder=path)
        else:
            loose.append(path)
    for files in _by_run(loose) if loose else ():
        _take(given, files)
    if not given.bundles:
        raise _nothing(given)
    return given


def _unpack(given: InputPaths, path: Path) -> Path:
    """The path, or of an archive, also one alone in a folder, the folder it was unpacked into, or
    the single folder in that."""
    files = [] if is_run(path) else _inside(path) if path.is_dir() else [path]
    if len(files) != 1:
        return path
    from evenstep.importers.compression import is_archive, unpack

    try:
        if not is_archive(files[0]):
            return path
    except TraceError:  # reported when the file is recognised
        return path
    given.folders.append(unpack(files[0]))
    folder = Path(given.folders[-1].name)
    within = list(folder.iterdir())
    return within[0] if len(within) == 1 and within[0].is_dir() else folder


def is_run(path: Path) -> bool:
    """Whether a path is a run's folder, an attempt, a spool or a pack."""
    if path.is_dir():
        names = ("rank-*.spool", "node-*.pack")
        places = ("run.json", "store.json", *names, *(f"attempt-*/{name}" for name in names))
        return any(any(path.glob(place)) for place in places)
    if path.suffix in (".spool", ".pack"):
        return True
    if path.is_fifo():  # it may never be opened
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:  # reported when the file is recognised
        return False


def _attempts(paths: Sequence[Path]) -> list[Path]:
    """The paths with several spools of one attempt replaced by that attempt, each once."""
    paths = list(dict.fromkeys(paths))
    folders = [path.absolute().parent for path in paths if path.suffix == ".spool"]
    merged = (
        path.parent
        if path.suffix == ".spool" and folders.count(path.absolute().parent) > 1
        else path
        for path in paths
    )
    return list(dict.fromkeys(merged))


def _inside(folder: Path) -> list[Path]:
    """The visible files of a folder, or else those of the first level below that has any."""
    for depth in range(1, DEEPEST + 1):
        found = (path for path in folder.glob("/".join("*" * depth)) if path.is_file())
        files = sorted(path for path in found if "/." not in f"/{path.relative_to(folder)}")
        if len(files) > MOST_FILES:
            raise TraceError(f"{folder} holds {len(files)} files; give the traces' own folder")
        if files:
            return files
    return []


def _by_run(files: Sequence[Path]) -> list[list[Path]]:
    """Files by run: one run per folder if a name occurs twice, unless the folders are ranks'."""
    from evenstep.importers.file_ranks import in_rank_folders

    names = {path.name for path in files}
    if len(names) == len(files) or in_rank_folders(files):
        return [list(files)]
    folders = dict.fromkeys(path.parent for path in files)
    return [[path for path in files if path.parent == folder] for folder in folders]


def _take(given: InputPaths, files: Sequence[Path], folder: Path | None = None) -> None:
    """Sort files of one run by their formats."""
    found: dict[str, tuple[TraceFormat, list[SourceFile]]] = {}
    unused, unknown = [], []
    for path in files:
        try:
            source, formats = _recognise(path)
        except TraceError as error:
            unused.append(str(error))
            continue
        for name, known in formats.items():
            found.setdefault(name, (known, []))[1].append(source)
        if not formats:
            unknown.append(source)
    traces = [name for name in found if name not in COMPANIONS]
    for name in WHOLE_STEPS if folder else ():
        if name in traces and len(traces) > 1:
            traces.remove(name)
            known, sources = found.pop(name)
            more = "beside what tells more: give it alone"
            given.limits.extend(f"{each.path} is a {known.NAME} {more}" for each in sources)
    for name, (known, sources) in found.items():
        if name in COMPANIONS:
            given.companions.append((known, sources))
        else:
            given.bundles.append(Bundle(folder or sources[0].path, known, sources))
    for source in unknown:
        unused += _unknown(source, folder, alone=not found)
    if not found and not unused:
        unused.append(f"{folder} holds no file that is expected here")
    given.limits.extend(f"left out: {reason}" for reason in unused)


def _unknown(source: SourceFile, folder: Path | None, alone: bool) -> list[str]:
    """Why a file is not used; in a folder, where any file may lie, only if nothing else is there
    and it is known what the file is."""
    from evenstep.importers.unread import reason

    if not source.head:
        return [f"{source.path} is empty"]
    if folder and not alone:
        return []
    if why := reason(source):
        return [why]
    return [] if folder else [f"{source.path} is in no format that evenstep reads"]


def _recognise(path: Path) -> tuple[SourceFile, dict[str, TraceFormat]]:
    """A file's head, and its formats: one, or for a log a trace and companions.

    Raises `MissingExtra` where only a format whose dependency is missing might recognise it.
    """
    from evenstep.importers.compression import read_head
    from evenstep.importers.content import SourceFile

    source = SourceFile(path, read_head(path))
    found: dict[str, TraceFormat] = {}
    missing = ""
    for name in FORMATS if source.head else ():
        try:
            module: Any = importlib.import_module(f"evenstep.importers.{name}")
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == "evenstep":
                raise
            missing = error.name or missing
            continue
        if module.recognises(source):
            found[name] = module
            if name != LOG:
                break
    if missing and not found:
        raise MissingExtra(missing, extra="analyze", purpose=f"reading {path}")
    return source, found


def _nothing(given: InputPaths) -> TraceError:
    """Say why there is no trace."""
    if given.companions:
        known, sources = given.companions[0]
        return TraceError(
            f"{sources[0].path} is a {known.NAME}: it describes the fabric, not a run; give it "
            "beside a trace"
        )
    return nothing_read(given.limits[:3], "", "; `evenstep diagnose --help` lists the formats")
