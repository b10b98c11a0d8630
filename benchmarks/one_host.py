"""Real jobs on one host: nothing is found where nothing is wrong, and nobody blames a fabric.

Healthy and disturbed jobs sleep their compute, so that 2 to 4 ranks have cores enough
(`benchmarks.jobs.faulty`); computing ones keep a core for each rank busy, which its transport's
threads share: what is found there is held against how long training threads waited for it, as the
scheduler counts, whoever took it. The others go before whatever else the machine does. Of every run
all that is said is searched: the terminal's report, long and short, the Markdown, the page's text
and the JSON.
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
RANKS = (2, 3, 4)
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
    core_wait: float | None = None  # share of the time, where the job measured it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--runs", type=int, default=20, help="healthy ones")
    parser.add_argument("--computing", type=int, default=6, help="healthy ones that fill cores")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each of these")
    parser.add_argument("--faults", nargs="*", choices=FAULTS, default=list(FAULTS))


def run(args: argparse.Namespace) -> list[Row]:
    """The rows."""
    healthy = [_healthy(number) for number in range(args.runs)]
    computing = [_computing(number, args.seconds) for number in range(args.computing)]
    disturbed = [_disturbed(fault) for fault in args.faults]
    for said in (*healthy, *computing, *disturbed):
        for sentence in (*said.about_fabric, *_loud(said)):
            print(f"{said.name}: {sentence}", file=sys.stderr)
    rows = [_row(f"findings above 5 % in {len(healthy)} healthy jobs of 2 to 4 ranks with cores "
                 "enough", sum(len(_loud(said)) for said in healthy))]  # fmt: skip
    if computing:
        rows.append(_beside_the_truth(computing))
    for kind, each in (("healthy", [*healthy, *computing]), ("disturbed", disturbed)):
        if each:
            what = f"sentences about fabric, {len(each)} {kind} jobs on one host"
            rows.append(_row(what, sum(len(said.about_fabric) for said in each)))
    return rows


def _loud(said: Said) -> list[str]:
    """Findings that should not be there."""
    above = (found for found in said.findings if (found["severity"] or 0.0) > ABOVE)
    return [f"{found['title']} {found['severity']:.0%}" for found in above]


def _beside_the_truth(jobs: list[Said]) -> Row:
    """What is found where every core is busy, and how long training threads waited for theirs."""
    loud = [text for said in jobs for text in _loud(said)]
    waits = [said.core_wait or 0.0 for said in jobs]
    measured = (
        f"{len(loud)} ({', '.join(sorted(loud))}); training threads waited "
        f"{min(waits):.1%} to {max(waits):.1%} of the time for their core"
    )
    return Row(f"findings above 5 % in {len(jobs)} jobs that fill a core with each of 2 ranks",
               "none", measured, None, COMMAND)  # fmt: skip


def _row(what: str, count: int) -> Row:
    return Row(what, "0", str(count), count == 0, COMMAND)


def _healthy(number: int) -> Said:
    job = ["benchmarks.jobs.faulty", "--fault", "healthy", "--steps", "120", "--first"]
    return _said(f"healthy {number}", job, RANKS[number % len(RANKS)])


def _disturbed(fault: str) -> Said:
    job = ["benchmarks.jobs.faulty", "--fault", fault, "--delay-ms", "25", "--steps", "120"]
    return _said(fault, [*job, "--first"])


def _computing(number: int, seconds: float) -> Said:
    job = ["benchmarks.jobs.disturbed", "--scenario", "healthy", "--seconds", str(seconds)]
    with tempfile.TemporaryDirectory(prefix="one-host-") as folder:
        truth = Path(folder) / "truth.json"
        said = _said(f"computing {number}", [*job, "--truth", str(truth)])
        return said._replace(core_wait=json.loads(truth.read_text())["core_wait"])


def _said(name: str, job: list[str], ranks: int = 2) -> Said:
    """Run the job under evenstep and gather all that is said of it."""
    with tempfile.TemporaryDirectory(prefix="one-host-") as folder:
        place, page = f"{folder}/run", Path(folder) / "page.html"
        start = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        start += ["--master-port", str(free_port()), "-m", *job]
        _evenstep("run", "--out", place, "--", sys.executable, *start)
        forms: tuple[tuple[str, ...], ...] = ((), ("--verbose",), ("--markdown",))
        texts = [_evenstep("diagnose", place, *form) for form in forms]
        document = _evenstep("diagnose", place, "--json", "--html", str(page))
        body = re.sub(r"<(script|style)\b.*?</\1>|<[^>]+>", " ", page.read_text(), flags=re.DOTALL)
    findings = json.loads(document)["findings"]
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
