"""Real jobs of two gloo ranks, run once per session and mechanism; and a process group of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import evenstep
from evenstep.agent.recording.recorder import Recorder
from evenstep.hooks.torch import library
from evenstep.hooks.torch.install import COMPILED, DISPATCHER
from evenstep.hooks.torch.native import Session, new_session
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind, Op
from evenstep.trace.spool.spool import Spool
from evenstep.trace.trace import Trace
from tests.forks import start

MECHANISMS = [COMPILED, DISPATCHER]


def observed(recorder: Recorder, give_up: Any = print) -> Any:
    """A rank as the hooks of torch see it."""
    return SimpleNamespace(recorder=recorder, end_step=print, give_up=give_up, gate=None)


class Scenes:
    """What two ranks recorded under each span of the job."""

    def __init__(self, trace: Trace, log: str) -> None:
        self.trace = trace
        self.log = log  # what they wrote into it

    def span(self, name: str, rank: int = 0) -> Columns:
        """A rank's named span."""
        events = self.trace.events.select(self.trace.events.rank == rank)
        return events.select(events.name == self.trace.names.index(name))

    def of(
        self,
        name: str,
        rank: int = 0,
        kinds: Sequence[Kind] = (Kind.COLLECTIVE, Kind.POINT_TO_POINT),
    ) -> Columns:
        """A rank's records of some kinds, its collectives and messages, inside the named span."""
        events, span = self.trace.events, self.span(name, rank)
        inside = (events.enter_ns >= span.enter_ns[0]) & (events.enter_ns <= span.exit_ns[0])
        return events.select((events.rank == rank) & inside & np.isin(events.kind, kinds))

    def both(self, name: str) -> tuple[Columns, Columns]:
        """The same of both ranks."""
        return self.of(name, 0), self.of(name, 1)


def lateness_ns(trace: Trace, op: Op) -> float:
    """How much later than rank 0 rank 1 enters an operation, in the median."""
    rows = trace.of_kind(Kind.COLLECTIVE)
    entries = [
        {
            (group, number): enter
            for group, number, enter in zip(
                mine.group.tolist(), mine.group_seq.tolist(), mine.enter_ns.tolist(), strict=True
            )
        }
        for mine in (rows.select((rows["rank"] == rank) & (rows.op == op)) for rank in (0, 1))
    ]
    return float(
        np.median(
            [entries[1][one] - entries[0][one] for one in entries[0].keys() & entries[1].keys()]
        )
    )


@pytest.fixture(scope="session", params=MECHANISMS)
def mechanism(request: pytest.FixtureRequest) -> str:
    """How collectives are seen: everything this torch has, one after the other."""
    return str(request.param)


@pytest.fixture(scope="session")
def scenes(mechanism: str, tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    """The job's trace, read back from its folder."""
    built = library.build_recorder(Path(torch.__file__).parent)
    if mechanism == COMPILED and built.path is None:
        pytest.skip(built.reason)
    folder = tmp_path_factory.mktemp("job")
    ranks = [start("tests.hooks.collectives_job", folder, mechanism, rank, 2) for rank in range(2)]
    log = ""
    for rank in ranks:
        _, errors = rank.communicate()
        assert rank.returncode == 0, errors
        log += errors
    return Scenes(evenstep.load(folder), log)


@pytest.fixture
def alone() -> Iterator[None]:
    """A real gloo group whose only member is this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    """A small open spool."""
    opened = Spool.create(
        tmp_path / "rank-00000.spool", {"rank": 0}, ring_bytes=100_000, summary_bytes=10_000
    )
    yield opened
    opened.shut()


@pytest.fixture
def session(spool: Spool, request: pytest.FixtureRequest) -> Session | None:
    """What compiled kernels record into, where they are what the test runs on."""
    named = "mechanism" in request.fixturenames
    if not named or request.getfixturevalue("mechanism") != COMPILED:
        return None
    library.build_recorder(Path(torch.__file__).parent)
    made, why = new_session(torch, spool)
    if made is None:
        pytest.skip(why)
    return made


@pytest.fixture
def recorder(spool: Spool, session: Session | None) -> Iterator[Recorder]:
    """A recorder of this thread; it lets go of the mapping before the spool is shut."""
    made = Recorder(spool, session and session.compiled)
    yield made
    made.summaries.release()
