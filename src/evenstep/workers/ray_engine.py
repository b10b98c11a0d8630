"""Pieces of work on a Ray cluster: one started on this machine, or one at an address.

Ray retries a piece whose worker or node has died. Each piece checks that its worker has this
version of evenstep, since another may give different results.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

from evenstep.errors import EvenstepError, MissingExtra, UsageError
from evenstep.version import __version__
from evenstep.workers.engines import MOST_KILLS, Piece, Result, TaskResult, fatal, run_piece

AHEAD = 2  # pieces handed out for each core, so that none waits for the next one


class RayEngine:
    """Workers of a Ray cluster, one for each of its cores or at most `workers`."""

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        self.address = address
        self.workers = workers

    def carried(
        self, pieces: Sequence[Piece], work: Callable[[Piece], Result]
    ) -> Generator[Result, None, None]:
        """See `engines.Engine`. A cluster that was running before goes on running."""
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
