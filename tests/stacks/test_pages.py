"""What the pages tell a reader to start really starts: jobs, measurements, servers.

On small worlds and for few steps; the script that a page calls `train.py` is that of "get started".
What wants a cluster, a scheduler or another machine's files stays with who has one.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, blocks, named

pytest.importorskip("torch", reason="the pages are about jobs of torch")
#: Words of a line that ask for what is not here.
NOT_HERE = {"srun", "--nnodes", "./solver", "…", "(or", "COMMAND…", "$JOB"}
BARE = {"probe", "demo", "selftest"}  # or as the page's next line says
LAUNCHERS = {"torchrun": ["-m", "torch.distributed.run"], "python": []}
QUICK = {
    "demo": ["--steps", "30"],
    "probe": ["--nproc", "2", "--seconds", "2"],
    "reproduce": ["--seeds", "1", "--steps", "200"],
}


def started():
    """(block, line) of each line that starts something here."""
    for block in blocks("", "bash"):
        for line in block.commands:
            wanted = line[0] in {"run", "link", "reproduce", *BARE}
            if wanted and not NOT_HERE & set(line) and block.page.name != "jax.md":
                yield pytest.param(line, id=f"{named(block)[:40]} {' '.join(line)[:60]}")


LINES = list({case.id: case for case in started()}.values())


def small(line):
    """The line with this interpreter, two ranks where a page has more, and few steps."""
    words = list(line)
    for place, word in enumerate(words[:-1]):
        if word in ("--nproc-per-node", "-n", "--nproc") and int(words[place + 1]) > 4:
            words[place + 1] = "2"
    for name, launcher in LAUNCHERS.items():
        if name in words:
            at = words.index(name)
            words[at : at + 1] = [sys.executable, *launcher]
    return [*words, *QUICK.get(words[0], [])]


@pytest.fixture
def folder(tmp_path):
    """Where a reader stands: the examples, and a `train.py` of one's own."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    pages = [block for block in blocks("python") if block.page.name == "get-started.md"]
    script = next(block.text for block in pages if "init_process_group" in block.text)
    script = script.replace("range(100)", "range(30)")
    for name in ("train.py", "my_train.py"):
        (tmp_path / name).write_text(_forgiving(script))
    return tmp_path


#: `train.py` where ranks are those of MPI.
OF_MPI = """from mpi4py import MPI
for step in range(30):
    MPI.COMM_WORLD.allreduce(step)
"""


def _forgiving(script):
    """The script takes options of other people's scripts, and one rank is a world too."""
    alone = "import os\nfor name, value in (('RANK', '0'), ('WORLD_SIZE', '1'),\n"
    alone += "    ('MASTER_ADDR', '127.0.0.1'), ('MASTER_PORT', '0')):\n"
    return f"{alone}    os.environ.setdefault(name, value)\n{script}"


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_the_pages_starts_what_it_says(line, folder):
    if "mpiexec" in line:
        pytest.importorskip("mpi4py", reason="the line starts ranks of MPI")
        (folder / "train.py").write_text(OF_MPI)
    words = small(line)
    out = words[words.index("--out") + 1] if "--out" in words else ""
    if out.startswith("/"):
        words[words.index("--out") + 1] = out.strip("/").replace("/", "-")
    if words[0] == "link":
        words[1] = f"{words[1].partition('@')[0]}@127.0.0.1:0"
    process = subprocess.Popen(
        [sys.executable, "-m", "evenstep", *words], cwd=folder, env=_environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        if words[0] == "link":
            assert "serving on port" in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
        else:
            printed, _ = process.communicate(timeout=240)
            assert process.returncode in (0, 1), printed
            assert "next: evenstep diagnose" in printed or line[0] != "run", printed
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def _environment():
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    found = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    own = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "80", "PATH": found}
    return os.environ | own


def test_there_are_lines_to_start():
    assert len(LINES) >= 20
