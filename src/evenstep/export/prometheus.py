"""Metrics as Prometheus reads them: the text format 0.0.4, in a file or from one port per node.

https://prometheus.io/docs/instrumenting/exposition_formats
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec

from evenstep.errors import TraceError, UsageError
from evenstep.export.prometheus_metrics import Families, Live, MetricFamily, of_live, of_spools
from evenstep.trace.reader import SpoolContents, open_spool
from evenstep.trace.spool.folder import RunFolder, read_facts

WAITING_S = 60.0  # a request that does not come is given up
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(families: Mapping[str, MetricFamily]) -> str:
    """The metrics as text."""
    return "".join(_family(family) for family in families.values())


def _family(family: MetricFamily) -> str:
    meaning = family.meaning.replace("\\", r"\\").replace("\n", r"\n")
    lines = [f"# HELP {family.name} {meaning}", f"# TYPE {family.name} {family.kind}"]
    lines += [f"{family.name}{_labels(labels)} {_value(value)}" for labels, value in family.samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items()) + "}"


def _escaped(text: str) -> str:
    text = text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return text.encode("utf-8", "replace").decode()


def _value(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def running(run: Path, *, node: str | None = None, anonymous: bool = False) -> Families:
    """What a run has counted until now, of the ranks of one node; of all where it has none there.

    It reads the latest attempt's spools and `live.json`; the job notices nothing. Ranks that are
    just starting are passed over.
    """
    folder = RunFolder(run)
    attempts = folder.attempts()
    files = sorted((run / f"attempt-{attempts[-1]:03d}").glob("*.spool")) if attempts else []
    spools = [spool for spool in map(_readable, files) if spool is not None]
    spools = [each for each in spools if each.identity.get("hostname") == node] or spools
    name = spools[0].identity.get("run_id", "") if spools else ""
    if anonymous:
        name = "anonymous"
        hosts = list(dict.fromkeys(each.identity.get("hostname") for each in spools))
        for each in spools:
            each.identity["hostname"] = f"node-{hosts.index(each.identity.get('hostname'))}"
    found = Families()
    found.add("evenstep_run_info", 1, run=name, attempt=attempts[-1] if attempts else 0)
    found.add("evenstep_ranks", len(spools))
    of_spools(spools, found)
    live = _live(run / "live.json")
    return of_live(live, found) if live else found


def _live(path: Path) -> Live | None:
    """The latest window; None where there is none yet, or a file of somebody else's."""
    try:
        return msgspec.convert(read_facts(path), Live, str_keys=True)
    except (TraceError, msgspec.ValidationError):
        return None


def _readable(path: Path) -> SpoolContents | None:
    try:
        return open_spool(path)[0]
    except TraceError:
        return None


def server(
    address: tuple[str, int], read: Callable[[], Families], *, token: str = ""
) -> ThreadingHTTPServer:
    """An endpoint that answers /metrics with what `read` finds then; start it with its own
    `serve_forever`. With a token it answers who sends it (`Authorization: Bearer TOKEN`) and nobody
    else. Raises `UsageError` where the port is taken.
    """
    wanted = f"Bearer {token}".encode()

    class Handler(BaseHTTPRequestHandler):
        """Answers GET /metrics."""

        timeout = WAITING_S

        def do_GET(self) -> None:
            sent = self.headers.get("Authorization", "").encode("utf-8", "replace")
            if token and not hmac.compare_digest(sent, wanted):
                self.send_error(401, "send the token that evenstep export --serve has printed")
                return
            if self.path.partition("?")[0] not in ("/metrics", "/"):
                self.send_error(404, "give /metrics")
                return
            body = exposition(read()).encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Scrapes are no news."""

    try:
        return ThreadingHTTPServer(address, Handler)
    except OSError as error:
        host, port = address
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror}; give another address to --serve"
        ) from error
