"""`evenstep export`: a run in the formats of other tools."""

from __future__ import annotations

import argparse
import ipaddress
import os
import secrets
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from evenstep.cli import files, progress, traces
from evenstep.cli.arguments import severity
from evenstep.cli.terminal import print_json, tell_written, until_interrupted
from evenstep.errors import UsageError

if TYPE_CHECKING:
    from evenstep.diagnose.finding import Diagnosis
    from evenstep.export.anonymise import Scrubber
    from evenstep.export.prometheus import Families
    from evenstep.trace.trace import Trace

HELP = """Write a run in the formats of other tools; several formats can be written at once.

RUN is any input of `evenstep diagnose`: a run folder, an attempt, a spool or another tool's trace.
With --anonymise the output has no host names, paths or user names. --serve exposes Prometheus
metrics while the job runs; start it once on each node. :PORT listens on localhost only; with any
other address (0.0.0.0:PORT) requests must send the bearer token that is printed at start, or that
of EVENSTEP_METRICS_TOKEN."""

THRESHOLD = 0.05
LOOPBACK = "127.0.0.1"
SHORTEST_TOKEN = 16
OUTPUTS = (
    *("perfetto", "parquet", "prometheus", "otlp", "webhook"),
    *("wandb", "mlflow", "tensorboard", "json", "store"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN", nargs="?", type=Path)
    add("--perfetto", metavar="FILE", type=Path, help="a timeline for ui.perfetto.dev")
    add("--steps", metavar="A-B", type=_steps, help="write only these steps with --perfetto")
    add("--parquet", metavar="DIR", type=Path, help="events, steps and findings as tables")
    add("--store", metavar="DIR", type=Path, help="the whole trace as a compact store for `sql`")
    add("--prometheus", metavar="FILE", type=Path, help="metrics for a textfile collector")
    add("--serve", metavar="HOST:PORT", type=_address, help="serve /metrics until interrupted")
    add("--otlp", metavar="URL", help="push metrics to an OpenTelemetry collector, OTLP/HTTP JSON")
    add("--webhook", metavar="URL", help="POST every finding above --above as JSON")
    add("--above", metavar="SHARE", type=severity, default=THRESHOLD,
        help="lowest severity that --webhook sends (0.05)")  # fmt: skip
    add("--wandb", metavar="PROJECT", help="scalars to Weights & Biases, if installed")
    add("--mlflow", metavar="EXPERIMENT", help="scalars to MLflow, if installed")
    add("--tensorboard", metavar="DIR", help="scalars as TensorBoard events, if installed")
    add("--json", action="store_true", help="print the diagnosis as JSON")
    add("--json-schema", metavar="NAME", nargs="?", const="diagnosis",
        help="print the JSON schema of a result (default: diagnosis)")  # fmt: skip
    add("--anonymise", action="store_true", help="no host names, paths or user names")
    add("--force", action="store_true", help="overwrite existing output")


def main(args: argparse.Namespace) -> int:
    if args.json_schema is not None:
        from evenstep.report.schema import schema

        print_json(schema(args.json_schema))
        return 0
    wanted = [name for name in OUTPUTS if getattr(args, name)]
    if args.run is None or not (wanted or args.serve):
        raise UsageError("give a RUN and what to write: --perfetto FILE, --parquet DIR, … (--help)")
    if args.serve:
        if wanted:
            raise UsageError("--serve runs until it is interrupted; ask for files separately")
        return _serve(args)
    files.check_free(args.perfetto, force=args.force)
    files.check_free(args.prometheus, force=True)  # a collector reads it anew each time
    for folder in filter(None, (args.parquet, args.store)):
        files.check_folder(folder)
    trace, scrub = _read(args)
    if args.store is not None:
        from evenstep.trace.store.writing import write_store

        with progress.ticking(f"writing {args.store}"):
            stored = write_store(trace, args.store, force=args.force)
        _tell_size(stored.path, stored.records, "records", stored.size_bytes)
    if wanted == ["store"]:
        return 0
    diagnosis = traces.judge(trace) if scrub is None else scrub.value(traces.judge(trace))
    if args.json:
        print_json(diagnosis.to_json())
    _files(args, trace, diagnosis)
    _sent(args, trace, diagnosis)
    return 0


def _read(args: argparse.Namespace) -> tuple[Trace, Scrubber | None]:
    """Read the trace; with --anonymise, also return what hides names."""
    from evenstep.diagnose.measure.attempts import with_attempts
    from evenstep.export.anonymise import anonymised

    trace = with_attempts(traces.read(args.run), args.run)
    return anonymised(trace, [args.run]) if args.anonymise else (trace, None)


def _tell_size(path: Path, count: int, what: str, size_bytes: int) -> None:
    each = f", {size_bytes / count:.3g} bytes each" if count else ""
    tell_written(path, f" ({count:,} {what}, {size_bytes:,} bytes{each})")


def _files(args: argparse.Namespace, trace: Trace, diagnosis: Diagnosis) -> None:
    if args.perfetto is not None:
        from evenstep.export.perfetto.document import encode

        with progress.ticking(f"writing {args.perfetto}"):
            data, partial = encode(trace, diagnosis, steps=args.steps)
        only = f", {partial}" if partial else ""
        files.write(args.perfetto, data, note=f" ({len(data):,} bytes{only})")
    if args.parquet is not None:
        from evenstep.export.parquet import write

        with progress.ticking(f"writing {args.parquet}"):
            tables = write(trace, diagnosis, args.parquet, force=args.force)
        for written in tables:
            _tell_size(written.path, written.rows, "rows", written.size_bytes)
    if args.prometheus is not None:
        from evenstep.export.prometheus import exposition

        files.write(args.prometheus, exposition(_families(args, diagnosis)))


def _families(args: argparse.Namespace, diagnosis: Diagnosis) -> Families:
    """Return the metrics of the diagnosis, and those of the ranks if RUN is a run folder."""
    from evenstep.export.prometheus import Families, of_diagnosis, running

    found = of_diagnosis(diagnosis)
    counted = running(args.run, anonymous=args.anonymise) if args.run.is_dir() else Families()
    return Families({**counted, **found})


def _sent(args: argparse.Namespace, trace: Trace, diagnosis: Diagnosis) -> None:
    """Send the outputs that go over the network or through a tracker's API."""
    from evenstep.export.posting import push, redacted_url

    if args.otlp:
        run = str(diagnosis.run.get("run_id") or "")
        resource = {"service.name": "evenstep", "evenstep.run_id": run}
        push(_families(args, diagnosis), args.otlp, time_ns=time.time_ns(), resource=resource)
        print(f"Sent metrics to {redacted_url(args.otlp)}", file=sys.stderr)
    if args.webhook:
        from evenstep.watch.alerts import webhook

        told = webhook(args.webhook, diagnosis, above=args.above)
        print(f"Sent {told} findings to {redacted_url(args.webhook)}", file=sys.stderr)
    if not (args.wandb or args.mlflow or args.tensorboard):
        return
    from evenstep.export import trackers

    each, total = trackers.points(trace), trackers.totals(diagnosis)
    name = str(diagnosis.run.get("run_id") or "run")
    if args.wandb:
        trackers.to_wandb(args.wandb, name, each, total)
    if args.mlflow:
        trackers.to_mlflow(args.mlflow, name, each, total)
    if args.tensorboard:
        trackers.to_tensorboard(args.tensorboard, each, total)


def _serve(args: argparse.Namespace) -> int:
    from evenstep.export.prometheus import running, server
    from evenstep.trace.spool.identity import hostname

    if not args.run.is_dir():
        raise UsageError(f"{args.run} is not a run folder; --serve needs one")
    node = hostname()
    token = "" if _is_loopback(args.serve[0]) else _token()
    read = partial(running, args.run, node=node, anonymous=args.anonymise)
    endpoint = server(args.serve, read, token=token)
    place = f"http://{args.serve[0]}:{endpoint.server_address[1]}/metrics"
    auth = f' (needs "Authorization: Bearer {token}")' if token else ""
    print(f"Serving {place}{auth} until interrupted", file=sys.stderr, flush=True)
    with endpoint, until_interrupted():
        endpoint.serve_forever()
    return 0


# -- values ----------------------------------------------------------------------------------------


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        expected = "HOST:PORT or :PORT such as :9400"
        raise argparse.ArgumentTypeError(f"must be {expected}, found {text!r}")
    return host or LOOPBACK, int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _token() -> str:
    """Return the bearer token of remote requests: EVENSTEP_METRICS_TOKEN, or a random one."""
    token = os.environ.get("EVENSTEP_METRICS_TOKEN", "")
    if token and not (len(token) >= SHORTEST_TOKEN and token.isascii() and token.isprintable()):
        least = f"at least {SHORTEST_TOKEN} printable ASCII characters"
        raise UsageError(f"EVENSTEP_METRICS_TOKEN must have {least}")
    return token or secrets.token_urlsafe(24)


def _steps(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    try:
        found = int(first), int(last or first)
    except ValueError:
        found = 0, -1
    if not 0 <= found[0] <= found[1]:
        raise argparse.ArgumentTypeError(f"must be steps such as 100-160, found {text!r}")
    return found
