"""Runs when an interpreter starts under `evenstep run`: arms evenstep and steps aside.

Its folder stands first on PYTHONPATH and holds nothing else, so nothing of ours becomes importable
through it. A distribution's or a user's own `sitecustomize`, which this one hides, runs as if it
were not there: first, under its own name, its errors its own.
"""

import sys

_OURS = sys.modules[__name__]


def _chain() -> None:
    """Import the next `sitecustomize` in this one's place."""
    folder = __file__.rpartition("/")[0]
    path = sys.path[:]
    del sys.modules[__name__]
    sys.path[:] = hidden = [entry for entry in path if entry.rstrip("/") != folder]
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules[__name__] = _OURS
    finally:
        if sys.path == hidden:
            sys.path[:] = path
        else:  # it has changed the path itself: keep its changes
            sys.path.insert(0, folder)


def _arm() -> None:
    """Load `arming` by its path; whatever goes wrong, the interpreter starts as usual."""
    try:
        path = __file__.rpartition("/bootstrap/")[0] + "/arming.py"
        arming = type(sys)("evenstep_arming")
        arming.__file__ = path
        # Our own loader is a SourceFileLoader; importing the class by its name would take .4 ms.
        loader: type = type(_OURS.__loader__)
        loader("evenstep_arming", path).exec_module(arming)

        def attach(stack: str) -> None:
            """Hand over to the agent of this very package, whatever else `evenstep` could name."""
            arming.load_package()
            from evenstep.attachment import agent

            agent.arm(stack)

        arming.arm_when_asked(attach)
    except Exception as error:
        print(f"evenstep: cannot start: {error}", file=sys.stderr)


if __name__ == "sitecustomize":
    try:
        _chain()
    finally:
        _arm()
