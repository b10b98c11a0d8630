"""Engines for independent pieces of work: processes of this machine, or a Ray cluster.

A piece and its result can be pickled; the work is a function of a module. Results come in the order
in which they finish. The piece of a worker that is killed goes to another worker; a piece that
kills `MOST_KILLS` workers raises an error.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from typing import Any, NamedTuple, Protocol, TypeVar

from evenstep.errors import EvenstepError, MissingExtra, UsageError
from evenstep.version import __version__

Piece = TypeVar("Piece")
Result = TypeVar("Result")

MOST_KILLS = 4  # workers killed at one piece


class Engine(Protocol):
    """Carries out pieces of work."""

    def carried(
        self, pieces: Sequence[Piece], work: Callable[[Piece], Result]
    ) -> Generator[Result, None, None]:
        """Yield results as they finish; closing the iterator ends the workers. Raises errors of
        `work`, and `EvenstepError` for a piece that kills its workers."""


class TaskResult(NamedTuple):
    """The result of a piece, or the error it raised."""

    result: Any
    error: BaseException | None = None

    def unwrap(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


def run_piece(work: Callable[[Any], Any], piece: Any) -> TaskResult:
    """Carry out a piece in a worker; the answer can be pickled."""
    try:
        return TaskResult(work(piece))
    except Exception as error:
        return TaskResult(None, picklable(error))


def picklable(error: Exception) -> Exception:
    """The error, or one with its text where it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        kind = EvenstepError if isinstance(error, EvenstepError) else RuntimeError
        return kind(str(error))
    return error


def fatal(piece: object) -> EvenstepError:
    """The error for a piece that kills its workers."""
    return EvenstepError(
        f"a worker was killed {MOST_KILLS} times over at the same piece of work "
        f"({_name_of(piece)}), perhaps by lack of memory; what was finished before is kept. "
        "Give it more memory, or fewer workers"
    )


def _name_of(piece: object) -> str:
    text = repr(piece)
    return text if len(text) <= 80 else text[:79] + "…"


def usable_cores() -> int:
    return len(os.sched_getaffinity(0))


