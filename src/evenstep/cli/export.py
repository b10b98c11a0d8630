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

from evenstep.cli import files, progress, traces
from evenstep.cli.terminal import print_json, tell_written, until_stopped
from evenstep.diagnose.finding import Diagnosis
from evenstep.errors import UsageError
from evenstep.export import parquet
from evenstep.export.anonymise import anonymise_trace
from evenstep.export.perfetto.document import encode, held_steps
from evenstep.export.posting import check_url, push, redacted_url, webhook
from evenstep.export.prometheus import Families, exposition, of_diagnosis, running, server
from evenstep.trace.spool.identity import hostname
from evenstep.trace.store import writing
from evenstep.trace.trace import Trace
from evenstep.words import number

SHORTEST_TOKEN = 16
TO_JUDGING = 3.0  # time of writing a file to that of the diagnosis: .6 to 5 for 32 to 1,024 ranks
OUTPUTS = (
    *("perfetto", "parquet", "prometheus", "otlp", "webhook"),
    *("wandb", "mlflow", "tensorboard", "json", "store"),
)


def main(args: argparse.Namespace) -> int:
    wanted = [name for name in OUTPUTS if getattr(args, name)]
    if args.run is None or not (wanted or args.serve):
        raise UsageError("give a RUN and what to write: --perfetto FILE, --parquet DIR, … (--help)")
    if args.steps is not None and args.perfetto is None:
        raise UsageError("--steps needs --perfetto; other formats hold the whole run")
    if args.serve:
        if wanted:
            raise UsageError("--serve runs until it is interrupted; ask for files separately")
        return _serve(args)
    piped = not args.json and args.perfetto != args.prometheus
    files.check_free(args.perfetto, force=args.force, piped=piped)
    files.check_free(args.prometheus, force=True, piped=piped)  # a collector reads it anew
    for folder, format in ((args.parquet, parquet), (args.store, writing)):
        if folder is not None:
            files.check_folder(folder)
            format.check_free(folder, force=args.force)
    for name in ("otlp", "webhook"):
        if (url := getattr(args, name)) is not None:
            check_url(url, f"--{name}")
    (trace, read_s), scrub = traces.read_timed(args.run), None
    traces.tell_unread(trace)
    if args.steps is not None:
        held_steps(trace, args.steps)  # before the diagnosis, too
    if args.anonymise:
        trace, scrub = anonymise_trace(trace, [args.run])
    if args.store is not None:
        with progress.counting("stored {} of {} parts") as report:
            stored = writing.write_store(trace, args.store, force=args.force, progress=report)
        _tell_size(*stored, "records")
    if wanted == ["store"]:
        return 0
    begun_s = time.monotonic()
    diagnosis = traces.judge(trace, read_s)
    about_s = TO_JUDGING * (time.monotonic() - begun_s)
    diagnosis = diagnosis if scrub is None else scrub.value(diagnosis)
    if args.json:
        print_json(diagnosis.to_json())
    _files(args, trace, diagnosis, about_s)
    _send(args, trace, diagnosis)
    return 0


def _tell_size(path: Path, count: int, size_bytes: int, what: str) -> None:
    each = f", {number(size_bytes / count)} bytes each" if count else ""
    tell_written(path, f" ({count:,} {what}, {size_bytes:,} bytes{each})")


def _files(args: argparse.Namespace, trace: Trace, diagnosis: Diagnosis, about_s: float) -> None:
    """Write the files, each of which takes about so many seconds."""
    if args.perfetto is not None:
        with progress.ticking(f"writing {args.perfetto}", about_s):
            data, partial = encode(trace, diagnosis, steps=args.steps)
        only = f", {partial}" if partial else ""
        files.write(args.perfetto, data, note=f" ({len(data):,} bytes{only})")
    if args.parquet is not None:
        with progress.ticking(f"writing {args.parquet}", about_s):
            tables = parquet.write(trace, diagnosis, args.parquet, force=args.force)
        for written in tables:
            _tell_size(*written, "rows")
    if args.prometheus is not None:
        files.write(args.prometheus, exposition(_families(args, diagnosis)))


def _families(args: argparse.Namespace, diagnosis: Diagnosis) -> Families:
    """Return the metrics of the diagnosis, and those of the ranks if RUN is a run folder."""
    found = of_diagnosis(diagnosis)
    counted = running(args.run, anonymous=args.anonymise) if args.run.is_dir() else Families()
    return Families({**counted, **found})


def _send(args: argparse.Namespace, trace: Trace, diagnosis: Diagnosis) -> None:
    """Send the outputs that go over the network or through a tracker's API."""
    if args.otlp:
        run = str(diagnosis.run.get("run_id") or "")
        resource = {"service.name": "evenstep", "evenstep.run_id": run}
        push(_families(args, diagnosis), args.otlp, time_ns=time.time_ns(), resource=resource)
        print(f"Sent metrics to {redacted_url(args.otlp)}", file=sys.stderr)
    if args.webhook:
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
    if not args.run.is_dir():
        raise UsageError(f"{args.run} is not a run folder; --serve needs one")
    node = hostname()
    token = "" if _is_loopback(args.serve[0]) else _token()
    read = partial(running, args.run, node=node, anonymous=args.anonymise)
    endpoint = server(args.serve, read, token=token)
    place = f"http://{args.serve[0]}:{endpoint.server_address[1]}/metrics"
    auth = f' (needs "Authorization: Bearer {token}")' if token else ""
    print(f"Serving {place}{auth} until interrupted", file=sys.stderr, flush=True)
    with endpoint, until_stopped():
        endpoint.serve_forever()
    return 0


# -- values ----------------------------------------------------------------------------------------


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
