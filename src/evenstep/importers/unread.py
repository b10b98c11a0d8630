"""What a file that no format recognises is, by `unread.toml`, and what to give instead of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from evenstep.importers.content import SourceFile
from evenstep.importers.steps.step_tables import duration_of
from evenstep.importers.tables import columns_of, table_file
from evenstep.trace.spool.files import read_toml

_TABLES: dict[str, Any] = read_toml(Path(__file__).with_suffix(".toml"))
_MENDS = _TABLES["mends"]


def reason(source: SourceFile) -> str:
    """One sentence: what the file is, if that is known, and what to do; "" of an unknown file."""
    if source.path.suffix.lower() in (".nsys-rep", ".qdrep"):
        return f"{source.path} is a report of Nsight Systems: {_MENDS['nsys']}"
    for known in _TABLES["known"]:
        if re.search(known["head"].encode(), source.head):
            return f"{source.path} is {known['what']}: {known['mend'].format(**_MENDS)}"
    file = table_file(source)
    named = columns_of(file, "steps") if file else {}
    if file and (named["rank"] or named["step"]):
        names = ", ".join(name[:40] for name in file.names[:8])
        timed = any(map(duration_of, file.names))
        lacks = "of steps or times" if timed else "that is known to be durations"
        mend = f"name it, for example, {'step' if timed else 'step_time_ms'}"
        return f"{source.path} is a table ({names}) without a column {lacks}: {mend}"
    if b"\0" in source.head or not re.search(rb"(?i)\b(?:loss|epoch|train|step|rank)", source.head):
        return ""
    mend = "log these, or give a table with columns rank, step and step_time_ms"
    return f"{source.path} has no two steps with times that are known: {mend}"
