"""The one agent of this process: attached, detached, armed, and out of the way in a fork.

`attach` never raises: what goes wrong is one line of log, and training goes on. In a forked child
everything is disarmed before anything else runs.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evenstep.agent import config as configuration
from evenstep.agent.config import Config
from evenstep.agent.rank import Agent, pacer_settings
from evenstep.errors import EvenstepError
from evenstep.trace.facts import loaded_versions, run_facts
from evenstep.trace.folder import RunFolder, default_path, starter_pid
from evenstep.trace.identity import Identity, from_environment
from evenstep.trace.spool import Spool

log = logging.getLogger("evenstep")

_agent: Agent | None = None
_armed = False
_arguments: dict[str, object] = {}
_passive = False


def current() -> Agent | None:
    """The agent of this process, if one is attached."""
    return _agent


def attach(**settings: object) -> bool:
    """Observe this rank from here on; True if it is observed, now or from `init_process_group`.

    Idempotent, before or after `init_process_group`, and never raises: what goes wrong is one line
    of log, and training goes on. `settings` are those of the configuration table.
    """
    global _agent
    if _agent is not None:
        return True
    try:
        config = configuration.load(_arguments | settings)
        _arguments.update(settings)  # valid: those of an earlier call stay for the process group
        _set_up_log(config)
        if not config.enabled:
            return False
        import torch

        if not torch.distributed.is_available():
            log.warning("evenstep: not attached: this torch has no torch.distributed")
            return False
        arm()
        identity = from_environment(os.environ)
        if not torch.distributed.is_initialized() and identity.launcher == "single":
            return True  # the rank is known only when the process group is made
        return _open(config, identity, torch)
    except Exception as error:
        _say_not_attached(error)
        return False


def detach() -> None:
    """Stop observing and restore everything that was replaced."""
    global _agent, _armed
    agent, _agent = _agent, None
    try:
        _disarm_process_group()
        _armed = False
        atexit.unregister(_finish)
        if agent is not None:
            agent.stop("detached")
    except Exception as error:
        log.warning("evenstep: detaching: %s", error)


def arm() -> None:
    """Have the agent attach when the process group is made. Raises nothing torch does not."""
    global _armed
    if _armed:
        return
    from torch.distributed import distributed_c10d

    _armed = True
    _wrap(distributed_c10d, "init_process_group", _after_init)
    _wrap(distributed_c10d, "destroy_process_group", _after_destroy)


def _open(config: Config, identity: Identity, torch: Any) -> bool:
    """Claim the spool and start. Raises `EvenstepError` in one sentence where it cannot."""
    global _agent, _passive
    distributed = torch.distributed
    if distributed.is_initialized():
        identity = identity.at(rank=distributed.get_rank(), world=distributed.get_world_size())
    pacer_settings(config, identity)  # refused before anything is created
    folder = RunFolder(config.out or default_path(Path.cwd(), starter_pid(identity.launcher)))
    descriptor = folder.claim(identity.attempt, identity.rank)
    if descriptor is None:
        if not _passive:
            _passive = True
            log.warning(
                "evenstep: %s exists, so this process stays passive; give the run another folder",
                folder.spool_path(identity.attempt, identity.rank),
            )
        return False
    agent = Agent(
        config, identity, folder, _make_spool(config, identity, folder, descriptor), torch
    )
    try:
        agent.start()
    except BaseException:
        agent.stop("could not start")
        raise
    _agent = agent
    if identity.rank == 0:
        _write_run(folder, identity)
    if distributed.is_initialized():
        agent.connect()
    _on_exit(agent)
    return True


def _make_spool(config: Config, identity: Identity, folder: RunFolder, descriptor: int) -> Spool:
    header = identity.header() | {
        "anchor_monotonic_ns": time.monotonic_ns(),
        "anchor_realtime_ns": time.time_ns(),
        "versions": loaded_versions(_version()),
    }
    return Spool.create(
        folder.spool_path(identity.attempt, identity.rank),
        header,
        ring_bytes=config.ring_bytes,
        summary_bytes=config.summary_bytes,
        mode=config.spool,
        fd=descriptor,
    )


def _write_run(folder: RunFolder, identity: Identity) -> None:
    """Rank 0 writes `run.json` where no launcher did, and completes what the launcher wrote."""
    facts = run_facts(
        run_id=identity.run_id,
        command=sys.orig_argv,
        environ=os.environ,
        versions=loaded_versions(_version()),
        world=identity.world,
        nodes=identity.nodes,
        python=sys.executable,
    )
    try:
        if not folder.write(facts):
            folder.complete(facts)
    except (EvenstepError, OSError) as error:
        log.warning("evenstep: %s", error)


def _version() -> str:
    from evenstep import __version__

    return __version__


def _on_exit(agent: Agent) -> None:
    """End the trace properly at interpreter exit, also in a child of `multiprocessing`."""
    atexit.register(_finish, agent)
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _finish, args=(agent,), exitpriority=0)


def _finish(agent: Agent) -> None:
    try:
        alone = not os.environ.get("EVENSTEP_RUN_ID")
        ended = agent.stopped
        agent.stop("exit")
        if alone and not ended and agent.identity.rank == 0 and agent.config.verdict:
            path = agent.folder.path
            print(f"evenstep: who waited for whom: evenstep diagnose {path}", file=sys.stderr)
    except Exception as error:
        log.warning("evenstep: at exit: %s", error)


def _after_init() -> None:
    if _agent is None:
        attach()
    else:
        _agent.connect()


def _after_destroy() -> None:
    if _agent is not None:
        _agent.forget_groups()


_undo: list[Callable[[], None]] = []


def _wrap(module: Any, name: str, after: Callable[[], None]) -> None:
    """Call `after` whenever `module.name` has returned, whoever in torch holds a reference."""
    original = getattr(module, name)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        try:
            after()
        except Exception as error:
            log.warning("evenstep: after %s: %s", name, error)
        return result

    wrapper.__wrapped__ = original  # type: ignore[attr-defined]
    wrapper.__name__, wrapper.__doc__ = name, original.__doc__
    holders = [held for key, held in sys.modules.items() if key.startswith("torch.distributed")]
    for owner in holders:
        if getattr(owner, name, None) is original:
            setattr(owner, name, wrapper)
            _undo.append(_restorer(owner, name, wrapper, original))


def _restorer(owner: Any, name: str, wrapper: Any, original: Any) -> Callable[[], None]:
    def restore() -> None:
        if getattr(owner, name, None) is wrapper:
            setattr(owner, name, original)

    return restore


def _disarm_process_group() -> None:
    while _undo:
        _undo.pop()()


def _set_up_log(config: Config) -> None:
    """Follow `log_level`; below a warning Python shows nothing unless somebody handles it."""
    log.setLevel(config.log_level.upper())
    if log.level < logging.WARNING and not log.hasHandlers():
        log.addHandler(logging.StreamHandler())
    for warning in config.warnings:
        log.warning("evenstep: %s", warning)


def _say_not_attached(error: Exception) -> None:
    log.error("evenstep: not attached: %s", error)
    log.debug("evenstep: the failure was", exc_info=error)


def _in_child() -> None:
    """First thing in a forked child (see `os.register_at_fork`)."""
    global _agent, _passive
    if _agent is not None:
        _agent.disarm()
        _agent = None
    _passive = True


os.register_at_fork(after_in_child=_in_child)
