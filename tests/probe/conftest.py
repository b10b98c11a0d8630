import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from evenstep.probe.preflight import free_port
from tests import forks
from tests.forks import start


def begin(words, before, folder, environ):
    """A rank: behind another command, or forked from a process that has imported torch."""
    if not before:
        return start("tests.probe.probed_rank", *words, cwd=folder, **environ)
    return subprocess.Popen(
        [*before, sys.executable, "-m", "tests.probe.probed_rank", *words], cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=forks.environ(**environ),
    )  # fmt: skip


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    """Run so many ranks of `evenstep probe`, as a launcher would; what rank 0 says."""
    folder = tmp_path_factory.mktemp("probe")

    def run(ranks, *arguments, fault="none", at=0, local=None, before=None, address=None):
        environ = {
            "MASTER_ADDR": address or "127.0.0.1", "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(local or ranks),
        }  # fmt: skip
        words = [fault, str(at), "--", "probe", *map(str, arguments)]
        started = [
            begin(
                words, before and before(rank), folder,
                environ | {"RANK": str(rank), "LOCAL_RANK": str(rank % (local or ranks))},
            )
            for rank in range(ranks)
        ]  # fmt: skip
        (out, err), *_ = [one.communicate(timeout=300) for one in started]
        codes = [one.returncode for one in started]
        return SimpleNamespace(out=out, err=err, codes=codes, folder=folder)

    return run


@pytest.fixture(scope="module")
def parsed():
    """The document a probe printed."""
    return lambda done: json.loads(done.out)
