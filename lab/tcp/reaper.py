"""Removes a network when the process that made it is done with it, or dead.

`python -m lab.tcp.reaper PID START NUMBER`; its input ends when the owner's does.
"""

from __future__ import annotations

import signal
import sys

from lab.tcp import network
from lab.tcp.owner import Owner, of


def main(argv: list[str]) -> None:
    """Wait for the end of the input, then remove what this owner has made."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    owner = Owner(*map(int, argv))
    sys.stdin.read()
    network.remove([name for name in network.names() if of(name) == owner])


if __name__ == "__main__":
    main(sys.argv[1:])
