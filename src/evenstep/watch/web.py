"""The live view as a page: server-sent events on 127.0.0.1, behind a token.

The page is one file with script and style; its content security policy allows connections to this
server only. Requests need the token of the URL and the right Host header, so pages of other sites
whose name resolves to 127.0.0.1 (DNS rebinding) get nothing.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from weakref import WeakSet

from evenstep.errors import UsageError, refuse_as
from evenstep.report.page.sheet import content_hash
from evenstep.watch import terminal
from evenstep.watch.findings import Journal
from evenstep.watch.frame import Frame
from evenstep.words import SHARES, percent, plural, printable

PAGE = Path(__file__).parent / "assets"
ADDRESS = "127.0.0.1"
ALIVE_S = 5.0  # time after which a comment is sent, so that both sides notice a lost connection
WAITING_S = 60.0  # timeout of a request
POLL_S = 0.1
LAST_S = 2.0  # how long pages are waited for that have not read the last message


class LiveServer:
    """A server of the page, as a context manager. Raises `UsageError` if the port is taken."""

    def __init__(self, port: int = 0) -> None:
        self.token = secrets.token_urlsafe(24)
        with refuse_as(UsageError, f"cannot serve on {ADDRESS}:{port}", "; choose another --port"):
            self._server = _Server((ADDRESS, port), _Handler)
        self._server.token = self.token.encode()
        self.port = int(self._server.server_address[1])
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(POLL_S,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}/?token={self.token}"

    def publish(self, frame: Mapping[str, Any]) -> None:
        self._server.message = json.dumps(frame, allow_nan=False, separators=(",", ":")).encode()

    def __enter__(self) -> LiveServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.closed.set()
        self._server.shutdown()
        self._server.server_close()
        until = time.monotonic() + LAST_S
        for stream in tuple(self._server.streams):  # they end after the last message
            stream.join(max(until - time.monotonic(), 0))


def tunnel_command(port: int) -> str:
    """Return the ssh command that makes the URL work on another machine."""
    return f"ssh -N -L {port}:{ADDRESS}:{port} {socket.gethostname()}"


def page_frame(frame: Frame, journal: Journal) -> dict[str, Any]:
    """A frame as the page shows it: in the terminal's words, with shares for bars."""
    time = f"{terminal.time_text(frame)}; curve: the latest {plural(len(frame.curve_ns), 'step')}"
    texts = {
        "verdict": frame.verdict,
        "where": terminal.where_text(frame),
        "time": "no step yet" if frame.step is None else f"{time}, from zero",
        "waits": terminal.waits_text(frame),
        "more": terminal.more_text(frame, len(frame.rows)),
        "pacing": terminal.pacing_text(frame) or "no rank reports a pacing state",
    }
    found = [terminal.finding_text(finding, journal) for finding in frame.findings]
    return {
        "texts": {name: printable(text) for name, text in texts.items()},
        "curve_ns": frame.curve_ns,
        "shares": _shares(frame.shares),
        "rows": [
            (_shares(row.shares), [printable(text) for text in terminal.cells(row)])
            for row in frame.rows
        ],
        "found": [printable(text) for text in found or ["none at the moment"]],
        "past": [printable(text) for text in journal.past],
    }


def _shares(shares: Mapping[str, Any]) -> list[tuple[str, str, float]]:
    """Return name, words and value of every part of a step that there is, or may be."""
    parts = [(name, label, shares.get(name)) for name, label in SHARES if shares.get(name) != 0.0]
    return [(name, f"{label} {percent(share)}", share or 0.0) for name, label, share in parts]


class _Server(ThreadingHTTPServer):
    daemon_threads = True  # an open page must not keep the command running
    token: bytes
    message = b""  # the latest; pages that are slow to read skip some

    def __init__(self, *of: Any) -> None:
        super().__init__(*of)
        self.closed = threading.Event()
        self.streams: WeakSet[threading.Thread] = WeakSet()

    @cached_property
    def page(self) -> tuple[bytes, str]:
        """The page, and the policy that allows only its own script and style."""
        text = (PAGE / "live.html").read_text("utf-8")
        style, script = ((PAGE / name).read_text("utf-8") for name in ("live.css", "live.js"))
        policy = (
            f"default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
            f"frame-ancestors 'none'; script-src '{content_hash(script)}'; "
            f"style-src '{content_hash(style)}'; img-src data:"
        )
        return text.replace("/*STYLE*/", style).replace("/*SCRIPT*/", script).encode(), policy

    def allows(self, host: str, token: str) -> bool:
        """Whether a request has this server's host and token."""
        port = self.server_address[1]
        ours = host in (f"{ADDRESS}:{port}", f"localhost:{port}")
        return hmac.compare_digest(token.encode(), self.token) and ours

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore pages that are closed during a message."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = WAITING_S
    server_version = "evenstep"
    sys_version = ""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        token = parse_qs(parts.query).get("token", [""])[0]
        if not self.server.allows(self.headers.get("Host", ""), token):
            self._answer(403, b"use the URL with its token that evenstep watch has printed\n")
        elif parts.path == "/":
            page, policy = self.server.page
            self._answer(200, page, "text/html; charset=utf-8", policy)
        elif parts.path == "/events":
            self._stream()
        else:
            self._answer(404, b"not found\n")

    def _answer(
        self, code: int, body: bytes, kind: str = "text/plain; charset=utf-8", policy: str = ""
    ) -> None:
        self._begin(code, kind)
        self.send_header("Content-Length", str(len(body)))
        if policy:
            self.send_header("Content-Security-Policy", policy)
        self.end_headers()
        self.wfile.write(body)

    def _begin(self, code: int, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")

    def _stream(self) -> None:
        self.server.streams.add(threading.current_thread())
        self._begin(200, "text/event-stream")
        self.end_headers()
        sent, since_s, over = b"", time.monotonic(), False
        while not over:
            over = self.server.closed.wait(POLL_S)
            message = self.server.message
            if message is not sent:
                self.wfile.write(b"data: %b\n\n" % message)
            elif time.monotonic() > since_s + ALIVE_S:
                self.wfile.write(b": still here\n\n")
            else:
                continue
            sent, since_s = message, time.monotonic()
        self.wfile.write(b"event: ended\ndata: {}\n\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Log no requests."""
