"""The agent of this process: attached, detached, armed, and disarmed in a forked child.

`attach` never raises: an error is one line of log, and training goes on. In a forked child
everything is disarmed before anything else runs.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from evenstep.agent import arming
from evenstep.agent.rank import Agent
from evenstep.agent.recording.phases import Compiled
from evenstep.agent.settings import config as configuration
from evenstep.agent.settings.config import Config
from evenstep.agent.settings.selection import whereabouts
from evenstep.agent.stacks import RankInWorld, Stack
from evenstep.attachment.attempts import renumber
from evenstep.errors import EvenstepError
from evenstep.trace.spool.folder import (
    RunFolder,
    default_path,
    loaded_versions,
    run_facts,
    started_ticks,
    starter_pid,
)
from evenstep.trace.spool.identity import Identity, from_environment
from evenstep.trace.spool.spool import Spool
from evenstep.version import __version__

log = logging.getLogger("evenstep")

_agent: Agent | None = None
_stacks: dict[str, Stack] = {}
_arguments: dict[str, object] = {}
_passive = False
_refusal = ""  # why the last attempt to attach failed
_at_detach: list[Callable[[], None]] = []
_opening = threading.Lock()  # never waited for: see `_open_once`


def current() -> Agent | None:
    """The agent of this process, if one is attached."""
    return _agent


def end_step(began_ns: int) -> None:
    """End a step here, and from now on only here; one that an optimizer has just ended, once.
    `began_ns`: this thread's time when the script called."""
    attached = _agent
    if attached is not None and not attached.failure:
        try:
            if not attached.recorder.taken_over():
                attached.end_step(time.monotonic_ns(), began_ns)
        except Exception as error:
            attached.give_up(error)


#: What `evenstep.step()` calls: this, or compiled code in its place.
step: Callable[[int], None] = end_step


def attach(**settings: object) -> bool:
    """Observe this rank from here on; True if it is observed, now or once the ranks are known.

    Idempotent, before or after `init_process_group` or its equivalent, and never raises: an error
    is one line of log, and training goes on. `settings` are those of the configuration table.
    """
    global _agent
    if _agent is not None:
        return True
    try:
        config = configuration.load(_arguments | settings)
        _arguments.update(settings)  # kept until the process group is made
        _set_up_log(config)
        if not config.enabled:
            return False
        _add_imported()
        arming.arm_others(arm)  # for stacks that are imported later
        if not _stacks:
            arming.arm_all(arm)
            if not _torch_found():
                return True
        if not _any_usable():
            return False
        _arm_all()
        identity = from_environment(os.environ)
        place = _place()
        if place is None and identity.launcher == "single":
            return True  # the rank is known only when the process group is made
        return _open_once(config, identity, place)
    except Exception as error:
        _log_not_attached(error)
        return False


def detach() -> None:
    """Stop observing and restore everything that was replaced."""
    global _agent, step
    agent, _agent, step = _agent, None, end_step
    try:
        arming.disarm_all()
        while _at_detach:
            _at_detach.pop()()
        for stack in _stacks.values():
            stack.disarm()
        atexit.unregister(_finish)
        if agent is not None:
            agent.stop("detached")
    except Exception as error:
        log.warning("evenstep: detaching: %s", error)


def at_detach(undo: Callable[[], None]) -> None:
    """Call `undo` at the next `detach`, once; it must not raise."""
    if undo not in _at_detach:
        _at_detach.append(undo)


def arm(stack: str) -> None:
    """Attach once a stack that was imported knows the ranks. Raises what the stack raises."""
    _add_imported(just=stack)
    if stack not in _stacks:
        return
    _arm_all()
    place = _stacks[stack].place()
    if place is not None and place.world > 1:
        _ready()


def _arm_all() -> None:
    for stack in _stacks.values():
        stack.arm(_ready)


def _add_imported(just: str = "") -> None:
    """Add the stacks that this process has imported, also `just`, although that initializes."""
    for name, module, make in _MAKERS:
        if name in _stacks or module not in sys.modules:
            continue
        if name == just or not arming.initializing(sys.modules[module]):
            _stacks[name] = make()


def _torch_stack() -> Stack:
    """Torch's stack; imports torch if necessary. Raises ImportError where there is none."""
    import torch

    from evenstep.hooks.torch.torch_stack import TorchStack

    return TorchStack(torch)


def _mpi_stack() -> Stack:
    from evenstep.hooks.mpi.mpi import MpiStack

    return MpiStack(sys.modules["mpi4py.MPI"])


def _jax_stack() -> Stack:
    from evenstep.hooks.jax.jax import JaxStack

    return JaxStack(sys.modules["jax"])


#: In the order in which they are asked for the rank.
_MAKERS: tuple[tuple[str, str, Callable[[], Stack]], ...] = (
    ("torch", "torch.distributed", _torch_stack),
    ("mpi", "mpi4py.MPI", _mpi_stack),
    ("jax", "jax.distributed", _jax_stack),
)


def _torch_found() -> bool:
    """Import torch, the likeliest stack, if none is imported yet; False where there is none."""
    try:
        _stacks["torch"] = _torch_stack()
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        log.info("evenstep: waiting for mpi4py or jax: there is no torch")
        return False
    return True


def _any_usable() -> bool:
    """Whether a stack can have ranks at all; a torch without torch.distributed cannot."""
    if all(getattr(stack, "available", True) is False for stack in _stacks.values()):
        log.warning("evenstep: not attached: this torch has no torch.distributed")
        return False
    return True


