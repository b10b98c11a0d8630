"""What is fuzzed: everything that reads what others may have written, with seeds of its own."""

import gzip
import json
import pickle
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"
MOST_SEED_BYTES = 200_000


class Subject(NamedTuple):
    """A reader. `read` raises an `EvenstepError` for what it refuses, and nothing else."""

    name: str
    file: str  # what its input is called
    seeds: Callable[[], list[bytes]]
    read: Callable[[Path], object]
    weight: int = 60  # how often it is drawn: what takes milliseconds less often


def opened(path: Path) -> object:
    """A file as `evenstep diagnose` opens it."""
    from evenstep.importers.opening import load

    return load(path)


def diagnosed(path: Path) -> object:
    """What is said of it."""
    from evenstep.diagnose.engine import diagnose

    return diagnose(opened(path)).to_json()


def written(name: str, write: Callable[[Path], object]) -> Callable[[], list[bytes]]:
    """The files that a writer leaves in a folder, those whose name begins so."""

    @cache
    def seeds() -> list[bytes]:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder))
            return [path.read_bytes() for path in sorted(Path(folder).rglob(f"{name}*"))]

    return seeds


def texts(module: str, *names: str) -> Callable[[], list[bytes]]:
    """Logs that the importers' own tests are made of."""

    def seeds() -> list[bytes]:
        import importlib

        found = importlib.import_module(f"tests.importers.{module}")
        return [getattr(found, name).encode() for name in names]

    return seeds


# -- seeds -----------------------------------------------------------------------------------------


def _kineto() -> list[bytes]:
    from tests.importers.profiles import two_steps

    documents = [two_steps(rank, late=50).document() for rank in range(2)]
    bare = documents[0]["traceEvents"]
    return [json.dumps(each).encode() for each in (*documents, bare)]


def _rings() -> list[bytes]:
    from tests.importers.recorded_ring import dump, entry, in_flight, message

    ring = dump([entry(n) for n in range(4)] + [message(5, "nccl:send 0->1"), in_flight(6)])
    return [pickle.dumps(ring, 2), pickle.dumps(ring, 4), json.dumps(ring).encode()]


def _inspector() -> list[bytes]:
    from tests.importers.test_nccl_inspector import record

    rows = [record(rank, number) for number in range(4) for rank in range(2)]
    return ["\n".join(map(json.dumps, rows)).encode()]


def _nsys(folder: Path) -> None:
    from tests.importers.profiled_session import training

    training(0, steps=3).write(folder / "a.sqlite")


def _operations() -> list[bytes]:
    head = "dp_rank,stage,rank,step,optype,start_ts,duration,seq_id,mc,gmc,mb_id\n"
    kinds = ("forward-compute", "backward-compute", "forward-send", "grads-reduce-scatter")
    rows = [
        f"{rank // 2},{rank % 2},{rank},{step},{kind},{step + at * 0.1},{0.1},0,0,0,0\n"
        for step in range(3) for rank in range(4) for at, kind in enumerate(kinds)
    ]  # fmt: skip
    return [(head + "".join(rows)).encode()]


