"""Ray Train: `TorchTrainer(observed(train_loop), …)`, or `attach()` first thing in the loop.

Ray runs the loop in a thread of an actor, which makes the process group in another thread and is
ended without Python's exit handlers. So the agent has to be attached in the loop itself, on the
thread of its steps, and detached at its end; `observed` does both. A worker group that Ray restarts
after a failure is a new attempt of the same run.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evenstep.agent.settings import config
from evenstep.agent.stacks import Tested
from evenstep.attachment import agent
from evenstep.errors import EvenstepError
from evenstep.frameworks.loop import Loop
from evenstep.trace.spool.folder import RUNS, RunFolder

TESTED = Tested("ray", "2.60", "2.60")


def observed(train_loop: Callable[..., Any], **settings: object) -> Callable[..., Any]:
    """Wrap a loop to be observed on every worker, with settings of `evenstep.attach`. Without `out`
    the folder is the experiment's if that is on a filesystem, else in the home folder."""

    @functools.wraps(train_loop)
    def observed_loop(*args: Any, **kwargs: Any) -> Any:
        attach(**settings)
        try:
            return train_loop(*args, **kwargs)
        finally:
            agent.detach()

    return observed_loop


def attach(**settings: object) -> bool:
    """Observe this worker until `evenstep.detach()`; True if it is observed. Never raises. Every
    worker has to call it, since all agree on a folder and the attempt."""
    try:
        import ray.train

        context = ray.train.get_context()
        place = _agree(context, settings.get("out"))
        os.environ["EVENSTEP_RUN_ID"] = str(context.get_experiment_name() or "ray")
        os.environ["EVENSTEP_ATTEMPT"] = str(place["attempt"])
        settings = {**settings, "out": place["out"]}
    except Exception as error:  # outside a worker, or an untested Ray
        agent.log.warning("evenstep: Ray Train does not give this worker's place: %s", error)
    return Loop(TESTED).attach(settings)


def _agree(context: Any, out: object) -> dict[str, Any]:
    """The run's folder and the attempt, found by rank 0 and sent to every worker."""
    from ray.train.collective import broadcast_from_rank_zero

    found: dict[str, Any] = {}
    if context.get_world_rank() == 0:
        try:
            given = config.load({"out": str(out)} if out else None).out
            folder = RunFolder(given or _beside_results(context))
            found = {"out": str(folder.path), "attempt": max(folder.attempts(), default=-1) + 1}
        except Exception as error:  # the other ranks wait for an answer
            found = {"error": f"{type(error).__name__}: {error}"}
    agreed: dict[str, Any] = broadcast_from_rank_zero(found)
    if "error" in agreed:
        raise EvenstepError(f"rank 0 found no folder for the run: {agreed['error']}")
    return agreed


def _beside_results(context: Any) -> Path:
    """Ray's folder of the experiment if that is on a filesystem, else one in the home folder."""
    storage = context.get_storage()
    if storage.storage_filesystem.type_name == "local":
        return Path(storage.experiment_fs_path) / "evenstep"
    return Path.home() / RUNS / str(context.get_experiment_name() or "ray")
