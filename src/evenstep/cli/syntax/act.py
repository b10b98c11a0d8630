"""Commands that act on a running job."""

from __future__ import annotations

from pathlib import Path

from evenstep.agent.settings.selection import NAMED
from evenstep.cli.arguments import Parser, command

MODES = ("on", "off", "observe", "status")


@command("ctl RUN pace …", "change pacing and actions of a running job")
def ctl(parser: Parser) -> None:
    """Change pacing and actions of a running job, or show their state.

        evenstep ctl RUN act gc,cores
        evenstep ctl RUN act off
        evenstep ctl RUN pace on --threshold 3% --max-delay 10%
        evenstep ctl RUN pace on --ranks 0-7
        evenstep ctl RUN pace off
        evenstep ctl RUN pace status

    The request is written into the run's folder, which every rank reads at the end of each step.
    Options that are not given keep their value; `all` selects the whole job again. With
    pace.sharing all ranks follow from the same step on. If each node has its own folder, run this
    on the node of rank 0, which informs the others. Training results never change, only delays.
    Ranks with EVENSTEP=0 in their environment ignore requests."""
    parser.value("run", "RUN", Path, "")
    parser.choice("what", ("pace", "act"), "pacing only, or any action", metavar="pace|act")
    actions = f"pace: {', '.join(MODES)}; act: {', '.join(NAMED)}, auto, off or status"
    parser.value("action", "ACTION", str, actions)
    parser.value("--threshold", "SHARE", str, "no pacing below this imbalance (share of a step)")
    parser.value("--max-delay", "SHARE", str, "longest delay (share of the median step)")
    parser.part("pace only")
    parser.json("the state")


@command("link NAME@HOST:PORT", "let jobs on several hosts take turns on a link")
def link(parser: Parser) -> None:
    """Run the token server through which jobs on several hosts take turns on a shared link.

        evenstep link team-a@10.0.0.7:7717
        export EVENSTEP_LINK_GROUP=team-a@10.0.0.7:7717
        evenstep run --act token -- torchrun …

    Every job reports its exchanges to the server by UDP and receives those of the others. No job
    waits for the server: if it cannot be reached, jobs continue as without it. Datagrams that do
    not carry NAME are ignored; choose a name that is hard to guess if others can reach the port.
    The server runs until it is interrupted."""
    parser.value("group", "NAME@HOST:PORT", str, "the jobs' EVENSTEP_LINK_GROUP")
