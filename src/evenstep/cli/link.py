"""`evenstep link`: the token server through which jobs on several hosts take turns on a link."""

from __future__ import annotations

import argparse
from contextlib import closing

from evenstep.agent.settings import kinds
from evenstep.cli.terminal import say, until_interrupted
from evenstep.errors import UsageError

HELP = """Run the token server through which jobs on several hosts take turns on a shared link.

    evenstep link team-a@10.0.0.7:7717
    export EVENSTEP_LINK_GROUP=team-a@10.0.0.7:7717
    evenstep run --act token -- torchrun …

Every job reports its exchanges to the server by UDP and receives those of the others. No job waits
for the server: if it cannot be reached, jobs continue as without it. Datagrams that do not carry
NAME are ignored; choose a name that is hard to guess if others can reach the port. The server runs
until it is interrupted."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", metavar="NAME@HOST:PORT", help="the jobs' EVENSTEP_LINK_GROUP")


def main(args: argparse.Namespace) -> int:
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
                say(f"serving on port {server.port}: {members} jobs taking turns")
            server.serve()
