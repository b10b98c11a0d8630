"""A trace without host names, paths and user names, so that its reports can be shared.

Hosts become node-0, node-1 … in the trace, and again in every text derived from it: messages and
logs are searched for all names known from the trace, and for the patterns of paths and addresses.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from evenstep.trace.trace import Trace

#: Facts of a run that identify user, command or host, and that no computation needs.
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
    r"|(?<![\w:])(?:[0-9a-fA-F]{1,4}:)+(?::[0-9a-fA-F]{1,4})+(?![\w:])"  # fe80::1, shortened
)
_PATH = re.compile(
    r"(?<![\w/<.])(?:~[\w.-]*|\.{1,2})?/(?!/)[^\s'\"`,;:()\[\]<>|]+"  # /a/b, ~/a, ../a
    r"|(?<!\w)[A-Za-z]:\\[^\s'\"`,;()\[\]<>|]+"
    r"|\b\w+://[^\s'\"`,;()\[\]<>|]+"
    r"|(?<![\w/])[\w.-]+(?:/[\w.-]+)*\.(?:spool|py|sh|json|csv|parquet|sqlite|log|pt|gz)\b"
)
_LEAST = 3  # parts of paths up to this length are kept
_ORDINARY = frozenset({"root", "user", "rank", "node", "run", "data", "training", "localhost"})


@dataclass(slots=True, frozen=True)
class Scrubber:
    """Replaces private names (keys of `known`) by their stand-ins, longest first."""

    known: Mapping[str, str]
    pattern: re.Pattern[str]

    def text(self, value: str) -> str:
        """Replace private names, paths and addresses in a text."""
        value = _PATH.sub("(path)", value)
        value = _ADDRESS.sub("(address)", value)
        return self.pattern.sub(lambda match: self.known[match[0].lower()], value)

    def value(self, value: Any, *, without: Container[str] = ()) -> Any:
        """Replace them everywhere in a value; drop the keys `without` from mappings."""
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
    """Collect the private names in a trace, and in the paths it was read from."""
    hosts = _hosts(trace)
    known = {name.lower(): f"node-{at}" for at, names in enumerate(hosts) for name in names}
    for name in sorted(_users(trace, paths)):
        known.setdefault(name.lower(), "(user)")
    for name in sorted(_files(trace, paths), key=len, reverse=True):
        known.setdefault(name.lower(), "(path)")
    words = sorted(known, key=lambda word: (-len(word), word))
    joined = "|".join(map(re.escape, words)) or "(?!)"  # which matches nothing
    return Scrubber(known, re.compile(rf"(?<![^\W_])(?:{joined})(?![^\W_])", re.IGNORECASE))


def _hosts(trace: Trace) -> list[list[str]]:
    """Return full and short names of each host: nodes of ranks first, then other hosts."""
    names = [*trace.nodes, *(text for key, text in _texts(trace.run) if key in _HOST_KEYS)]
    found: dict[str, list[str]] = {}
    for name in filter(None, names):
        short = name.partition(".")[0] if not name.replace(".", "").isdigit() else name
        known = found.setdefault(short.lower(), [])
        known += [each for each in (name, short) if each and each not in known]
    return list(found.values())


def _users(trace: Trace, paths: Iterable[str | PurePath]) -> set[str]:
    texts = [*_texts(trace.run), *(("", str(path)) for path in paths)]
    texts += [text for info in trace.ranks.values() for text in _texts(info.facts)]
    users = {name for _, text in texts for name in _HOME.findall(text)}
    users |= {text for key, text in _texts(trace.run) if key in _USER_KEYS}
    return {name for name in users if name and name.lower() not in _ORDINARY}


def _files(trace: Trace, paths: Iterable[str | PurePath]) -> set[str]:
    """Return parts of the command's paths, the working directory, and the trace's paths."""
    command = [str(word) for word in trace.run.get("command") or []]
    given = [word for word in command if "/" in word or "." in word]
    given += [str(trace.run.get("cwd") or ""), str(trace.run.get("run_id") or ""), *map(str, paths)]
    parts = {part for path in given for part in (*PurePath(path).parts, path)}
    return {part for part in parts if len(part) > _LEAST and part.lower() not in _ORDINARY}


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the texts at any depth, each with the nearest key above it."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts(item, str(name))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item, key)


def anonymise_trace(trace: Trace, paths: Iterable[Path] = ()) -> tuple[Trace, Scrubber]:
    """The trace with stand-ins for private names, and the scrubber of its diagnosis; numbers are
    unchanged. `paths` are those the trace was read from."""
    scrub = scrubber(trace, [each for path in paths for each in (path, path.absolute())])
    clocks = dict.fromkeys(info.clock for info in trace.ranks.values())
    boots = {clock: f"boot-{at}" for at, clock in enumerate(clocks)}
    ranks = {
        rank: replace(
            info,
            identity={
                **scrub.value(info.identity, without=PRIVATE),
                "hostname": scrub.known.get(info.node.lower(), "") if info.node else "",
                "boot_id": boots[info.clock],
            },
            facts=scrub.value(info.facts, without=PRIVATE),
        )
        for rank, info in trace.ranks.items()
    }
    hidden = replace(
        trace,
        run={**scrub.value(trace.run, without=PRIVATE), "run_id": "anonymous"},
        ranks=ranks,
        groups=tuple(replace(each, name=scrub.text(each.name)) for each in trace.groups),
        names=tuple(scrub.text(name) for name in trace.names),
        limits=[scrub.text(limit) for limit in trace.limits],
    )
    return hidden, scrub
