"""JSON sent to a server: an error it answers with becomes a sentence."""

from __future__ import annotations

import base64
import json
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import Request, urlopen

from evenstep.errors import UsageError

TIMEOUT_S = 10.0


def post(url: str, document: Any, *, purpose: str) -> None:
    """POST a document. Raises `UsageError` where it did not arrive."""
    parts, place = checked(url, purpose), redacted_url(url)
    headers = {"Content-Type": "application/json"}
    if parts.username is not None:  # urllib would take it for a part of the host
        given = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(given.encode()).decode()}"
        url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    body = json.dumps(document, allow_nan=False).encode()
    try:
        request = Request(url, body, headers, method="POST")
        with urlopen(request, timeout=TIMEOUT_S) as answer:
            answer.read()
    except HTTPError as error:
        raise UsageError(f"{place} refused {purpose}: {error.code} {error.reason}") from None
    except (URLError, HTTPException, OSError, ValueError) as error:
        reason = str(getattr(error, "reason", None) or error).replace(url, place)
        raise UsageError(f"cannot reach {place} for {purpose}: {reason}; check the URL") from None


def checked(url: str, purpose: str) -> SplitResult:
    """The parts of a URL that something can be sent to. Raises `UsageError`."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound or not url.isascii() or not url.isprintable() or " " in url:
        raise UsageError(
            f"{purpose} needs a URL that begins with http:// or https:// and has no spaces, not "
            f"{redacted_url(url)!r}"
        )
    return parts


def redacted_url(url: str) -> str:
    """A URL as messages may show it: without user, password, query and path, which hold secrets."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "what was given"
    return f"{parts.scheme}://{parts.hostname}{port}" if parts.hostname else "what was given"
