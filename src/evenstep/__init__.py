"""evenstep: which rank, node or link your distributed training is waiting for, and what to do.

In a training script one line is enough, and none is needed under `evenstep run`:

    import evenstep
    evenstep.attach()

Afterwards, `evenstep.load(folder)` reads the trace and `evenstep diagnose folder` explains it; both
read other tools' profiles as well.
"""

from __future__ import annotations

from sys import modules as _modules
from time import thread_time_ns as _thread_time_ns
from typing import TYPE_CHECKING, Any

from evenstep.agent.arming import arm_when_asked as _arm_when_asked
from evenstep.agent.arming import call_without_collector as _undisturbed
from evenstep.attachment import arm as _arm
from evenstep.version import __version__

if TYPE_CHECKING:
    from evenstep.importers.opening import load
    from evenstep.trace.trace import Trace

__all__ = ["Trace", "__version__", "attach", "detach", "diagnose", "load", "log", "span", "step"]


def attach(**settings: Any) -> bool:
    """Observe this rank from now on, or from `init_process_group`; True if it is observed.

    Idempotent, before or after `init_process_group`; never raises. Settings are those of the
    configuration table (`evenstep env --json` lists them), dots written as underscores.
    """

    def attached() -> bool:
        from evenstep.attachment import agent

        return agent.attach(**settings)

    return bool(_undisturbed(attached))


def detach() -> None:
    """Stop observing this process and restore everything that was replaced. Never raises."""
    from evenstep.attachment import agent

    agent.detach()


def step() -> None:
    """End a training step here. Once called, optimizers no longer mark steps."""
    began_ns = _thread_time_ns()
    agent: Any = _modules.get("evenstep.attachment.agent")  # ten times as fast as `import`
    if agent is not None and (end := getattr(agent, "step", None)):  # else nothing is attached yet
        end(began_ns)


def span(name: str) -> Any:
    """Context manager: record a part of the step under this name."""
    from evenstep.attachment import session

    return session.span(name)


def log(**values: float) -> None:
    """Record numbers of this step, such as loss=… or grad_norm=…, beside its times. Optional."""
    from evenstep.attachment import session

    session.log(values)


def __getattr__(name: str) -> Any:
    """`load` and `Trace` need numpy, so they are imported when first used."""
    if name == "load":
        from evenstep.importers.opening import load

        return load
    if name == "Trace":
        from evenstep.trace.trace import Trace

        return Trace
    if name == "diagnose":
        import importlib

        return importlib.import_module("evenstep.diagnose")
    raise AttributeError(f"module 'evenstep' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Names of the module, with those that are imported when first used."""
    return sorted({*globals(), *__all__})


_arm_when_asked(_arm)
