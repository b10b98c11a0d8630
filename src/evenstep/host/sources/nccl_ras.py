"""Status of NCCL's reliability service (RAS), read as JSON once in a while.

Every process of a job with NCCL 2.24 or newer answers on a port of its node (28028, or that of
NCCL_RAS_ADDR) for all processes. The protocol is lines of text: the client sends its version, sets
the format (JSON since 2.28) and asks for the status, after which the server closes. One process of
each node asks: the one whose local rank is 0.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from evenstep.host.sources.source import Reading, Source, SourceUnavailable
from evenstep.trace.spool.layout import HOST_DEVICE

PORT = 28028
PROTOCOL = 2
TIMEOUT_S = 2.0
MOST_BYTES = 16 << 20  # of an answer
NAMED = 8  # ranks listed in a sentence
EVERY = 10  # rounds of the sampler between two requests


class RasError(Exception):
    """The service does not answer, or not as it should."""


class RasStatus(NamedTuple):
    """The service's status of all communicators together."""

    communicators: int
    ranks: int
    missing: tuple[str, ...]  # ranks that do not answer: "rank 3 on gpu012"
    failing: tuple[str, ...]  # ranks with an error, or being aborted
    behind: tuple[str, ...]  # ranks with fewer calls: "rank 3 on gpu012: 9 AllReduce of 12"

    def in_words(self) -> str:
        """Which ranks do not answer and which fail; "" if none."""
        parts = (("does not answer", self.missing), ("fails", self.failing))
        return "; ".join(f"{', '.join(who[:NAMED])} {what}" for what, who in parts if who)


def address(environ: Mapping[str, str]) -> tuple[str, int]:
    """Where the service of this node listens."""
    given = environ.get("NCCL_RAS_ADDR", "")
    host, _, port = given.rpartition(":")
    return host.strip("[]") or "localhost", int(port) if port.isdecimal() else PORT


def ask(place: tuple[str, int], timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """The service's status. Raises `RasError` where there is none, or no JSON."""
    try:
        with socket.create_connection(place, timeout_s) as connection:
            stream = connection.makefile("rwb")
            _say(stream, f"CLIENT PROTOCOL {PROTOCOL}", "SERVER PROTOCOL")
            _say(stream, f"TIMEOUT {int(timeout_s)}", "OK")
            _say(stream, "SET FORMAT json", "OK")
            stream.write(b"VERBOSE STATUS\n")
            stream.flush()
            answer = json.loads(stream.read(MOST_BYTES))
    except (OSError, ValueError) as error:
        raise RasError(f"NCCL's service at {place[0]}:{place[1]}: {error}") from error
    if not isinstance(answer, dict):
        raise RasError(f"NCCL's service at {place[0]}:{place[1]} gives no object")
    return answer


def _say(stream: Any, line: str, expected: str) -> None:
    stream.write(line.encode() + b"\n")
    stream.flush()
    answer = stream.readline(4096).decode("utf-8", "replace")
    if not answer.upper().startswith(expected):
        raise ValueError(f"{line!r} is answered {answer.strip()!r}")


def summarize(status: Mapping[str, Any]) -> RasStatus:
    """Summarize the service's answer; what it does not hold counts as healthy."""
    communicators = [each for each in status.get("communicators") or () if isinstance(each, dict)]
    ranks = [rank for each in communicators for rank in _objects(each, "ranks")]
    missing = [
        _name_rank(rank) for each in communicators for rank in _objects(each, "missing_ranks")
    ]
    failing = [_name_rank(rank) for rank in ranks if _fails(rank.get("status") or {})]
    behind = [text for each in communicators for text in _behind(_objects(each, "ranks"))]
    found = (tuple(dict.fromkeys(names)) for names in (missing, failing, behind))
    return RasStatus(len(communicators), len(ranks), *found)


def _objects(of: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    return [each for each in of.get(name) or () if isinstance(each, dict)]


def _fails(status: Mapping[str, Any]) -> bool:
    """`init_state` and `async_error` are results of NCCL: 0 is success, 7 in progress."""
    results = (status.get("init_state", 0), status.get("async_error", 0))
    return any(result not in (0, 7) for result in results) or bool(status.get("abort_flag"))


def _behind(ranks: list[dict[str, Any]]) -> list[str]:
    """Ranks of a communicator that have called an operation less often than another."""
    told = []
    names = dict.fromkeys(name for rank in ranks for name in rank.get("collective_counts") or {})
    for name in names:
        counts = [int((rank.get("collective_counts") or {}).get(name, 0)) for rank in ranks]
        most, pairs = max(counts), zip(ranks, counts, strict=True)
        told += [f"{_name_rank(rank)}: {n} {name} of {most}" for rank, n in pairs if n < most]
    return told


def _name_rank(rank: Mapping[str, Any]) -> str:
    return f"rank {rank.get('rank', '?')} on {rank.get('host', '?')}"


class NcclRas(Source):
    """How many ranks are missing, failing and behind, as NCCL knows it."""

    name = "nccl.ras"

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self.latest: RasStatus | None = None
        self._address = address(environ)
        self._leads = environ.get("LOCAL_RANK", "0") == "0"
        self._enabled = environ.get("NCCL_RAS_ENABLE", "1") != "0"
        self._round = 0

    def open(self) -> None:
        if not self._enabled:
            raise SourceUnavailable("NCCL_RAS_ENABLE is 0")
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is None or not cuda.is_initialized():
            raise SourceUnavailable("the job does not use CUDA", may_come=True)
        if not self._leads:
            raise SourceUnavailable("another rank of this node asks NCCL")
        self._ask()

    def read(self) -> list[Reading]:
        """Ask in every `EVERY`-th round; a rank may be behind only for a moment."""
        self._round += 1
        if self._round % EVERY != 1:
            return []
        now = self._ask()
        counts = (len(now.missing), len(now.failing), len(now.behind))
        return [
            (f"nccl.ranks_{name}_count", HOST_DEVICE, float(count))
            for name, count in zip(("missing", "failing", "behind"), counts, strict=True)
        ]

    def _ask(self) -> RasStatus:
        try:
            self.latest = summarize(ask(self._address))
        except RasError as error:
            raise SourceUnavailable(str(error), may_come=True) from error
        return self.latest
