"""`evenstep link`: the server by which jobs of several hosts take turns."""

from __future__ import annotations

import argparse
from contextlib import closing

from evenstep.agent.settings import kinds
from evenstep.cli.terminal import say, until_interrupted
from evenstep.errors import UsageError

HELP = """Let jobs of several hosts take turns: the server of their token, until it is interrupted.

    evenstep link team-a@10.0.0.7:7717
    EVENSTEP_LINK_GROUP=team-a@10.0.0.7:7717 evenstep run --act token -- torchrun …

Every job sends it what it does, in datagrams (UDP), and hears what the others do. Nobody waits for
the server: where it cannot be reached, or has died, jobs go on as without it. Who does not know the
name is not heard; choose one that nobody guesses where others can reach the port."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `evenstep link`."""
    parser.add_argument("group", metavar="NAME@HOST:PORT", help="as the jobs are told")


def main(args: argparse.Namespace) -> int:
    """Serve until the end."""
    from evenstep.agent.actions.served import LinkServer

    try:
        group = kinds.link(args.group)
    except ValueError:
        group = ""
    if "@" not in group:
        raise UsageError(f"expected NAME@HOST:PORT, found {args.group!r}")
    server, members = LinkServer(group), -1
    with closing(server), until_interrupted():
        while True:
            if server.members != members:
                members = server.members
                say(f"serving on port {server.port}: {members} taking turns")
            server.serve()
