"""Command lines of every command that is quick, on the same small runs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from evenstep.cli.main import main
from tests.cli.simulated import simulate
from tests.report.live_ranks import job
from tests.trace.small_run import write_run

QUICK = ("--set", "run.steps=6", "--workers", "1")
#: Words in capitals that are names of what `made` makes are replaced by their paths.
LINES = {
    "env": ("env",),
    "env with settings": ("env", "--out", "here", "--pace", "on", "--pace-ranks", "0-3"),
    "watch": ("watch", "LIVE", "--once"),
    "doctor": ("doctor",),
    "collect": ("collect", "RECORDED", "--into", "PACKED"),
    "diagnose": ("diagnose", "SLOW"),
    "diagnose, what if": ("diagnose", "SLOW", "--what-if", "rank:3=median", "--what-if", "gc=off"),
    "explain": ("explain",),
    "explain a mode": ("explain", "straggler"),
    "explain a mode in numbers": ("explain", "straggler", "--ranks", "512", "--cv", ".05"),
    "explain a quantity": ("explain", "allreduce", "--bytes", "1GB", "--gBps", "5", "--ranks", "8"),
    "explain a case": ("explain", "efficiency", "--preset", "data-parallel-512"),
    "explain what was published": ("explain", "published"),
    "compare": ("compare", "RUN", "SLOW"),
    "compare, normalised": ("compare", "RUN", "SLOW", "--normalised"),
    "history": ("history", "FOLDER"),
    "sql": ("sql", "select rank, sum(step_ns) as ns from steps group by rank", "RUN"),
    "sql of many columns": ("sql", "select * from steps limit 3", "RUN"),
    "sql, the tables": ("sql", "--tables"),
    "simulate": ("simulate", "SCENARIO"),
    "simulate, the fields": ("simulate", "--fields"),
    "simulate, the presets": ("simulate", "--presets"),
    "sweep": ("sweep", "SCENARIO", "--vary", "nodes=1,2", "--repeats", "2", *QUICK),
    "scaling": (
        *("scaling", "SCENARIO", "--ranks", "2,4", *QUICK),
        *("--target", "1e6", "--deadline", "10", "--price", "2"),
    ),
    "calibrate": ("calibrate", "RUN"),
    "project": ("project", "RUN", "--ranks", "8,16"),
    "ctl": ("ctl", "LIVE", "pace", "status"),
}


class Made(NamedTuple):
    """A folder with everything the lines name."""

    folder: Path
    paths: dict[str, Path]

    def line(self, name: str) -> list[str]:
        """A command line of `LINES`, ready to be run."""
        return [str(self.paths.get(word, word)) for word in LINES[name]]


def made(folder: Path) -> Made:
    """Two simulated runs of four ranks, one with a slow rank; a live job; ranks that recorded."""
    runs = folder / "runs"
    runs.mkdir()
    simulate(runs / "even")
    simulate(runs / "slow", slow=True)
    _paced(folder / "live")
    write_run(folder / "recorded")
    return Made(
        folder,
        {
            "RUN": runs / "even", "SLOW": runs / "slow", "SCENARIO": runs / "even.toml",
            "FOLDER": runs, "LIVE": folder / "live", "RECORDED": folder / "recorded",
            "PACKED": folder / "packed",
        },
    )  # fmt: skip


def _paced(run: Path) -> None:
    """A live job, of which ranks 0 and 1 are asked to pace and rank 0 does."""
    first, *others = job(run, late=3)
    assert main(["ctl", str(run), "pace", "on", "--ranks", "0-1"]) == 0
    limits = {"threshold": 0.03, "max_delay": 0.1, "request": 1, "since_step": 12}
    first.spool.add_fact("pace", {"mode": "on", "asked": "on", "part": "ranks 0-1", **limits})
    for rank in others:
        rank.spool.add_fact("pace", {"mode": "observe"})
