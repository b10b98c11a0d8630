"""Stands for `python`: what it is given runs in a fork of the process that has imported torch, with
the streams, folder and environment of this one, which lasts as long and ends in the same way.
"""

import json
import os
import signal
import socket
import sys
from pathlib import Path


def main() -> None:
    """`forked_python.py SOCKET …` is `python …`."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(sys.argv[1])
        socket.send_fds(connection, [b"."], [0, 1, 2])
        said = connection.makefile("rw")
        order = {"command": sys.argv[2:], "cwd": str(Path.cwd()), "env": dict(os.environ)}
        print(json.dumps(order), file=said, flush=True)
        job = int(said.readline())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda number, _: os.kill(job, number))
        code = int(said.readline())
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


main()
