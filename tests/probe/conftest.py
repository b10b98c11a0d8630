import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import evenstep
from evenstep.probe.preflight import free_port
from tests.environment import plain

JOB = Path(__file__).with_name("probed_rank.py")


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    """Run so many ranks of `evenstep probe`, as a launcher would; what rank 0 says."""
    folder = tmp_path_factory.mktemp("probe")

    def run(
        ranks, *arguments, fault="none", at=0, local=None, before=lambda rank: [], address=None
    ):
        environ = {
            **plain(),
            "PYTHONPATH": str(Path(evenstep.__file__).parents[1]), "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": address or "127.0.0.1", "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(local or ranks),
        }  # fmt: skip
        command = [sys.executable, str(JOB), fault, str(at), "--", "probe", *map(str, arguments)]
        started = [
            subprocess.Popen(
                [*before(rank), *command], cwd=folder, text=True, stderr=subprocess.PIPE,
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                env=environ | {"RANK": str(rank), "LOCAL_RANK": str(rank % (local or ranks))},
            )
            for rank in range(ranks)
        ]  # fmt: skip
        out, err = started[0].communicate(timeout=300)
        for one in started[1:]:
            one.communicate(timeout=300)
        codes = [one.returncode for one in started]
        return SimpleNamespace(out=out, err=err, codes=codes, folder=folder)

    return run


@pytest.fixture(scope="module")
def parsed():
    """The document a probe printed."""
    return lambda done: json.loads(done.out)
