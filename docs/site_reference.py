"""The reference, made with the site: commands from their `--help`, Python from docstrings."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from unittest import mock

from evenstep.cli.main import COMMANDS, main, overview

#: What the Python reference shows, by what it is for. Names are looked up in the source.
PYTHON = {
    "In a training script": (
        "evenstep.attach",
        "evenstep.detach",
        "evenstep.step",
        "evenstep.span",
        "evenstep.log",
    ),
    "Traces": (
        "evenstep.importers.opening.load",
        "evenstep.trace.trace.Trace",
        "evenstep.trace.trace.Group",
        "evenstep.trace.trace.RankInfo",
        "evenstep.trace.columns.Columns",
        "evenstep.trace.spool.layout.Kind",
    ),
    "Diagnosis": (
        "evenstep.diagnose.engine.diagnose",
        "evenstep.diagnose.finding.Diagnosis",
        "evenstep.diagnose.finding.Finding",
        "evenstep.diagnose.finding.Where",
        "evenstep.diagnose.finding.When",
        "evenstep.diagnose.finding.Effect",
        "evenstep.diagnose.finding.Projection",
        "evenstep.diagnose.finding.Option",
        "evenstep.diagnose.finding.Evidence",
    ),
    "Simulation": (
        "evenstep.scenario.scenario.load",
        "evenstep.scenario.scenario.Scenario",
        "evenstep.simulate.simulation.simulate",
        "evenstep.simulate.simulation.simulate_trace",
        "evenstep.simulate.result.Result",
    ),
    "Pacing": (
        "evenstep.pacing.pacer.Pacer",
        "evenstep.pacing.pacer.PacerSettings",
        "evenstep.pacing.observation.StepObservation",
        "evenstep.pacing.observation.Decision",
    ),
    "Errors": ("evenstep.errors",),
}


def pages() -> dict[str, str]:
    """Address and Markdown of each page of the reference."""
    return {"reference/commands.md": commands(), "reference/python.md": python()}


def commands() -> str:
    """Every command with what its `--help` prints."""
    return "\n".join(_commands())


def _commands() -> Iterator[str]:
    yield "# Commands\n"
    yield f"```text\n{overview()}\n```\n"
    for command in COMMANDS:
        yield f"## evenstep {command.name}\n"
        yield f"```text\n{usage(command.name)}```\n"


def usage(name: str) -> str:
    """What `evenstep NAME --help` prints on a terminal of 90 columns."""
    said = io.StringIO()
    wide = mock.patch.dict(os.environ, {"COLUMNS": "90", "NO_COLOR": "1"})
    with wide, contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main([name, "--help"])
    return said.getvalue()


def python() -> str:
    """Directives from which mkdocstrings makes the page."""
    lines = ["# Python", "", "`evenstep.load` and `evenstep.Trace` are those of *Traces*.", ""]
    for title, names in PYTHON.items():
        lines += [f"## {title}", "", *(f"::: {name}" for name in names), ""]
    return "\n".join(lines)
