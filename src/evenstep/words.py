"""Numbers, ranks and names as text for people: the only home of their format.

Three significant digits and a unit; None and NaN are "unknown".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from evenstep.trace.frames import called_there, own_place
from evenstep.trace.ranks import format_ranks, parse_ranks
from evenstep.trace.spool.folder import Meeting
from evenstep.trace.spool.layout import Phase

UNKNOWN = "unknown"
RUNS_LISTED, NAMES_LISTED = 8, 4

#: Shares of a step in the order of charts, with their names.
SHARES: tuple[tuple[str, str], ...] = (
    ("compute", "compute"),
    ("exposed_communication", "communication"),
    ("wait", "wait"),
    ("input", "input"),
    ("other", "other"),
)

#: What a library is at, by its file.
_DOING = (
    ("utils/data/dataloader.py>", "waiting for its loader"),
    ("/subprocess.py>", "in a subprocess"),
    (
        "_dynamo/(convert|guards|variables)|fx/experimental/|_subclasses/|autograd/graph_",
        "compiling",
    ),
    ("_inductor/(compile_fx|graph|lowering|scheduler|codegen|async_compile)", "compiling"),
)

#: Units that read better as a sign, or as nothing.
_SIGNS = {"1": "", "factor": "×", "generation": "", "level": "", "p": ""}

_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


BEFORE_BACKWARD = "before backward (in forward, or in the script around it)"
BESIDE_BACKWARD = "outside backward and optimizer.step() (in your training loop or a forward)"
SOMEWHERE = "in the step (no phases tell where)"
IN_KERNELS = "in kernels"
IDLE_DEVICE = "with an idle device"
#: Places of an excess, to complete "… more".
PLACES = {
    Phase.INPUT: "waiting for input",
    Phase.FORWARD: "inside forward",
    Phase.BACKWARD: "inside backward",
    Phase.OPTIMIZER: "in the optimizer",
    Phase.CHECKPOINT: "writing checkpoints",
    Phase.EVALUATION: "in evaluation",
    Phase.SYNC: "blocked",
    Phase.OTHER: "in your training loop (outside forward, backward and the optimizer)",
}


def is_known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def number(value: float | None, unit: str = "", *, digits: int = 3) -> str:
    """Three significant digits, never an exponent, thousands grouped: 12,400 samples/s."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        text = "0"
    else:
        places = digits - 1 - math.floor(math.log10(abs(value)))
        text = f"{round(value, min(places, 9)):,.{min(max(places, 0), 9)}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    return f"{text} {unit}".rstrip()


def duration(value_ns: float | None, *, digits: int = 3) -> str:
    """A time in a suitable unit: 41.2 ms."""
    return _scale(value_ns, _TIMES, digits)


def size(size_bytes: float | None, *, digits: int = 3) -> str:
    """Bytes in a suitable decimal unit: 17.2 MB."""
    return _scale(size_bytes, _SIZES, digits)


def _scale(value: float | None, units: Sequence[tuple[float, str]], digits: int) -> str:
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    least = 1 - 0.5 * 10.0**-digits  # 999.6 µs rounds to 1,000 µs: that is 1 ms
    scale, unit = next((row for row in units if abs(value) >= least * row[0]), units[-1])
    return number(value / scale, unit, digits=digits)


def percent(share: float | None) -> str:
    """A share of one in percent: 61 %, 8.4 %, 0.04 %."""
    if share is None or not math.isfinite(share):
        return UNKNOWN
    value = 100 * share
    if value and abs(value) < 0.005:
        return "< 0.01 %"
    places = 0 if abs(value) >= 9.95 else 1 if abs(value) >= 0.95 else 2
    text = f"{value:.{places}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} %"


def interval(low: float | None, high: float | None) -> str:
    """A range of shares: (8 to 12 %); empty if an end is unknown, or both read alike."""
    if not (is_known(low) and is_known(high)) or percent(low) == percent(high):
        return ""
    return f"({percent(low).removesuffix(' %')} to {percent(high)})"


def measure(value: float | None, unit: str) -> str:
    """A number of evidence in its unit; nanoseconds and shares in a suitable one."""
    if unit == "ns":
        return duration(value)
    if unit in {"share", "fraction"}:
        return percent(value)
    sign = _SIGNS.get(unit, unit)
    return number(value, _single(sign) if value == 1 else sign)


