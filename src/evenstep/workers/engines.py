"""Who carries out independent pieces of work: processes of this machine, or a Ray cluster.

A piece and its result are values that can be pickled; what is done with a piece is a function of a
module. Results come in the order in which they are finished. A worker that is killed loses nothing:
its piece is given to another, and only a piece that takes one worker after the other with it ends
the whole.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Generator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from typing import Any, NamedTuple, Protocol, TypeVar

from evenstep.errors import EvenstepError

Piece = TypeVar("Piece")
Result = TypeVar("Result")

MOST_LIVES = 4  # workers that one piece may take with it


class Engine(Protocol):
    """Something that carries pieces out."""

    def carried(
        self, pieces: Sequence[Piece], work: Callable[[Piece], Result]
    ) -> Generator[Result, None, None]:
        """Results in the order in which they are finished; workers end with the iterator.

        Raises what `work` raises, and `EvenstepError` for a piece that kills its workers.
        """


class TaskResult(NamedTuple):
    """What became of a piece: its result, or the error it raised."""

    result: Any
    error: BaseException | None = None

    def opened(self) -> Any:
        """The result; raises the error."""
        if self.error is not None:
            raise self.error
        return self.result


def answered(work: Callable[[Any], Any], piece: Any) -> TaskResult:
    """Carry a piece out where a worker is, so that the answer can be sent back."""
    try:
        return TaskResult(work(piece))
    except Exception as error:
        return TaskResult(None, sendable(error))


def sendable(error: Exception) -> Exception:
    """The error, or one of our own with its text where it would not survive being pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        kind = EvenstepError if isinstance(error, EvenstepError) else RuntimeError
        return kind(str(error))
    return error


def fatal(piece: object) -> EvenstepError:
    """A piece that no worker survives."""
    return EvenstepError(
        f"a worker was killed {MOST_LIVES} times over at the same piece of work "
        f"({_named(piece)}), perhaps by lack of memory; what was finished before is kept. "
        "Give it more memory, or fewer workers"
    )


def _named(piece: object) -> str:
    text = repr(piece)
    return text if len(text) <= 80 else text[:79] + "…"


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


class Local:
    """Processes of this machine; with one worker, this process itself."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or usable_cores()

    def carried(
        self, pieces: Sequence[Piece], work: Callable[[Piece], Result]
    ) -> Generator[Result, None, None]:
        """See `Engine`."""
        if self.workers <= 1 or len(pieces) <= 1:
            yield from map(work, pieces)
            return
        crew = Crew(pieces, work)
        try:
            crew.hire(min(self.workers, len(pieces)))
            while crew.workers:
                yield from crew.next_results()
        finally:
            crew.dismiss()


class Worker:
    """A process, our end of its pipe, and the number of the piece it is at."""

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

    def end(self) -> None:
        """Stop the process, whatever it is at."""
        self.pipe.close()
        self.process.terminate()
        self.process.join()


class Crew:
    """Local workers and what they have left to do."""

    def __init__(self, pieces: Sequence[Any], work: Callable[[Any], Any]) -> None:
        self.workers: list[Worker] = []
        self._pieces = pieces
        self._left = deque(range(len(pieces)))
        self._lives = [0] * len(pieces)  # workers that died of a piece
        self._work = work
        self._context = multiprocessing.get_context("spawn")  # a fork would copy numpy's threads

    def hire(self, number: int) -> None:
        """So many more workers, as far as there is work for them."""
        for _ in range(number):
            if self._left:
                worker = Worker(self._context, self._work)
                self.workers.append(worker)
                self._give(worker)

    def next_results(self) -> list[Any]:
        """Wait for somebody to finish; none where somebody has died instead."""
        ready = set(wait([worker.pipe for worker in self.workers]))
        results = []
        for worker in [one for one in self.workers if one.pipe in ready]:
            try:
                answer: TaskResult = worker.pipe.recv()
            except (EOFError, OSError):
                self._replace(worker)
                continue
            self._give(worker)
            results.append(answer.opened())
        return results

    def _give(self, worker: Worker) -> None:
        """The next piece; a worker for whom there is none goes."""
        if not self._left:
            self.workers.remove(worker)
            worker.end()
            return
        worker.number = self._left.popleft()
        try:
            worker.pipe.send(self._pieces[worker.number])
        except (BrokenPipeError, ConnectionResetError):
            return  # it has died: its pipe ends, and `next_results` sees to it

    def _replace(self, dead: Worker) -> None:
        self._lives[dead.number] += 1
        if self._lives[dead.number] >= MOST_LIVES:
            raise fatal(self._pieces[dead.number])
        self._left.appendleft(dead.number)
        self.workers.remove(dead)
        dead.end()
        self.hire(1)

    def dismiss(self) -> None:
        """End all workers; what they were at is lost."""
        for worker in self.workers:
            worker.end()
        self.workers.clear()


def _serve(pipe: Connection, work: Callable[[Any], Any]) -> None:
    """A worker's life: pieces in, answers out, until the pipe ends."""
    while True:
        try:
            piece = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(answered(work, piece))
