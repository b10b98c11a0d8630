"""What the pages tell a reader to type runs, on small runs of the names that a page gives its own.

`evenstep run` starts launchers that stand for the real ones: they leave a trace and end. The real
ones are started in `tests/stacks/test_pages.py`, for minutes. What runs in neither says why.
"""

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from evenstep.cli.main import main
from evenstep.doctor import examination
from tests.cli.simulated import SCENARIO
from tests.docs.markdown import PAGES, ROOT, blocks, named
from tests.doctor.fake_machine import machine
from tests.doctor.test_doctor import LOG
from tests.doctor.test_topology import MATRIX, xml
from tests.importers.recorded_ring import dump, entry, in_flight, write
from tests.importers.test_nccl_tests import HEADER, PRESENT, ROW, UNITS
from tests.report.live_ranks import job
from tests.trace.small_run import write_run

#: What runs not here, and why: a command, or an option of one.
NOT_HERE = {
    "probe": "it starts ranks of torch and times them: in tests/stacks",
    "reproduce": "it simulates for minutes: in tests/stacks, and its parts in tests/reproduce",
    "--engine": "Ray is an extra that is rarely there: in tests/stacks",
}
#: What serves until it is interrupted, and what it says once it does.
SERVES = {"link": "serving on port", "export": "until interrupted"}
LAUNCHERS = ("torchrun", "srun", "mpiexec", "python", "COMMAND…", "solver")
#: Leaves the trace that was recorded before, as its ranks would.
LAUNCHER = '#!/bin/sh\ncp -r "$RECORDED"/attempt-000 "$EVENSTEP_OUT"/\n'
#: What a page calls its runs, and the stand-in for each.
RUNS = {
    "RUN": "four", "run": "four", "run/": "four", "first": "four", "RUN8": "four",
    "RUN16": "eight", "RUN32": "sixteen", "runs/slow/job-0": "four",
    "/shared/runs/job-17": "four", "/shared/runs/nightly": "four",
    "evenstep-runs/run-…": "live", "/local/run": "recorded", "/shared/run": "collected",
    "traces/": "dumps", "nccl_trace_rank_*": "dumps", "all_reduce_perf.log": "nccl-tests.log",
    "examples/scenarios/oversubscribed.toml": "four.toml", "topo.txt": "topo.txt",
    "topo.xml": "topo.xml", "nccl.log": "nccl.log", "gpu012": "gpu012",
}  # fmt: skip
QUICK = {
    "simulate": ("--set", "run.steps=20"),
    "sweep": ("--set", "run.steps=2", "--workers", "1"),
    "scaling": ("--set", "run.steps=4", "--ranks", "8,16", "--workers", "1"),
    "strategies": ("--set", "run.steps=4", "--workers", "1"),
    "watch": ("--once",),
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
    (folder / "topo.txt").write_text(MATRIX.format(far="PIX"))
    (folder / "topo.xml").write_text(xml())
    (folder / "nccl.log").write_text(LOG)
    machine(folder / "gpu012")
    (folder / "bin").mkdir()
    for name in LAUNCHERS:
        (folder / "bin" / name).write_text(LAUNCHER)
        (folder / "bin" / name).chmod(0o755)
    return folder


def stays(line):
    """Why a line does not run here; None where it does."""
    if "--mpi-shim" in line and not shutil.which("mpicc"):
        return "it compiles a library of MPI"
    return next((why for what, why in NOT_HERE.items() if what in line), None)


def runnable(page):
    """The lines of a page that run here, in its order."""
    for block in blocks("", "bash"):
        if block.page == page and not block.runs:
            yield from (line for line in block.commands if not stays(line))


PAGES_THAT_RUN = [page for page in PAGES if any(runnable(page))]


@pytest.fixture
def reader(stand_ins, tmp_path, monkeypatch):
    """Where a reader stands, with the launchers that a page takes for granted."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    shutil.copytree(stand_ins, tmp_path / "made", symlinks=True)
    shutil.copy(tmp_path / "made" / "bin" / "solver", tmp_path)
    path = os.pathsep.join([str(tmp_path / "made" / "bin"), os.environ["PATH"]])
    added = {"PATH": path, "RECORDED": str(tmp_path / "made" / "recorded")}
    added |= {"JOB": "17", "HEAD": "gpu1", "SLURM_JOB_ID": "17", "EVENSTEP_VERDICT": "0"}
    added |= {"EVENSTEP_COMPILED": "0", "COLUMNS": "80"}
    for name, value in added.items():
        monkeypatch.setenv(name, value)


def typed(line, number):
    """The words of a line with what stands here for what they name."""
    words = [os.path.expandvars(word) for word in line]
    if line[0] == "run":  # no two lines of a page write into one folder, nor above it
        command = words.index("--") if "--" in words else len(words)
        rest = words[:command].index("--out") if "--out" in words[:command] else None
        options = [*words[:rest], *words[rest + 2 : command]] if rest else words[:command]
        return [*options, "--out", f"out-{number}", *words[command:]]
    live = {"RUN": "live", "/local/run": "live"} if line[0] in ("ctl", "watch") else {}
    names = RUNS | live
    return [f"made/{names[word]}" if word in names else word for word in words]


@pytest.mark.parametrize("page", PAGES_THAT_RUN, ids=lambda page: page.name)
def test_the_commands_of_a_page_run(page, reader):
    for number, line in enumerate(runnable(page)):
        words = [*typed(line, number), *QUICK.get(line[0], ())]
        if line[0] in SERVES and {"link", "--serve"} & set(line):
            assert serves(words, SERVES[line[0]])
            continue
        if line[0] == "run":
            assert "this node's traces are in" in started(words)
            continue
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert main(words) in (0, 1), " ".join(words)
        silent = line[0] in ("collect", "export", "ctl") or "--aggregate" in line
        assert printed.getvalue() or silent


def started(words):
    """What a launcher says. A process of its own: it waits for its child by signals, which threads
    of this one might take."""
    command = [sys.executable, "-m", "evenstep", *words]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stderr


def serves(words, said):
    """Whether it says so, and ends when it is interrupted: also where the tests ignore Ctrl-C, as
    those of a script's background do, whose children would ignore it as well."""
    place = {":9400": ":0", "team-a@10.0.0.7:7717": "team-a@127.0.0.1:0"}
    command = [sys.executable, "-m", "evenstep", *(place.get(word, word) for word in words)]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment())
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)  # None: of a handler in C
    with child:
        try:
            line = child.stderr.readline()
            child.send_signal(signal.SIGINT)
            assert child.wait(30) in (0, 130)
        finally:
            child.kill()
    return said in line


