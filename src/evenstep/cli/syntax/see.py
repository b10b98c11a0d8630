"""Commands that record and watch a job, and look at its machines before it starts."""

from __future__ import annotations

import argparse
from pathlib import Path

from evenstep.agent.settings.selection import NAMED
from evenstep.cli.arguments import Parser, command, seconds, whole


@command("run -- COMMAND…", "run a training command and record it", wraps=True)
def run(parser: Parser) -> None:
    """Run a training command and record every rank; the script needs no change.

        evenstep run -- torchrun --nproc-per-node 4 train.py --lr 3e-4

    Arguments, input, output, signals and exit code are those of the command. When it has ended, the
    node of rank 0 prints the verdict to standard error; other nodes print the path of their traces.
    Give all nodes the same --out on a shared filesystem."""
    _settings(parser)
    parser.flag("--force", "replace the run in DIR")
    parser.flag("--json", "print the diagnosis as JSON at the end")
    parser.flag("--mpi-shim", "also record MPI programs in C, C++ and Fortran")
    parser.value("command", "-- COMMAND", str, "", nargs=argparse.REMAINDER)


@command("env", "print environment variables that attach without `run`")
def env(parser: Parser) -> None:
    """Print environment variables that record a job whose launcher cannot be wrapped by `evenstep
    run` (srun, Kubernetes, a scheduler's own agent). Set them for every rank:

        eval "$(evenstep env --out /shared/my-run)"; srun python train.py

    With --json the settings in force and the source of each are printed too."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--shell", action="store_true", help="print shell exports (default)")
    parser.json("variables, settings and their sources", form)
    _settings(parser)


@command("watch RUN", "show a running job: late ranks and live findings")
def watch(parser: Parser) -> None:
    """Show a running job: late ranks, the time of each rank's step, live findings.

    RUN is the run folder; it need not exist yet. Only the last 32 steps of every rank are read,
    from files that the job writes anyway, so watching costs the job nothing. Once no rank takes a
    step any more, as all have ended, died or hang, the view is that of `evenstep diagnose`. Ranks
    may die and restart. --web serves the view as a page on localhost. q or Ctrl-C ends watching,
    not the job.

    For thousands of ranks, or if traces are on local disks, start --aggregate once on each node. It
    writes a summary of the node's ranks every second to a small file in RUN (or in the run folder
    given with --into). `evenstep watch RUN` on any machine then shows the whole job."""
    parser.value("run", "RUN", Path, "")
    parser.flag("--once", "show the current state and exit")
    parser.flag("--json", "print a line of JSON at every refresh")
    parser.flag("--web", "serve a page on 127.0.0.1")
    parser.flag("--aggregate", "summarize this node's ranks for other watchers")
    parser.value("--into", "DIR", Path, "run folder that --aggregate writes to (RUN)")
    parser.value("--port", "N", whole(65_535), "port of --web (default: a free one)", 0)
    parser.value("--every", "SECONDS", seconds(0.1, 3600), "time between refreshes (1)", 1.0)


@command("doctor", "check this host for what slows or breaks training")
def doctor(parser: Parser) -> None:
    """Check this host for what slows or breaks distributed training: versions, NCCL_* and other
    variables, cores and threads, kernel settings, limits, network adapters, PCIe links, GPUs and
    their distance to the adapters. Each finding says why it matters and how to fix it. Nothing is
    changed.

    Output collected on another machine can be checked too: `nvidia-smi topo -m`, the XML of lstopo,
    a log of NCCL_DEBUG=INFO. --root checks a copy of another host's /proc and /sys. The exit code
    is 1 if there is a problem, else 0."""
    parser.json("the checks")
    parser.flag("--all", "also list passed checks in full")
    ranks = "ranks on this host (default: from the launcher, or one per GPU)"
    parser.value("--ranks", "N", whole(999_999), ranks)
    parser.value("--topology", "FILE", Path, "output of `nvidia-smi topo -m`")
    parser.value("--lstopo", "FILE", Path, "output of `lstopo --of xml`")
    parser.value("--nccl-log", "FILE", Path, "log of a job with NCCL_DEBUG=INFO")
    root = "a copy of another host's files: DIR/proc, DIR/sys"
    parser.value("--root", "DIR", Path, root, Path("/"))


@command("probe", "measure ranks and links before a job; name slow ones")
def probe(parser: Parser) -> None:
    """Measure the speed of every rank and link for about a minute and name those that are slower
    than noise explains: matrix products and memory on every rank, all-reduces of several sizes, and
    pairs of nodes (on one node: of ranks) in a round-robin schedule.

    Start it on all ranks as the job will be (torchrun --no-python … evenstep probe, srun evenstep
    probe, mpiexec evenstep probe), or start ranks on this machine with --nproc. --floors writes the
    speeds that `evenstep diagnose --floors` compares a trace with, --scenario a cluster for
    `evenstep simulate`. The exit code is 1 if a rank or link is slow or a rank is missing."""
    parser.value("--nproc", "N", whole(1024), "start N ranks on this machine")
    day = seconds(0.1, 86_400)
    parser.value("--seconds", "S", day, "duration of the measurement (60)", 60.0)
    parser.value("--timeout", "S", day, "time to wait for missing or silent ranks (60)", 60.0)
    parser.choice("--device", ("auto", "cpu", "cuda"), "auto: GPUs if there are any", "auto")
    parser.choice("--backend", ("auto", "gloo", "nccl"), "auto: nccl on GPUs, else gloo", "auto")
    parser.json("all measurements")
    parser.files(floors="write the measured speeds", scenario="write a cluster scenario")
    parser.flag("--part", argparse.SUPPRESS)  # of --nproc


@command("collect RUN", "copy the traces of a node to shared storage")
def collect(parser: Parser) -> None:
    """Copy the traces of a node to shared storage, as one file.

        evenstep run --out /local/run -- COMMAND…
        evenstep collect /local/run --into /shared/run

    Run it on every node after the job has ended. DIR becomes a run folder with one file per node
    and attempt, which every command reads. Files are written atomically and complete files are not
    written again, so collecting can be interrupted and repeated. With --every it repeats while the
    job runs and ends with it."""
    parser.value("run", "RUN", Path, "")
    parser.value("--into", "DIR", Path, "", required=True)
    parser.value("--every", "SECONDS", seconds(0.1, 86_400), "repeat until the job ends")
    parser.json("the collected files")


@command("completion SHELL", "print the shell's completion script")
def completion(parser: Parser) -> None:
    """Print the script with which a shell completes commands, options and paths, to be loaded in
    the shell's own start file:

      eval "$(evenstep completion bash)"        in ~/.bashrc
      eval "$(evenstep completion zsh)"         in ~/.zshrc
      evenstep completion fish | source         in ~/.config/fish/config.fish"""
    shells = ("bash", "zsh", "fish")
    parser.choice("shell", shells, ", ".join(shells), "bash", metavar="SHELL", nargs="?")
    parser.json("commands and options")


def _settings(parser: Parser) -> None:
    """Add the options for settings."""
    parser.value("--out", "DIR", str, "run folder, the same for all nodes")
    parser.choice("--pace", ("off", "observe", "on"), "pacing: off, observe (default) or on")
    actions = f"actions to try, and to keep if they pay: {', '.join(NAMED)}, or auto"
    parser.value("--act", "NAME,…", str, actions)
    parser.value("--probe-every", "N", str, "measure each rank's machine for 20 ms every N steps")
    for table in ("pace", "record"):
        parser.part(f"{table} only", prefix=f"{table}-")
