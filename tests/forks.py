"""Jobs of torch, forked from one process that has imported it: importing it takes a core seconds.

`start("tests.agent.solo_job", folder)` is `python -m tests.agent.solo_job folder`, with an
environment, a folder and streams of its own. What is not torch, evenstep too, the job imports by
itself. `python()` is an interpreter for tests that need a command: it is forked likewise.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
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
        asked = Path(self._scratch.name, "asked")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(asked))
            listener.listen()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forks", str(listener.fileno())], cwd=ROOT,
                env=environ(), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                pass_fds=[listener.fileno()],
            )  # fmt: skip
        self.python = Path(self._scratch.name, "python")
        client = f"{sys.executable} -I -S {Path(__file__).with_name('forked_python.py')}"
        self.python.write_text(f'#!/bin/sh\nexec {client} {asked} "$@"\n')
        self.python.chmod(0o755)
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


@functools.cache
def _server() -> Server:
    return Server()


def start(module: str, *arguments: object, cwd: Path = ROOT, **more: str) -> Fork:
    """`python -m module arguments` in the background."""
    return _server().start(module, list(map(str, arguments)), cwd, environ(**more))


def python() -> str:
    """What to start in place of `sys.executable`, to run a module, a script or a text."""
    return str(_server().python)


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
    """End as an interpreter does, but for the modules: to take those of torch apart takes long."""
    code = 0
    try:
        main(*arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        code = 1
        traceback.print_exc()
    with suppress(BaseException):
        threading._shutdown()
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _serve(listener: socket.socket) -> dict[str, object] | None:
    """Answers orders; in a fork, returns its own."""
    import torch._dynamo  # which DDP asks for
    import torch.distributed.run
    import torch.nn.parallel  # noqa: F401

    _keep_models()
    gc.freeze()
    handlers: list[int] = []
    while True:
        if listener in select.select([sys.stdin, listener], [], [])[0]:
            handlers = [one for one in handlers if not os.waitpid(one, os.WNOHANG)[0]]
            connection, _ = listener.accept()
            handlers.append(os.fork())
            if handlers[-1] == 0:
                return _handled(connection)
            connection.close()
            continue
        if not (line := sys.stdin.readline()):
            return None
        order: dict[str, object] = json.loads(line)
        if "poll" in order:
            pid, status = os.waitpid(order["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                return order
        print(json.dumps(answer), flush=True)


def _keep_models() -> None:
    """Free no DDP model. torch 2.13, whoever observes it, hangs in one of some seventy jobs that
    free theirs right after the last backward: a reducer frees its group, and so joins gloo's
    thread, with the interpreter's lock, for which that thread waits to free the backward's context.
    """
    from torch.nn.parallel import DistributedDataParallel

    made, kept = DistributedDataParallel.__init__, []

    @functools.wraps(made)
    def made_and_kept(self: object, *args: object, **kwargs: object) -> None:
        kept.append(self)
        made(self, *args, **kwargs)

    DistributedDataParallel.__init__ = made_and_kept


def _handled(connection: socket.socket) -> dict[str, object]:
    """The order of a connection, in a fork that carries it out; this one waits for that and says
    how it ended. It ends with whoever asked for it."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    said = connection.makefile("rw")
    order: dict[str, object] = json.loads(said.readline())
    job = os.fork()
    if job == 0:
        return order | {"streams": streams}
    for file in (0, 1, 2, *streams):
        os.close(file)
    print(job, file=said, flush=True)
    while not (ended := os.waitpid(job, os.WNOHANG))[0]:
        if select.select([connection], [], [], POLL_S)[0]:
            os.kill(job, signal.SIGKILL)
    with suppress(BrokenPipeError):
        print(os.waitstatus_to_exitcode(ended[1]), file=said, flush=True)
    os._exit(0)


def _become(order: dict) -> None:
    """The process that was asked for, up to its end."""
    os.environ.clear()
    os.environ.update(order["env"])
    tempfile.tempdir = None  # which that may name
    os.chdir(order["cwd"])
    streams = order["streams"]
    if isinstance(streams, str):
        names = (os.devnull, Path(streams, "out"), Path(streams, "err"))
        streams = [os.open(name, os.O_RDWR | os.O_CREAT, 0o600) for name in names]
    for number, file in enumerate(streams):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(one, "w", 1, closefd=False) for one in (1, 2))
    if "command" in order:
        _interpret(order["command"])
    else:
        sys.argv = [order["module"], *order["arguments"]]
        runpy.run_module(order["module"], run_name="__main__", alter_sys=True)


def _interpret(command: list[str]) -> None:
    """What an interpreter does with its arguments, from its start on."""
    for name in [one for one in sys.modules if one.partition(".")[0] in ("evenstep", "tests")]:
        del sys.modules[name]
    sys.executable = str(SERVED)
    asked = os.environ.get("PYTHONPATH", "")
    rest = [entry for entry in sys.path if entry != str(ROOT)]
    sys.path[:] = [*filter(None, asked.split(os.pathsep)), *rest]
    sys.modules.pop("sitecustomize", None)
    with suppress(ModuleNotFoundError):
        __import__("sitecustomize")
    while command[0] == "-u":
        command = command[1:]
    what, arguments = command[0], command[1:]
    if what == "-m":
        sys.path.insert(0, str(Path.cwd()))
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif what == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *arguments[1:]]
        exec(compile(arguments[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path.insert(0, str(Path(what).resolve().parent))
        sys.argv = command
        runpy.run_path(what, run_name="__main__")


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as served:
        SERVED = Path(served.getsockname()).with_name("python")
        order = _serve(served)
    if order:
        _end_after(_become, order)