def _steps() -> list[bytes]:
    rows = [f"{worker},{step},{0.1 + worker / 50}" for step in range(20) for worker in range(3)]
    table = "\n".join(["rank,step,seconds", *rows])
    lines = [json.dumps({"rank": n % 2, "step": n // 2, "seconds": 0.1}) for n in range(20)]
    return [table.encode(), "\n".join(lines).encode()]


def _timeline() -> list[bytes]:
    from tests.importers.test_horovod import events

    return [("[\n" + ",\n".join(json.dumps(event) for event in events())).encode()]


def _durations() -> list[bytes]:
    rows = [f"{rank},dp,{call},{'all_reduce'},{100 + rank}" for call in range(12)
            for rank in range(3)]  # fmt: skip
    return ["\n".join(["rank,group,seq,op,duration_us", *rows]).encode()]


def recorded(*names: str) -> Callable[[], list[bytes]]:
    """Files that other tools wrote, unpacked."""

    @cache
    def seeds() -> list[bytes]:
        place = ROOT / "tests" / "importers" / "recorded"
        return [gzip.decompress((place / name).read_bytes()) for name in names]

    return seeds


def _units() -> tuple:
    from evenstep.simulate.study.sweep import SweepRun

    return tuple(SweepRun(n, n, 0, (), {"n": n}) for n in range(4))


def _sweep() -> list[bytes]:
    rows = [{"number": unit.number, "key": unit.key, "step_ms": 1.5, "error": None}
            for unit in _units()]  # fmt: skip
    return ["".join(json.dumps(row) + "\n" for row in rows).encode()]


def _rings_of_mpi() -> list[bytes]:
    from evenstep.hooks.mpi.pmpi.collect import CALL
    from evenstep.trace.spool.layout import Op

    kinds = [(1, int(Op.ALL_REDUCE)), (1, int(Op.BROADCAST)), (2, int(Op.SEND)), (3, 0)] * 8
    rows = [(n + 1, n * 1_000 + 1, n * 1_000 + 500, 64, 64, n, 0, 0, 1, *kind, 0, 1, 0, 0)
            for n, kind in enumerate(kinds)]  # fmt: skip
    return [b"".join(CALL.pack(*row) for row in rows)]


def _described_by_mpi() -> list[bytes]:
    first = {
        **{"rank": 0, "world": 2, "local_rank": 0, "pid": 7, "hostname": "a", "boot_id": "b"},
        **{"anchor_monotonic_ns": 5, "anchor_realtime_ns": 9, "library": "MPI"},
    }
    world = {"communicator": 1, "parent": 0, "by": "", "name": "MPI_COMM_WORLD", "ranks": [0, 1]}
    split = {"communicator": 2, "parent": 1, "by": "split", "name": "", "ranks": [0]}
    return ["\n".join(map(json.dumps, (first, world, split, {"closed_ns": 99_000}))).encode()]


def _topologies() -> list[bytes]:
    from tests.doctor.test_topology import xml

    return [xml().encode(), xml(nic_place="root").encode()]


def _store(folder: Path) -> None:
    from evenstep.trace.store.writing import write_store
    from tests.trace.small_run import write_run

    write_store(opened(write_run(folder / "run")), folder / "store")


def _pack(folder: Path) -> None:
    from evenstep.trace.pack import write_pack
    from tests.trace.small_run import write_run

    run = write_run(folder)
    write_pack(sorted(run.rglob("*.spool")), folder / "node-a.pack")


def _spools(folder: Path) -> None:
    from tests.trace.small_run import write_run

    write_run(folder, range(2))


def _requests() -> list[bytes]:
    from evenstep.agent.settings.request import SettingsChange, encode

    return [encode(SettingsChange(1, "on", 0.02, 0.2, ranks="0-3", nodes="gpu[1-4]"), "r")]


def _run_facts() -> list[bytes]:
    facts = {"schema": "evenstep.run/1", "run_id": "r", "command": ["torchrun", "a.py"]}
    more = {"environment": {"A": "b"}, "versions": {"torch": None}, "hostname": "h", "world": 2}
    return [json.dumps(facts | more).encode()]


def _files(*patterns: str) -> Callable[[], list[bytes]]:
    def seeds() -> list[bytes]:
        found = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
        return [path.read_bytes() for path in found if path.stat().st_size < MOST_SEED_BYTES]

    return seeds


# -- readers ---------------------------------------------------------------------------------------


def _in_store(path: Path) -> object:
    place = path.parent / "store"
    if not place.exists():
        _store(path.parent)
    (place / "store.json").write_bytes(path.read_bytes())
    return opened(place)


def _in_table(name: str) -> Callable[[Path], object]:
    """A store of which one table is the input."""

    def read(path: Path) -> object:
        place = path.parent / "store"
        if not place.exists():
            _store(path.parent)
        found = next(place.rglob(name))
        found.write_bytes(path.read_bytes())
        return opened(place)

    return read


def _collected(path: Path) -> object:
    """A rank of an MPI program, one of whose two files is the input."""
    from evenstep.hooks.mpi.pmpi.collect import collect

    place = path.parent / "run" / "attempt-000"
    place.mkdir(parents=True, exist_ok=True)
    for suffix, seeds in ((".calls", _rings_of_mpi), (".ranks", _described_by_mpi)):
        data = path.read_bytes() if path.suffix == suffix else seeds()[0]
        (place / f"rank-00000{suffix}").write_bytes(data)
    try:
        collect(path.parent / "run", run_id="r")
        return diagnosed(path.parent / "run")
    finally:
        (place / "rank-00000.spool").unlink(missing_ok=True)


def _resumed(path: Path) -> object:
    """A sweep that goes on with such a journal, and its results as a table."""
    from evenstep.simulate.study.sweep import SweepPlan
    from evenstep.simulate.study.sweep_folder import SweepFolder

    place = path.parent / "sweep"
    folder, plan = SweepFolder(place), SweepPlan((), 1, _units())
    folder.begin(plan, force=False)
    (place / path.name).write_bytes(path.read_bytes())
    rows = folder.begin(plan, force=False)
    return folder.write_results(rows) if rows else None


def _topology(path: Path) -> object:
    from evenstep.doctor import lstopo

    return lstopo.load(path)


def _run_of(path: Path) -> object:
    """A rank's trace among sound ones, diagnosed."""
    place = path.parent / "run" / "attempt-000"
    if not place.exists():
        _spools(path.parent / "run")
    (place / "rank-00001.spool").write_bytes(path.read_bytes())
    return diagnosed(path.parent / "run")


def _facts(path: Path) -> object:
    from evenstep.trace.spool.folder import RunFolder

    return RunFolder(path.parent).read()


def _live(path: Path) -> object:
    from evenstep.export.prometheus import exposition, running

    return exposition(running(path.parent))


def _request(path: Path) -> object:
    from evenstep.agent.settings.request import read

    return read(path.parent, "r", name=path.name)


def _settings(path: Path) -> object:
    from evenstep.agent.settings import config

    return config.load({}, {}, path.parent)


def _scenario(path: Path) -> object:
    from evenstep.scenario import scenario

    return scenario.load(path)


def _messages(path: Path) -> object:
    from evenstep.agent.exchange.messages import Orders, WindowReport

    data = path.read_bytes()
    return Orders.unpack(data), WindowReport.unpack(data)


def _message_seeds() -> list[bytes]:
    from evenstep.agent.exchange.messages import Orders, SharedFloor, WindowReport

    report = WindowReport(*range(len(WindowReport._fields))).pack()
    return [report, Orders(floor=SharedFloor(1, 2, 3, 4)).pack()]


def _watched(path: Path) -> object:
    """What `evenstep watch` shows of a run with such a rank."""
    from evenstep.watch.findings import live_findings
    from evenstep.watch.frame import frame
    from evenstep.watch.run import LiveRun

    place = path.parent / "attempt-000"
    if not place.exists():
        _spools(path.parent)
    (place / "rank-00001.spool").write_bytes(path.read_bytes())
    run = LiveRun(path.parent, here=True)
    run.refresh()
    return frame(run, live_findings(run)).to_json()


def _news(folder: Path) -> None:
    from evenstep.watch.run import LiveRun
    from evenstep.watch.tree import encode, summary_path, write_summary

    _spools(folder)
    run = LiveRun(folder, here=True)
    run.refresh()
    write_summary(summary_path(folder, "a"), encode(run, "a"))


def _heard(path: Path) -> object:
    from evenstep.watch.tree import decode

    try:
        return decode(path.read_bytes())
    except ValueError:  # its readers take it for none of theirs
        return None


SUBJECTS = (
    Subject("profile", "trace.json", _kineto, opened, weight=20),
    Subject("flight recorder", "nccl_trace_rank_0", _rings, opened, weight=150),
    Subject("inspector", "inspector.log", _inspector, opened, weight=100),
    Subject("NCCL's log", "nccl.log", texts("test_nccl_debug", "LOG"), opened, weight=100),
    Subject("nccl-tests", "tests.log", texts("test_nccl_tests", "PRESENT"), opened, weight=80),
    Subject(
        "training log", "train.log",
        texts("test_training_logs", "MEGATRON", "TITAN", "DEEPSPEED", "NANO"), opened, weight=80,
    ),
    Subject("step table", "steps.csv", _steps, opened, weight=6),
    Subject("nsys", "a.sqlite", written("a.sqlite", _nsys), opened, weight=50),
    Subject("operations", "operations.csv", _operations, opened, weight=3),
    Subject("store", "manifest", written("store.json", _store), _in_store, weight=1),
    Subject("store's ranks", "ranks", written("ranks.parquet", _store),
            _in_table("ranks.parquet"), weight=1),
    Subject("store's records", "records", written("nodes-", _store),
            _in_table("nodes-*"), weight=1),
    Subject("XPlane", "host.xplane.pb", recorded("jax-rank0.xplane.pb.gz"), opened, weight=30),
    Subject("event file", "events.out.tfevents.1.host", recorded("tensorboardx.tfevents.gz"),
            opened, weight=80),
    Subject("timeline", "timeline.json", _timeline, opened, weight=10),
    Subject("durations", "durations.csv", _durations, opened, weight=3),
    Subject("calls of MPI", "rank-00000.calls", _rings_of_mpi, _collected, weight=6),
    Subject("MPI's description", "rank-00000.ranks", _described_by_mpi, _collected, weight=6),
    Subject("sweep's journal", "journal.jsonl", _sweep, _resumed, weight=3),
    Subject("lstopo", "topology.xml", _topologies, _topology),
    Subject("pack", "node-a.pack", written("node-a.pack", _pack), opened, weight=15),
    Subject("spool", "rank-00001.spool", written("rank-00001", _spools), _run_of, weight=30),
    Subject("watched spool", "spool", written("rank-00001", _spools), _watched, weight=30),
    Subject("news of a node", "node-a.bin", written("node-a.bin", _news), _heard, weight=40),
    Subject("run.json", "run.json", _run_facts, _facts),
    Subject("late ranks", "window.json", lambda: [b'{"schema":"evenstep.live/1","steps":[0,15],'
            b'"late":{"rank":1,"window":2,"excess_ns":3,"share":0.1,"waiting_ranks":3},"windows":3,'
            b'"late_windows":{"1":2},"ranks":[{"rank":0,"step_ns":5,"wait_ns":1}]}'], _live),
    Subject("request", "control.json", _requests, _request),
    Subject("settings", "evenstep.toml",
            lambda: [b'ring_bytes = "1MB"\n[pace]\nmode = "on"\nranks = "0-3"\n'], _settings),
    Subject("scenario", "scenario.toml", _files("examples/**/*.toml"), _scenario),
    Subject("messages", "message", _message_seeds, _messages),
)  # fmt: skip
BY_NAME = {subject.name: subject for subject in SUBJECTS}