def _single(unit: str) -> str:
    """The singular of a unit that counts things (ranks, retries); other units stay, as GB/s."""
    if "/" in unit:
        return unit
    if unit.endswith("ies"):
        return f"{unit[:-3]}y"
    return unit[:-1] if unit.endswith("s") and len(unit) > 2 else unit


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def plural(count: int, noun: str) -> str:
    """1 rank, 4 ranks."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def every(period: float) -> str:
    """How often what has a period of so many steps recurs: "every 10 steps"."""
    return f"every {period:.3g} steps" if period > 2.5 else "in every other step"


def ranks(numbers: Sequence[int]) -> str:
    """Such as "rank 7", "ranks 0, 1 and 8" or "ranks 0-3 and 8"; of many "…, 14 and 1,020 more"."""
    parts = [part for run in format_ranks(numbers).split(",") for part in _pair(run)]
    if len(parts) > RUNS_LISTED:
        named = len(parse_ranks(",".join(parts[:RUNS_LISTED])))
        shown = f"{', '.join(parts[:RUNS_LISTED])} and {len(set(numbers)) - named:,} more"
    else:
        shown = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {shown}"


def meeting(found: Meeting) -> str:
    """Who waits in `init_process_group`, say, how long, and for whom."""
    text = f"{ranks(found.waiting)} of {found.world:,} wait{'s' * (len(found.waiting) == 1)}"
    text += f" in {found.call} for {duration(1e9 * found.waited_s)}"
    if apart := meeting_apart(found.places):
        text += f"; {apart}"
    if not found.absent:
        return text
    verbs = ("has", "records") if len(found.absent) == 1 else ("have", "record")
    elsewhere = f" or {verbs[1]} elsewhere" if found.nodes > 1 else ""
    return f"{text}; {ranks(found.absent)} {verbs[0]} not come{elsewhere}"


def meeting_apart(places: Mapping[str, list[int]]) -> str:
    """Who meets the others elsewhere than most do (see `RunFolder.meeting_places`); "" if none."""
    if len(places) < 2:
        return ""
    each = sorted(places.items(), key=lambda found: (len(found[1]), found))
    (odd, few), (usual, most) = each[0], each[-1]
    verb = "meets" if len(few) == 1 else "meet"
    return f"{ranks(few)} {verb} the others at {odd}, {ranks(most)} at {usual}"


def _pair(run: str) -> list[str]:
    """A run of two ranks as two ranks; a longer run stays."""
    first, _, last = run.partition("-")
    return [first, last] if last and int(last) == int(first) + 1 else [run]


def some(names: Sequence[str]) -> str:
    """Names, only the first few of many: gpu01, gpu02, gpu03, gpu04 and 12 more."""
    shown = ", ".join(names[:NAMES_LISTED])
    more = len(names) - NAMES_LISTED
    return f"{shown} and {more:,} more" if more > 0 else shown


def ranges(steps: Sequence[Sequence[int]], *, most: int = 3) -> str:
    """Closed ranges of steps, only the first of many: 10-20, 31, 40, …"""
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in steps[:most]]
    return ", ".join(shown) + (", …" if len(steps) > most else "")


def cells(shares: Mapping[str, float | None], width: int) -> dict[str, int]:
    """Shares as whole cells of a bar, by largest remainder; `width` of them if shares sum to 1."""
    exact = {name: max(shares.get(name) or 0.0, 0.0) * width for name, _ in SHARES}
    whole = {name: int(value) for name, value in exact.items()}
    missing = round(min(sum(exact.values()), width)) - sum(whole.values())
    for name in sorted(exact, key=lambda name: whole[name] - exact[name])[: max(missing, 0)]:
        whole[name] += 1
    return whole


def printable(text: object) -> str:
    """Text from a trace without control characters: it cannot move a terminal's cursor."""
    shown = (one if one.isprintable() else " " if one.isspace() else "\ufffd" for one in str(text))
    return "".join(shown)


def seen_at(frames: Sequence[str]) -> str:
    """`own_place`, and where the package and what the library was that it called: "train.py:7 fit,
    in site-packages/timm/models/vit.py:9 forward, compiling"."""
    place, package = own_place(frames), called_there(frames)
    called = takewhile(lambda frame: frame != place, frames)
    doing = [text for frame in called for file, text in _DOING if re.search(file, frame)]
    return ", ".join([place, *([f"in {package}"] if package else ()), *doing[-1:]])


