"""The exceptions that evenstep raises on purpose.

EvenstepError
├── ConfigError        a setting has an invalid value; the message names the setting
├── TraceError         a run folder or a spool cannot be used
│   ├── LayoutError    written by another version of the record layout
│   └── SpoolError     a spool cannot be created, or is truncated or foreign
├── UsageError         the command line asks for something that does not exist or does not fit
├── MissingExtra       an optional dependency is needed; the message says what to install
└── SourceUnavailable  a source of measurements gives nothing here (see `host.sources`)

Each message is one sentence: what, where, and how to mend it. The command line prints it and
exits 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class EvenstepError(Exception):
    """An error with an explanation for the user; never a defect of evenstep."""


class ConfigError(EvenstepError, ValueError):
    """A setting has an invalid value."""


class TraceError(EvenstepError):
    """A run folder or a spool cannot be used."""


class LayoutError(TraceError):
    """The file was written by another version of the record layout."""


class SpoolError(TraceError):
    """A spool cannot be created, or is truncated or foreign."""


class UsageError(EvenstepError):
    """The command line asks for something that does not exist or does not fit."""


class MissingExtra(EvenstepError, ImportError):  # noqa: N818 - it names what is missing
    """An optional dependency is needed for what was asked."""

    def __init__(self, package: str, *, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs {package}, which is not installed; "
            f'install it with: pip install "evenstep[{extra}]"'
        )


def nothing_read(limits: Iterable[str], otherwise: str, mend: str = "") -> TraceError:
    """The error of an input of which all was left out, as `limits` tells, or had nothing in it."""
    reasons = "; ".join(limit.removeprefix("left out: ") for limit in limits)
    return TraceError(f"nothing to read: {reasons or otherwise}{mend}")


@contextmanager
def refuse_as(kind: type[EvenstepError], what: str, mend: str = "") -> Iterator[None]:
    """Raise an error of the system as `kind`, saying what cannot be done, why, and what helps."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror}{mend}") from error