def _place() -> RankInWorld | None:
    places = (stack.place() for stack in _stacks.values())
    return next((place for place in places if place is not None), None)


def _open_once(config: Config, identity: Identity, place: RankInWorld | None) -> bool:
    """Open, unless another thread does so: that may be in an import that waits for this thread."""
    opening = _opening
    if not opening.acquire(blocking=False):
        return True
    try:
        return _agent is not None or _open(config, identity, place)
    finally:
        opening.release()


def _open(config: Config, identity: Identity, place: RankInWorld | None) -> bool:
    """Claim the spool and start. Raises `EvenstepError` in one sentence where it cannot."""
    global _agent, _passive, step
    if place is not None:
        identity = identity.at(rank=place.rank, world=place.world)
    part = config.part("record")
    if not part.holds(whereabouts(identity, os.environ)):
        log.info("evenstep: rank %d is left alone: only %s are observed", identity.rank, part)
        return False
    starter = starter_pid(identity.launcher, identity.world)
    folder = RunFolder(config.out or default_path(Path.cwd(), starter))
    identity = renumber(identity, folder)
    descriptor = folder.claim(identity.attempt, identity.rank)
    if descriptor is None:
        if not _passive:
            _passive = True
            log.warning(
                "evenstep: %s exists, so this process stays passive; give the run another folder",
                folder.spool_path(identity.attempt, identity.rank),
            )
        return False
    spool = _make_spool(config, identity, folder, descriptor)
    try:
        compiled = _compiled_recorder(spool, config)
        agent = Agent(config, identity, folder, spool, list(_stacks.values()), compiled)
    except BaseException:
        with suppress(BufferError):  # what was made of it may still hold a view
            spool.shut()
        raise
    try:
        agent.start()
        _agent = agent
        if (marks := agent.recorder.marks) is not None:
            step = marks(agent.recorder, end_step)
        if identity.rank == 0:
            _write_run(folder, identity)
        _connect(agent)
        if "torch" not in sys.modules:  # its optimizers and phases are observed in any case
            arming.arm(_ready, target="torch")
        _on_exit(agent)
    except BaseException:
        _agent = None
        agent.stop("could not start")
        raise
    return True


def _compiled_recorder(spool: Spool, config: Config) -> Compiled | None:
    """The compiled recorder for a new spool, where a stack has one."""
    makes = (getattr(stack, "compiled", None) for stack in _stacks.values())
    found = (make(spool, allowed=config.compiled) for make in makes if make)
    return next((one for one in found if one is not None), None)


def _connect(agent: Agent) -> None:
    """Begin to share, where a stack has a store and knows its ranks."""
    for stack in _stacks.values():
        store = getattr(stack, "store", None)
        if store is not None and stack.place() is not None:
            agent.connect(store, getattr(stack, "meetings", 1))


def _make_spool(config: Config, identity: Identity, folder: RunFolder, descriptor: int) -> Spool:
    header = identity.header() | {
        "started_ticks": started_ticks(os.getpid()),
        "anchor_monotonic_ns": time.monotonic_ns(),
        "anchor_realtime_ns": time.time_ns(),
        "versions": loaded_versions(__version__),
    }
    return Spool.create(
        folder.spool_path(identity.attempt, identity.rank), header, ring_bytes=config.ring_bytes,
        summary_bytes=config.summary_bytes, mode=config.spool, fd=descriptor,
    )  # fmt: skip


def _write_run(folder: RunFolder, identity: Identity) -> None:
    """Write `run.json` on rank 0, or complete that of the launcher."""
    facts = run_facts(
        run_id=identity.run_id, command=sys.orig_argv, environ=os.environ,
        versions=loaded_versions(__version__), world=identity.world, nodes=identity.nodes,
        python=sys.executable,
    )  # fmt: skip
    try:
        if not folder.write(facts):
            folder.complete(facts)
    except (EvenstepError, OSError) as error:
        log.warning("evenstep: %s", error)


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


def _ready() -> None:
    """Attach, or add the stacks that know the ranks now."""
    _add_imported()
    if _agent is None:
        attach()
        return
    for stack in _stacks.values():
        _agent.add_stack(stack)
        place = stack.place()
        if place is not None and getattr(stack, "meetings", 0) > 1:
            _agent.note_place(place)
    _connect(_agent)


def _set_up_log(config: Config) -> None:
    """Apply `log_level`; without a handler Python shows nothing below a warning."""
    log.setLevel(config.log_level.upper())
    if log.level < logging.WARNING and not log.hasHandlers():
        log.addHandler(logging.StreamHandler())
    for warning in config.warnings:
        log.warning("evenstep: %s", warning)


def _log_not_attached(error: Exception) -> None:
    """Say why, once: the same is tried again for every process group."""
    global _refusal
    if str(error) != _refusal:
        log.error("evenstep: not attached: %s", error)
    _refusal = str(error)
    log.debug("evenstep: the failure was", exc_info=error)


def _in_child() -> None:
    """Disarm first thing in a forked child (see `os.register_at_fork`)."""
    global _agent, _opening, _passive
    _opening = threading.Lock()  # a thread of the parent may have held it
    _passive = True
    agent, _agent = _agent, None
    if agent is not None:
        agent.disarm()


os.register_at_fork(after_in_child=_in_child)
