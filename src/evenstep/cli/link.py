"""`evenstep link`: the token server through which jobs on several hosts take turns on a link."""

from __future__ import annotations

import argparse
from contextlib import closing

from evenstep.agent.actions.served import LinkServer
from evenstep.agent.settings import selection
from evenstep.cli.terminal import say, until_stopped
from evenstep.errors import UsageError
from evenstep.words import plural


def main(args: argparse.Namespace) -> int:
    try:
        group = selection.link(args.group)
    except ValueError:
        group = ""
    if "@" not in group:
        raise UsageError(f"expected NAME@HOST:PORT, found {args.group!r}")
    server, members = LinkServer(group), (-1, 0)
    with closing(server), until_stopped():
        while True:
            if server.members != members:
                members = server.members
                jobs, ranks = map(plural, members, ("job", "rank"))
                say(f"serving on port {server.port}: {jobs} on the link, {ranks} on storage")
            server.serve()
    return 0