def environment():
    return os.environ | {"PYTHONPATH": str(ROOT / "src")}


def test_what_does_not_run_here_is_little_and_there():
    lines = [line for block in blocks("", "bash") for line in block.commands]
    idle = [line for line in lines if any(what in line for what in NOT_HERE)]
    assert len(idle) < len(lines) / 10
    assert all(any(what in line for line in idle) for what in NOT_HERE)


# -- what the pages print -------------------------------------------------------------------------

SHOWN = {
    "store.md": {"RUN": "four", "STORE": "STORE"},
    "simulator.md": {"examples/scenarios/oversubscribed.toml": "four.toml"},
}
NUMBER = re.compile(r"(?<![\w.])[+±-]?[\d,]*\.?\d+(?:e[+-]\d+)?")


def shapes(text):
    """Lines without their numbers, and how widely they are set apart."""
    return [re.sub(r"\s+", " ", NUMBER.sub("#", line)).strip() for line in text.splitlines()]


PRINTING = [
    block
    for block in blocks("", "bash")
    if block.page.name in SHOWN and not block.runs
    if any(shown.strip() for _, shown in block.typed_and_printed)
]


@pytest.mark.parametrize("block", PRINTING, ids=named)
def test_commands_print_lines_of_the_form_that_the_pages_show(block, reader, capsys):
    names = SHOWN[block.page.name]
    for (_, shown), line in zip(block.typed_and_printed, block.commands, strict=True):
        words = [f"made/{names[word]}" if word in names else word for word in line]
        assert main([*words, *QUICK.get(line[0], ())]) in (0, 1)
        printed = shapes("".join(capsys.readouterr()).replace("made/", ""))
        assert set(shapes(shown.replace("…", ""))) - {""} <= set(printed)


def test_the_finding_that_doctor_shows_is_one_of_its_own(tmp_path):
    block = next(block for block in blocks("") if block.page.name == "doctor.md")
    host = machine(tmp_path, environ={"NCCL_IB_DISABLE": "1"})
    printed = examination.render(examination.examine(host), width=80, color=False)
    assert block.text.partition("\n\n")[2].partition("…")[0].strip() in printed
