"""Jobs of torch, forked from one process that has imported it: importing it takes a core seconds.

`start("tests.agent.solo_job", folder)` is `python -m tests.agent.solo_job folder`, with an
environment, a folder and streams of its own. What is not torch, evenstep too, the job imports by
itself.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path

import evenstep
from tests.environment import plain

ROOT = Path(__file__).parents[1]
SOURCE = Path(evenstep.__file__).parents[1]
POLL_S = 0.01


def environ(**more: str) -> dict[str, str]:
    """A plain environment in which our package and these tests are importable."""
    path = os.pathsep.join([str(SOURCE), str(ROOT)])
    return plain(PYTHONPATH=path, OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1") | more


class Fork:
    """A process, as `subprocess.Popen` has it."""

    def __init__(self, server: Server, pid: int, folder: Path) -> None:
        self._server, self.pid, self._folder = server, pid, folder
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code once it has ended."""
        if self.returncode is None:
            self.returncode = self._server.ask({"poll": self.pid})
        return self.returncode

    def communicate(self, timeout: float = 300.0) -> tuple[str, str]:
        """What it wrote to standard output and error, when it has ended."""
        due = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > due:
                raise TimeoutError(f"not finished after {timeout:.0f} s")
            time.sleep(POLL_S)
        return self._said("out"), self._said("err")

    def _said(self, name: str) -> str:
        return (self._folder / name).read_text()

    def send_signal(self, number: int) -> None:
        """Nothing is sent to one that has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """At once."""
        self.send_signal(signal.SIGKILL)


class Server:
    """The process that has imported torch, from the side of the tests."""

    def __init__(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="evenstep-forks-")
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forks"], cwd=ROOT, env=environ(), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        atexit.register(self._end)

    def ask(self, order: dict[str, object]) -> int | None:
        """Its answer to an order."""
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, module: str, arguments: list[str], cwd: Path, env: dict[str, str]) -> Fork:
        """A fork that runs a module."""
        self._count += 1
        folder = Path(self._scratch.name) / str(self._count)
        folder.mkdir()
        order = {"module": module, "arguments": arguments, "cwd": str(cwd), "env": env}
        return Fork(self, self.ask(order | {"streams": str(folder)}), folder)

    def _end(self) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._scratch.cleanup()


@cache
def _server() -> Server:
    return Server()


def start(module: str, *arguments: object, cwd: Path = ROOT, **more: str) -> Fork:
    """`python -m module arguments` in the background."""
    return _server().start(module, list(map(str, arguments)), cwd, environ(**more))


def fork_ranks(main: Callable[..., None], ranks: int, *arguments: object) -> None:
    """Run `main(rank, …)` in so many forks of this process; the first that fails ends them all."""
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            _end_after(main, rank, *arguments)
        children.append(child)
    for _ in range(ranks):
        ended, status = os.wait()
        children.remove(ended)
        if status:
            for child in children:
                os.kill(child, signal.SIGKILL)
            sys.exit(f"process {ended} ended with {os.waitstatus_to_exitcode(status)}")


def _end_after(main: Callable[..., None], *arguments: object) -> None:
    code = 1
    try:
        main(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve() -> dict[str, object] | None:
    """Answers orders; in a fork, returns its own."""
    import torch.distributed
    import torch.nn.parallel  # noqa: F401

    for line in sys.stdin:
        order: dict[str, object] = json.loads(line)
        if "poll" in order:
            pid, status = os.waitpid(order["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                return order
        print(json.dumps(answer), flush=True)
    return None


def _become(order: dict) -> None:
    """The process that was asked for, up to its end."""
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    streams = Path(order["streams"])
    for number, name in enumerate((os.devnull, streams / "out", streams / "err")):
        file = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.argv = [order["module"], *order["arguments"]]
    runpy.run_module(order["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__" and (order := _serve()):
    _become(order)
