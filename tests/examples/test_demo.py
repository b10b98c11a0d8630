import re
import subprocess
from pathlib import Path

import pytest

import evenstep
from evenstep.trace.spool.layout import Kind
from tests.environment import plain
from tests.forks import python

pytest.importorskip("torch")

#: `evenstep` with ranks enough for one that is disturbed.
RANKS = 3
DEMO = f"""
import sys
from evenstep.cli import demo, main
demo.RANKS = {RANKS}
sys.exit(main.main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def environ():
    return plain(PYTHONPATH=str(Path(evenstep.__file__).parents[1]), OMP_NUM_THREADS="1")


def losses(output):
    return re.findall(r"step +\d+ +loss (\d+\.\d+)", output)


@pytest.fixture(scope="module")
def demo(environ, tmp_path_factory):
    """A demo too short to mean anything, in a folder that holds a demo already."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "demo-1").mkdir()
    done = subprocess.run(
        [python(), "-c", DEMO, "demo", "--steps", "6", "--out", folder], env=environ,
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder, done


def test_the_demo_takes_a_fresh_folder(demo):
    folder, _ = demo
    assert {path.name for path in folder.iterdir()} == {"demo-1", "demo-2"}
    assert not any((folder / "demo-1").iterdir())


def test_the_demo_ends_with_the_paths_of_its_reports(demo):
    folder, done = demo
    pages = [Path(line) for line in done.stdout.splitlines()[-2:]]
    assert pages == [folder / "demo-2" / name / "report.html" for name in ("healthy", "disturbed")]
    assert all(page.stat().st_size > 10_000 for page in pages)


def test_the_demo_shows_commands_that_can_be_repeated(demo):
    _, done = demo
    commands = [line for line in done.stdout.splitlines() if line.startswith("$ ")]
    assert [command.split()[2] for command in commands] == ["run", "diagnose"] * 2
    assert "--garbage-rank 2" in commands[2]
    assert "--pace on" in commands[2]


def test_neither_garbage_nor_pacing_changes_what_is_learned(demo):
    healthy, disturbed = losses(demo[1].stdout)
    assert healthy == disturbed


def test_every_rank_of_the_demo_was_observed(demo):
    folder, _ = demo
    for name in ("healthy", "disturbed"):
        trace = evenstep.load(folder / "demo-2" / name)
        assert sorted(trace.ranks) == list(range(RANKS))


def test_the_disturbed_rank_paused_inside_backward(demo):
    folder, _ = demo
    trace = evenstep.load(folder / "demo-2" / "disturbed")
    pauses = trace.of_kind(Kind.PAUSE)
    full = (pauses.op == 2) & (pauses["rank"] == 2)  # collections of the whole heap
    assert full.sum() >= 6
