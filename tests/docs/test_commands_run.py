"""What the pages tell a reader to type runs: every command that reads, on small runs of the names
that a page gives its own. What starts a job, serves or wants a cluster is only parsed elsewhere."""

import contextlib
import io
import shutil

import pytest

from evenstep.cli.main import main
from tests.cli.simulated import SCENARIO
from tests.docs.markdown import PAGES, ROOT, blocks
from tests.importers.recorded_ring import dump, entry, in_flight, write
from tests.importers.test_nccl_tests import HEADER, PRESENT, ROW, UNITS
from tests.report.live_ranks import job
from tests.trace.small_run import write_run

#: Commands that start a job, measure for a minute, serve until interrupted, or compute for minutes.
ELSEWHERE = {"run", "probe", "link", "reproduce", "watch", "demo", "selftest"}
#: Words of a line that ask for what is not here: a cluster, a port, another machine's files.
NOT_HERE = {"--engine", "--serve", "--topology", "--lstopo", "--nccl-log", "--root"}
#: What a page calls its runs, and the stand-in for each.
RUNS = {
    "RUN": "four", "run": "four", "run/": "four", "first": "four", "RUN8": "four",
    "RUN16": "eight", "RUN32": "sixteen", "runs/slow/job-0": "four",
    "/shared/runs/job-17": "four", "/shared/runs/nightly": "four",
    "evenstep-runs/run-…": "live", "/local/run": "recorded", "/shared/run": "collected",
    "traces/": "dumps", "nccl_trace_rank_*": "dumps", "all_reduce_perf.log": "nccl-tests.log",
    "examples/scenarios/oversubscribed.toml": "four.toml",
}  # fmt: skip
QUICK = {
    "simulate": ("--set", "run.steps=20"),
    "sweep": ("--set", "run.steps=2", "--workers", "1"),
    "scaling": ("--set", "run.steps=4", "--ranks", "8,16", "--workers", "1"),
    "strategies": ("--set", "run.steps=4", "--workers", "1"),
}


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    """A run of each size, a live one, one to collect, another tool's dumps."""
    folder = tmp_path_factory.mktemp("pages")
    for name, nodes in (("four", 2), ("eight", 4), ("sixteen", 8)):
        path = folder / f"{name}.toml"
        scenario = SCENARIO.replace("nodes = 2", f"nodes = {nodes}")
        path.write_text(scenario.replace("steps = 60", "steps = 24"))
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(["simulate", str(path), "--out", str(folder / name)]) == 0
    job(folder / "live")
    write_run(folder / "recorded")
    (folder / "dumps").mkdir()
    finished = [entry(number) for number in range(1, 6)]
    write(folder / "dumps", {0: dump([*finished, in_flight(6)]), 1: dump(finished)})
    (folder / "nccl-tests.log").write_text(PRESENT + HEADER + UNITS + ROW)
    return folder


def runnable(page):
    """The lines of a page that run here, in its order."""
    for block in blocks("", "bash"):
        if block.page == page and not block.runs:
            for line in block.commands:
                if line[0] not in ELSEWHERE and not NOT_HERE & set(line):
                    yield line


PAGES_THAT_RUN = [page for page in PAGES if any(runnable(page))]


@pytest.mark.parametrize("page", PAGES_THAT_RUN, ids=lambda page: page.name)
def test_the_commands_of_a_page_run(page, stand_ins, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    shutil.copytree(stand_ins, tmp_path / "made")
    for line in runnable(page):
        named = RUNS | {"RUN": "live", "/local/run": "live"} if line[0] == "ctl" else RUNS
        words = [f"made/{named[word]}" if word in named else word for word in line]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert main([*words, *QUICK.get(line[0], ())]) in (0, 1), " ".join(words)
        assert printed.getvalue() or line[0] in ("collect", "export", "ctl")


def test_most_lines_that_only_read_run():
    assert sum(len(list(runnable(page))) for page in PAGES_THAT_RUN) >= 40
