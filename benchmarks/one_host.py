"""Real jobs on one host: nothing is found where nothing is wrong, and nobody blames a fabric.

Healthy jobs compute for real, two ranks on two cores; disturbed ones sleep their compute and have
one fault each (`benchmarks.jobs.faulty`). Of every run all that is said is searched: the terminal's
report, long and short, the Markdown, the page's text and the JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measure import Row
from benchmarks.ranks import JobError, environment, free_port

COMMAND = "python -m benchmarks one_host"
RANKS = 2
ABOVE = 0.05
FAULTS = (
    *("slow-forward", "slow-backward", "slow-optimizer", "slow-input", "rotate", "burst"),
    *("transient", "collect", "save", "evaluate", "warm", "lengths"),
)
#: What only a job on several hosts, or with adapters, can have.
FABRIC = re.compile(
    r"\b(?:fabric|switch(?:es)?|topolog\w*|incast|uplink|oversubscri\w*|infiniband|adapters?|"
    r"hot link|slow link|congest\w*)\b",
    re.IGNORECASE,
)
#: Of the scheduler, which switches between threads.
ELSE = re.compile(
    r'CPU\s+oversubscription|[\d.,]+ switches|(?:context )?switches|"layer": "fabric"'
)


class Said(NamedTuple):
    """What a run's diagnosis is."""

    name: str
    findings: list[dict[str, Any]]
    about_fabric: list[str]  # sentences


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--runs", type=int, default=20, help="healthy ones")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each")
    parser.add_argument("--faults", nargs="*", choices=FAULTS, default=list(FAULTS))


def run(args: argparse.Namespace) -> list[Row]:
    """The rows."""
    healthy = [_healthy(number, args.seconds) for number in range(args.runs)]
    disturbed = [_disturbed(fault) for fault in args.faults]
    loud = [
        f"{said.name}: {found['title']} {found['severity']:.0%}"
        for said in healthy
        for found in said.findings
        if (found["severity"] or 0.0) > ABOVE
    ]
    for said in (*healthy, *disturbed):
        for sentence in said.about_fabric:
            print(f"{said.name}: {sentence}", file=sys.stderr)
    print("\n".join(loud), file=sys.stderr)
    return [
        _row(f"findings above 5 % in {len(healthy)} healthy jobs of {RANKS} ranks", len(loud)),
        *(
            _row(f"sentences about fabric, {len(each)} {kind} jobs on one host",
                 sum(len(said.about_fabric) for said in each))
            for kind, each in (("healthy", healthy), ("disturbed", disturbed)) if each
        ),
    ]  # fmt: skip


def _row(what: str, count: int) -> Row:
    return Row(what, "0", str(count), count == 0, COMMAND)


def _healthy(number: int, seconds: float) -> Said:
    job = ["benchmarks.jobs.disturbed", "--scenario", "healthy", "--seconds", str(seconds)]
    with tempfile.TemporaryDirectory(prefix="one-host-") as folder:
        return _said(f"healthy {number}", Path(folder), [*job, "--truth", f"{folder}/truth.json"])


def _disturbed(fault: str) -> Said:
    job = ["benchmarks.jobs.faulty", "--fault", fault, "--delay-ms", "25", "--steps", "120"]
    with tempfile.TemporaryDirectory(prefix="one-host-") as folder:
        return _said(fault, Path(folder), job)


def _said(name: str, folder: Path, job: list[str]) -> Said:
    """Run the job under evenstep and gather all that is said of it."""
    place = str(folder / "run")
    start = ["-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
    start += ["--master-port", str(free_port()), "-m", *job]
    _evenstep("run", "--out", place, "--", sys.executable, *start)
    page = folder / "page.html"
    texts = [_evenstep("diagnose", place, *form) for form in ((), ("--verbose",), ("--markdown",))]
    document = _evenstep("diagnose", place, "--json", "--html", str(page))
    findings = json.loads(document)["findings"]
    body = re.sub(r"<(script|style)\b.*?</\1>|<[^>]+>", " ", page.read_text(), flags=re.DOTALL)
    print(f"{name}: {[each['title'] for each in findings]}", file=sys.stderr, flush=True)
    return Said(name, findings, sorted(set(_about_fabric([*texts, document, body]))))


def _about_fabric(texts: list[str]) -> Iterator[str]:
    for text in texts:
        for found in FABRIC.finditer(ELSE.sub("", text)):
            yield " ".join(text[max(found.start() - 60, 0) : found.end() + 60].split())


def _evenstep(*arguments: str) -> str:
    command = [sys.executable, "-m", "evenstep", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=environment(), check=False
    )
    if done.returncode not in (0, 1):
        raise JobError(f"{arguments[0]} ended with {done.returncode}: {done.stderr[-1500:]}")
    return done.stdout
