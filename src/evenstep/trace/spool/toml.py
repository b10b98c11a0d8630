"""TOML that a person writes: small, and no deeper than a person nests."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from evenstep.errors import ConfigError

MOST_BYTES = 1 << 18
#: More dots than a name has: the standard parser takes quadratic time and memory for them.
_DEEP = re.compile(r"""(?<![\w"'-])(?:[\w"'-]{1,200}[ \t]*\.[ \t]*){32}""")


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a file. Raises OSError, and `ConfigError` for what is no TOML of this kind."""
    if path.exists() and not path.is_file():  # a pipe would never end
        raise ConfigError(f"{path} is no plain file; name one")
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{path} has more than {MOST_BYTES} bytes; settings take a few")
    try:
        return parse_toml(data.decode())
    except (ValueError, RecursionError) as error:
        said = "it is nested too deep" if isinstance(error, RecursionError) else error
        raise ConfigError(f"{path} is not TOML: {said}") from error


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a text. Raises ValueError, or RecursionError where brackets nest too deep."""
    reader: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    if _DEEP.search(text):
        raise ValueError("a name has too many parts")
    found: dict[str, Any] = reader.loads(text)
    return found