class Local:
    """Processes of this machine; with one worker, this process."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or usable_cores()

    def carried(
        self, pieces: Sequence[Piece], work: Callable[[Piece], Result]
    ) -> Generator[Result, None, None]:
        if self.workers <= 1 or len(pieces) <= 1:
            yield from map(work, pieces)
            return
        context = multiprocessing.get_context("spawn")  # a fork would copy numpy's threads
        left, kills = deque(range(len(pieces))), Counter[int]()  # workers that died of a piece
        pool: list[Worker] = []
        try:
            while left or pool:
                while left and len(pool) < self.workers:
                    pool.append(Worker(context, work))
                    pool[-1].take(left.popleft(), pieces)
                ready, results = set(wait([worker.pipe for worker in pool])), []
                for worker in [one for one in pool if one.pipe in ready]:
                    answer = worker.answer()
                    if answer is not None:
                        results.append(answer.unwrap())
                    else:
                        kills[worker.number] += 1
                        if kills[worker.number] >= MOST_KILLS:
                            raise fatal(pieces[worker.number])
                        left.appendleft(worker.number)
                    if answer is None or not left:
                        pool.remove(worker)
                        worker.end()
                    else:
                        worker.take(left.popleft(), pieces)
                yield from results
        finally:
            for worker in pool:
                worker.end()


class Worker:
    """A process, this end of its pipe, and the number of its piece."""

    def __init__(self, context: SpawnContext, work: Callable[[Any], Any]) -> None:
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, work), daemon=True)
        # Ctrl-C reaches every process of the terminal; the first one decides what happens.
        resource_tracker.ensure_running()  # whose start would let the signal through again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self.process.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()  # so that its end is the end of the pipe
        self.number = -1

    def take(self, number: int, pieces: Sequence[Any]) -> None:
        """Send the worker a piece; one that has died gives no answer."""
        self.number = number
        with suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send(pieces[number])

    def answer(self) -> TaskResult | None:
        """Receive the result of the piece; None where the worker has died."""
        try:
            found: TaskResult = self.pipe.recv()
        except (EOFError, OSError):
            return None
        return found

    def end(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join()


def _serve(pipe: Connection, work: Callable[[Any], Any]) -> None:
    """Main loop of a worker: receive pieces and send answers until the pipe ends."""
    while True:
        try:
            piece = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(run_piece(work, piece))


# -- Ray -------------------------------------------------------------------------------------------

AHEAD = 2  # pieces handed out for each core, so that none waits for the next one


class RayEngine:
    """Workers of a Ray cluster, one started on this machine or that at an address: one for each of
    its cores or at most `workers`.

    Ray retries a piece whose worker or node has died. Each piece checks that its worker has this
    version of evenstep, since another may give different results.
    """

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        self.address = address
        self.workers = workers

    def carried(
        self, pieces: Sequence[Piece], work: Callable[[Piece], Result]
    ) -> Generator[Result, None, None]:
        """See `Engine`. A cluster that was running before goes on running."""
        if not pieces:
            return
        try:
            import ray
        except ModuleNotFoundError as error:
            raise MissingExtra("ray", extra="ray", purpose="--engine ray") from error
        joined = bool(ray.is_initialized())
        if not joined:
            self._join(ray)
        task = ray.remote(num_cpus=1, max_retries=MOST_KILLS - 1)(_check_and_work)
        left, flying, most = deque(pieces), dict[Any, Piece](), self._most(ray)
        try:
            while left or flying:
                while left and len(flying) < most:
                    piece = left.popleft()
                    flying[task.remote(__version__, work, piece)] = piece
                (done,), _ = ray.wait(list(flying), num_returns=1)
                yield _result(ray, done, flying.pop(done))
        finally:
            if joined:
                for reference in flying:
                    ray.cancel(reference)
            else:
                ray.shutdown()  # which ends what we have begun on a cluster at an address

    def _join(self, ray: Any) -> None:
        quiet = {"log_to_driver": False, "logging_level": "error"}
        try:
            if self.address is None:
                ray.init("local", num_cpus=self.workers, include_dashboard=False, **quiet)
            else:
                ray.init(self.address, **quiet)
        except Exception as error:  # of many kinds, bare ones too
            place = f"at {self.address}" if self.address else "on this machine"
            reason = (str(error) or type(error).__name__).partition("\n")[0]
            raise UsageError(
                f"there is no Ray cluster {place}: {reason}; start one with `ray start --head`, or "
                "leave --address out for one of our own"
            ) from error

    def _most(self, ray: Any) -> int:
        if self.workers is not None and self.address is not None:
            return self.workers
        return AHEAD * max(int(ray.cluster_resources().get("CPU", 1)), 1)


def _result(ray: Any, done: Any, piece: Any) -> Any:
    try:
        answer: TaskResult = ray.get(done)
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError) as error:
        raise fatal(piece) from error
    except ray.exceptions.RayError as error:
        raise EvenstepError(_unable(str(error))) from error
    return answer.unwrap()


def _check_and_work(version: str, work: Callable[[Any], Any], piece: Any) -> TaskResult:
    """Carry out a piece in a worker, after the check of versions."""
    if version != __version__:
        return TaskResult(None, UsageError(
            f"a worker of the Ray cluster has evenstep {__version__}, this machine {version}: "
            "install the same version on all of its nodes"
        ))  # fmt: skip
    return run_piece(work, piece)


def _unable(text: str) -> str:
    if "No module named 'evenstep" in text:
        return (
            "a worker of the Ray cluster cannot import evenstep: install it on all of its nodes "
            f'with: pip install "evenstep[ray]=={__version__}"'
        )
    last = text.strip().splitlines()[-1] if text.strip() else "no reason given"
    return f"the Ray cluster cannot carry out a piece of work: {last}"
