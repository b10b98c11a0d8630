"""JSON sent to a server: an error it answers with becomes a sentence."""

from __future__ import annotations

import json
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from evenstep.errors import UsageError

TIMEOUT_S = 10.0


def post(url: str, document: Any, *, purpose: str) -> None:
    """POST a document. Raises `UsageError` where it did not arrive."""
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise UsageError(f"{purpose} needs a URL that begins with http:// or https://, not {url!r}")
    body = json.dumps(document, allow_nan=False).encode()
    try:
        request = Request(url, body, {"Content-Type": "application/json"}, method="POST")
        with urlopen(request, timeout=TIMEOUT_S) as answer:
            answer.read()
    except HTTPError as error:
        raise UsageError(f"{url} refused {purpose}: {error.code} {error.reason}") from error
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise UsageError(f"cannot reach {url} for {purpose}: {reason}; check the URL") from error
