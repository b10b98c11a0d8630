"""Wait for the import of torch.distributed, mpi4py or JAX, at no cost until then.

`arm()` puts a finder in front of the import system. When its target has been imported, the finder
removes itself and calls its action. The action opens nothing before the ranks are known, that is
before `init_process_group`, `MPI_Init` or `jax.distributed.initialize`.

Most processes that inherit the environment (a launcher, a resource tracker, a loader's worker, any
subprocess) never import a target. So this module imports only what the interpreter has already
loaded, has no dependencies (the bootstrap loads it by its path) and never raises.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` itself takes 5 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TARGET = "torch.distributed"
#: Other modules that make a process a rank, with the names of their stacks.
OTHER_TARGETS = {"mpi4py.MPI": "mpi", "jax.distributed": "jax"}
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120


def arm_when_asked(attach: Callable[[str], object]) -> None:
    """Arm if EVENSTEP is 1, true, yes or on."""
    if os.environ.get("EVENSTEP", "").strip().lower() in ("1", "true", "yes", "on"):
        arm_all(attach)


def arm_all(attach: Callable[[str], object]) -> None:
    """Call `attach` with the name of each stack when it has been imported."""
    arm(lambda: attach("torch"))
    arm_others(attach)


def arm_others(attach: Callable[[str], object]) -> None:
    """The same for the stacks other than torch that have not been imported yet."""
    for target, stack in OTHER_TARGETS.items():
        if target not in sys.modules:
            arm(_caller(attach, stack), target=target)


def disarm_all() -> None:
    """Stop waiting for all targets."""
    for target in ("torch", TARGET, *OTHER_TARGETS):
        disarm(target)


def arm(action: Callable[[], object], *, target: str = TARGET) -> None:
    """Call `action` once `target` is imported, or now if it has been.

    A second call for the same target has no effect while the first still waits.
    """
    module = sys.modules.get(target)
    if module is not None and not initializing(module):
        _quietly(action)
    elif not any(getattr(finder, "awaited", None) == target for finder in sys.meta_path):
        sys.meta_path.insert(0, ArmingFinder(target, action))


def disarm(target: str) -> None:
    """Stop waiting for a module that has not been imported yet."""
    _withdraw(lambda finder: getattr(finder, "awaited", None) == target)


def _caller(attach: Callable[[str], object], stack: str) -> Callable[[], object]:
    return lambda: attach(stack)


class ArmingFinder:
    """A finder that lets the other finders find its target, and wraps the loader."""

    def __init__(self, target: str, action: Callable[[], object]) -> None:
        self.awaited = target
        self._action = action
        self._asking = False  # a finder that we ask may ask all finders in turn

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec of the awaited module with its loader wrapped; None for any other module."""
        if name != self.awaited or self._asking:
            return None
        self._asking = True
        try:
            spec = self._find(name, path, target)
        finally:
            self._asking = False
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = ArmingLoader(spec.loader, self._fire)
        return spec

    def _find(self, name: str, path: Any, target: Any) -> Any:
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                return spec
        return None

    def _fire(self) -> None:
        if self not in sys.meta_path:
            return
        try:
            _quietly(self._action)  # still in place: `import evenstep` in there must not arm again
        finally:
            _withdraw(lambda finder: finder is self)


class ArmingLoader:
    """A loader that calls `fire` when its module has been executed; else the one it wraps."""

    def __init__(self, loader: Any, fire: Callable[[], None]) -> None:
        self._loader = loader
        self._fire = fire

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: Any) -> None:
        """Execute the module with its own loader in place, then fire."""
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._fire()


def _withdraw(ours: Callable[[Any], bool]) -> None:
    """Remove finders, by a new list: another thread may be iterating over the old one."""
    kept = [finder for finder in sys.meta_path if not ours(finder)]
    if len(kept) < len(sys.meta_path):
        sys.meta_path = kept


def initializing(module: Any) -> bool:
    """Whether a module is still being executed."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def load_package() -> None:
    """Make `evenstep` importable from where this file lies, without touching `sys.path`."""
    if "evenstep" in sys.modules:
        return
    import importlib.util

    spec = importlib.util.spec_from_file_location(
        "evenstep",
        os.path.join(_PACKAGE, "__init__.py"),  # noqa: PTH118
        submodule_search_locations=[_PACKAGE],
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package in {_PACKAGE}")
    package = importlib.util.module_from_spec(spec)
    sys.modules["evenstep"] = package
    try:
        spec.loader.exec_module(package)
    except BaseException:
        del sys.modules["evenstep"]
        raise


def call_without_collector(action: Callable[[], Any]) -> Any:
    """Run the action with the collector off: while our modules are imported it would look through
    torch's objects again and again, and nothing of ours is garbage."""
    import gc

    collects = gc.isenabled()
    gc.disable()
    try:
        return action()
    finally:
        if collects:
            gc.enable()


def _quietly(action: Callable[[], object]) -> None:
    """Run the action undisturbed; a failure is one line on standard error."""
    try:
        call_without_collector(action)
    except Exception as error:
        print(f"evenstep: not attached: {type(error).__name__}: {error}", file=sys.stderr)