def seen_by(stacks: Iterable[tuple[int, Sequence[str]]]) -> str:
    """Where ranks were, each with its frames: two places with their ranks where the script's tells
    them apart, or at least `seen_at` does; else that of all."""
    stacks = list(stacks)
    for place_of in (own_place, seen_at):
        places: dict[str, list[int]] = {}
        for rank, frames in stacks:
            places.setdefault(place_of(frames), []).append(rank)
        if len(places) > 1:
            return ", ".join(f"{one} ({ranks(those)})" for one, those in [*places.items()][:2])
    return next(iter(places), "")


#: Where C++ raised a message, and of an `enforce fail` the condition: the rest says what happened.
_RAISED_AT = re.compile(r"^\[(?:enforce fail at \S+\] .*?\.|\S+\.[ch](?:[cu]|pp)?:\d+\]) (?=\S)")


def how_ended(facts: Mapping[str, Any], *, brief: bool = False) -> str:
    """How a rank ended, by its own facts and its launcher's: "SIGKILL", "exit code 3". An exception
    has its place and message unless `brief`."""
    end, raised = facts.get("ended") or {}, facts.get("raised") or {}
    if name := end.get("signal"):
        kills = name == "SIGKILL" and end.get("out_of_memory_kills")
        text = f"{name}: the kernel was out of memory" if kills else str(name)
    elif "exit_code" in end:
        text = f"exit code {end['exit_code']}"
    else:
        text = "the end of its script" if "closed" in facts else "an end without a word"
    left = facts.get("left")
    if left and left["by"] == (name or left["by"]) and not brief:
        by = f" by {left['by']}" * bool(left["by"] and not name)
        text += f"{by} at {seen_at(left['frames'])}"
    if raised:
        text = str(raised["type"])
    text += f" {end['before']}" if end.get("before") else ""
    if brief:
        return text
    if raised:
        text += f" at {seen_at(raised['frames'])}" if raised.get("frames") else ""
        told = _RAISED_AT.sub("", raised.get("message", "").strip())
        text += f": {told}" if told else ""
    if apart := end.get("apart"):
        text = f"{apart}: {text}"
    return "; ".join([text, *end.get("xid", ())[-1:], *end.get("nccl_warnings", ())[-1:]])


_RELATIVE = r"(?<! of )(?:until|while|where|(?:of )?which|because|so) "
#: Where a sentence may end: before its last clauses, else before its last phrases. A part of a list
#: behind a colon reads like all of it: there only relative clauses are left out.
_CLAUSES = re.compile(rf"(?<=[,;:]) | (?={_RELATIVE})| (?=than the other(?: ranks|s'))")
_PHRASES = re.compile(r" (?=(?:in|for|with|by|after|before) )")
_LEADS_ON = re.compile(r"[,;:]$|,? (?:at|by|for|from|in|of|on|to|with)$")  # to what is left out
FEWEST_WORDS = 4  # that say something


def shorter_forms(text: str) -> tuple[list[str], list[str]]:
    """The forms of a sentence that still read as one, longest first: itself, without its brackets,
    without its last clauses; and those that lose phrases of a clause."""
    bare = re.sub(r"\s+\([^()]+\)", "", text)

    def heads(ends: Iterable[re.Match[str]]) -> list[str]:
        found = []
        for end in ends:
            head, rest = bare[: end.start()], bare[end.end() :]
            listed = head.endswith(",") and ":" in head and not re.match(_RELATIVE, rest)
            condition = re.search(r"(?:^|[;:] )(?:if|where) [^;:]+,$", head)  # of what is left out
            if not (listed or condition) and count_words(head) >= FEWEST_WORDS:
                found.append(_LEADS_ON.sub("", head))
        return found[::-1]

    return [text, bare, *heads(_CLAUSES.finditer(bare))], heads(_PHRASES.finditer(bare))


def shorten(text: str, most: int) -> str:
    """A sentence of at most `most` words: the longest of its `shorter_forms` that fits, else the
    first words of the shortest that loses no phrase."""
    whole, parts = shorter_forms(text)
    cut = (f"{' '.join(whole[-1].split()[:most])} …",)
    return next(form for form in (*whole, *parts, *cut) if count_words(form) <= most)


def count_words(text: str) -> int:
    """The words of a text that have a letter: numbers and signs are none."""
    return sum(any(map(str.isalpha, word)) for word in text.split())
