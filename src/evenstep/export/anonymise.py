"""A trace without host names, paths and user names, so that what is made of it can be shown around.

Names are replaced where they stand (hosts are numbered: node-0, node-1 …), and again in every text
made later: what a rank, a log or a message may have put into words is found by the names that the
trace knows of, and paths and addresses by their form.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from evenstep.trace.trace import Group, RankInfo, Trace

#: Of a run's facts: what says who ran what where, and no number is made of.
PRIVATE = frozenset(
    {"command", "cwd", "hostname", "boot_id", "pid", "python", "environment", "run_id", "user"}
    | {"path", "paths", "source", "sources", "file", "files", "folder"}
)
_HOST_KEYS = ("hostname", "MASTER_ADDR")
_USER_KEYS = ("USER", "LOGNAME", "USERNAME", "SLURM_JOB_USER")
_HOME = re.compile(r"/(?:home|Users|users|u)/([\w.-]+)")
_ADDRESS = re.compile(
    r"[\w.+-]+@[\w-]+\.[\w.-]+|(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"
    r"|(?<![\w:])(?:[0-9a-fA-F]{1,4}:){3,7}:?[0-9a-fA-F]{1,4}(?![\w:])"
)
_PATH = re.compile(
    r"(?<![\w/<.])(?:~[\w.-]*|\.{1,2})?/(?!/)[^\s'\"`,;:()\[\]<>|]+"  # /a/b, ~/a, ../a
    r"|(?<!\w)[A-Za-z]:\\[^\s'\"`,;()\[\]<>|]+"
    r"|\b\w+://[^\s'\"`,;()\[\]<>|]+"
    r"|(?<![\w/])[\w.-]+(?:/[\w.-]+)*\.(?:spool|py|sh|json|csv|parquet|sqlite|log|pt|gz)\b"
)
_LEAST = 3  # letters: a shorter user's name is replaced as a word that stands alone, too
_ORDINARY = frozenset({"root", "user", "rank", "node", "run", "data", "training", "localhost"})


@dataclass(slots=True, frozen=True)
class Scrubber:
    """What replaces what: names known to be private by their stand-ins, longest first."""

    known: Mapping[str, str]
    pattern: re.Pattern[str] | None

    def text(self, value: str) -> str:
        """The text without private names, paths and addresses."""
        value = _PATH.sub("(path)", value)
        value = _ADDRESS.sub("(address)", value)
        if self.pattern is None:
            return value
        return self.pattern.sub(lambda match: self.known[match[0].lower()], value)

    def value(self, value: Any, *, without: Container[str] = ()) -> Any:
        """The same of everything inside a value; mappings lose the keys they are to be without."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                self.value(key): self.value(item, without=without)
                for key, item in value.items()
                if key not in without
            }
        if isinstance(value, (list, tuple)):
            return type(value)(self.value(item, without=without) for item in value)
        if is_dataclass(value) and not isinstance(value, type):
            inner = {item.name: self.value(getattr(value, item.name)) for item in fields(value)}
            return replace(value, **inner)
        return value


def scrubber(trace: Trace, paths: Iterable[str | PurePath] = ()) -> Scrubber:
    """Everything private that the trace names, and the paths it was read from."""
    hosts = _hosts(trace)
    known = {name.lower(): f"node-{at}" for at, names in enumerate(hosts) for name in names}
    for name in sorted(_users(trace, paths)):
        known.setdefault(name.lower(), "(user)")
    for name in sorted(_files(trace, paths), key=len, reverse=True):
        known.setdefault(name.lower(), "(path)")
    words = sorted(known, key=lambda word: (-len(word), word))
    if not words:
        return Scrubber(known, None)
    joined = "|".join(re.escape(word) for word in words)
    return Scrubber(known, re.compile(rf"(?<![^\W_])(?:{joined})(?![^\W_])", re.IGNORECASE))


def _hosts(trace: Trace) -> list[list[str]]:
    """Names of each host, its long and its short one: ranks' nodes first, then any others named."""
    names = [*trace.nodes, *(str(name) for name in _named(trace.run, _HOST_KEYS))]
    found: dict[str, list[str]] = {}
    for name in filter(None, names):
        short = name.partition(".")[0] if not name.replace(".", "").isdigit() else name
        known = found.setdefault(short.lower(), [])
        known += [each for each in (name, short) if each and each not in known]
    return list(found.values())


def _named(value: Any, keys: Sequence[str]) -> list[Any]:
    """What stands under these keys, however deep."""
    if not isinstance(value, Mapping):
        return []
    found = [value[key] for key in keys if value.get(key)]
    return found + [item for inner in value.values() for item in _named(inner, keys)]


def _users(trace: Trace, paths: Iterable[str | PurePath]) -> set[str]:
    texts = [*_strings(trace.run), *map(str, paths)]
    texts += [text for info in trace.ranks.values() for text in _strings(info.facts)]
    users = {name for text in texts for name in _HOME.findall(text)}
    users |= {str(name) for name in _named(trace.run, _USER_KEYS)}
    return {name for name in users if name and name.lower() not in _ORDINARY}


def _files(trace: Trace, paths: Iterable[str | PurePath]) -> set[str]:
    """Parts of the paths the run was started in and with, and where it was read from."""
    command = [str(word) for word in trace.run.get("command") or []]
    given = [word for word in command if "/" in word or "." in word]
    given += [str(trace.run.get("cwd") or ""), str(trace.run.get("run_id") or ""), *map(str, paths)]
    parts = {part for path in given for part in (*PurePath(path).parts, path)}
    return {part for part in parts if len(part) > _LEAST and part.lower() not in _ORDINARY}


def _strings(value: Any) -> list[str]:
    """All texts inside a value."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in _strings(item)]
    if isinstance(value, (list, tuple)):
        return [text for item in value for text in _strings(item)]
    return []


def anonymised(trace: Trace, paths: Iterable[Path] = ()) -> tuple[Trace, Scrubber]:
    """The trace with stand-ins for everything private, and what hides the rest; numbers stay.

    Diagnose this trace rather than the original, and pass the diagnosis through the scrubber.
    `paths` are where it was read from.
    """
    scrub = scrubber(trace, [each for path in paths for each in (path, path.absolute())])
    clocks = dict.fromkeys(info.clock for info in trace.ranks.values())
    boots = {clock: f"boot-{at}" for at, clock in enumerate(clocks)}
    ranks = {
        rank: replace(
            info,
            identity=_identity(info, scrub, boots[info.clock]),
            facts=scrub.value(info.facts, without=PRIVATE),
        )
        for rank, info in trace.ranks.items()
    }
    hidden = replace(
        trace,
        run={**scrub.value(trace.run, without=PRIVATE), "run_id": "anonymous"},
        ranks=ranks,
        groups=tuple(
            Group(each.uid, scrub.text(each.name), each.ranks, each.backend)
            for each in trace.groups
        ),
        names=tuple(scrub.text(name) for name in trace.names),
        limits=[scrub.text(limit) for limit in trace.limits],
    )
    return hidden, scrub


def _identity(info: RankInfo, scrub: Scrubber, boot: str) -> dict[str, Any]:
    kept = {key: value for key, value in info.identity.items() if key not in PRIVATE}
    host = scrub.known.get(info.node.lower(), "") if info.node else ""
    return {**scrub.value(kept), "hostname": host, "boot_id": boot}
