"""Chrome's JSON of trace events, decoded piece by piece while it is read.

A profile may exceed memory once every event is an object. So the text is cut between two events,
half a megabyte at a time. Finding the cut needs no parser of our own: if a piece that begins at an
event is valid JSON when put in brackets, it also ends between two events.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NoReturn

import msgspec

from evenstep.errors import TraceError
from evenstep.importers.compression import Stream

PIECE_BYTES = 512 << 10  # fits the processor's cache, and long compared with an event
WINDOW_BYTES = 1 << 16  # at the end of a piece, searched for its last boundary
PREAMBLE_BYTES = 256 << 20  # more than any profile has before its events
LONGEST_EVENT_BYTES = 8 << 20  # more than any profiler writes of one event
MOST_CONTAINERS = 1 << 17  # in a field beside the events: lists of ranks of every group
MOST_DECOYS = 64  # lists of the same name inside other fields, each parsed up to there once more

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{)")
_PLACE = re.compile(r"\(byte (\d+)\)")
_INDEX = re.compile(r"`\$(?:\.traceEvents)?\[(\d+)\]\.?(.*)`")
#: Microseconds since 1970 with a fraction have more digits than a float64.
_FINE = re.compile(rb'"ts"\s*:\s*\d{15,}\.\d*[1-9]')
#: What C++ prints for infinity and NaN: not JSON, but profilers write it.
_NOT_A_NUMBER = re.compile(rb"(?<=[:\[,\s])-?(?:inf(?:inity)?|nan)(?=[\s,}\]])", re.IGNORECASE)


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that are used, with values of any type."""

    correlation: Any = -1
    external: Any = msgspec.field(name="External id", default=-1)
    device: Any = -1
    stream: Any = -1
    collective: Any = msgspec.field(name="Collective name", default=None)
    dtype: Any = None
    elements_in: Any = msgspec.field(name="In msg nelems", default=None)
    elements_out: Any = msgspec.field(name="Out msg nelems", default=None)
    group_size: Any = msgspec.field(name="Group size", default=None)
    group_name: Any = msgspec.field(name="Process Group Name", default=None)
    group_description: Any = msgspec.field(name="Process Group Description", default=None)
    group_ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    rank_start: Any = msgspec.field(name="Global rank start", default=None)
    rank_stride: Any = msgspec.field(name="Global rank stride", default=None)
    sequence: Any = msgspec.field(name="Seq", default=None)
    source: Any = msgspec.field(name="Src Rank", default=None)
    destination: Any = msgspec.field(name="Dst Rank", default=None)
    root: Any = msgspec.field(name="Rank", default=None)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b"null"))
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw(b"null"))
    inputs: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=msgspec.Raw(b"null"))


class TraceEvent(msgspec.Struct, gc=False):
    """One trace event. Times in µs."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: float = 0.0
    dur: float = 0.0
    args: Args | None = None


class FineEvent(TraceEvent, gc=False):
    """One trace event whose time has more digits than a float64 holds."""

    ts: Decimal = Decimal(0)  # type: ignore[assignment]


def _decoders(event: type[TraceEvent]) -> tuple[Any, Any]:
    """Decoders of a list of events, and of an object that holds one."""
    events = list[event]  # type: ignore[valid-type]
    whole = msgspec.defstruct("Whole", [("traceEvents", events, [])])
    return msgspec.json.Decoder(events), msgspec.json.Decoder(whole)


class _Fields(msgspec.Struct):
    """The fields beside the events that are used."""

    baseTimeNanoseconds: msgspec.Raw = msgspec.Raw()  # noqa: N815 - the format's own names
    distributedInfo: msgspec.Raw = msgspec.Raw()  # noqa: N815
    host_name: msgspec.Raw = msgspec.Raw()


_PLAIN, _EXACT = _decoders(TraceEvent), _decoders(FineEvent)
_FIELDS = msgspec.json.Decoder(_Fields)
_VALUE = msgspec.json.Decoder()
_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_BEFORE = b'{"traceEvents":['


class TraceEvents:
    """The events of a file, in lists; `header` holds the other fields after the last event.

    Raises `TraceError` with the byte where the text is not JSON, or the event and the field with a
    value of the wrong type.
    """

    def __init__(self, stream: Stream) -> None:
        self.header: dict[str, Any] = {}
        self._stream = stream
        self._text = b""
        self._offset = 0  # of `_text` in the decompressed file
        self._count = 0  # events handed out
        self._ended = False
        self._decoys = 0  # places tried as the beginning of the events
        self._decoders: tuple[Any, Any] = _PLAIN

    def __iter__(self) -> Iterator[list[TraceEvent]]:
        bare = self._find_events()
        self._decoders = _EXACT if _FINE.search(self._text, 0, WINDOW_BYTES) else _PLAIN
        size = PIECE_BYTES
        while True:
            self._fill(size)
            if self._ended:
                break
            events = self._piece()
            if events is None and len(self._text) >= LONGEST_EVENT_BYTES:
                raise TraceError(
                    f"{self._stream.path}: event {self._count} of traceEvents is damaged, or has "
                    f"more than {LONGEST_EVENT_BYTES} bytes; export it again"
                )
            size = PIECE_BYTES if events is not None else 2 * len(self._text)
            if events is not None:
                yield events
                self._count += len(events)
        yield self._bare_end() if bare else self._end()

    def _fill(self, size: int) -> None:
        parts, have = [self._text], len(self._text)
        while have < size and not self._ended:
            more = self._stream.read(min(size - have, PIECE_BYTES))
            self._ended = not more
            have += len(more)
            parts.append(more)
        self._text = b"".join(parts)

    def _drop(self, count: int) -> None:
        self._text = self._text[count:]
        self._offset += count

    def _find_events(self) -> bool:
        """Read up to the first event. Returns True if the file is a bare list of events."""
        self._fill(WINDOW_BYTES)
        if self._text.startswith(b"\xef\xbb\xbf"):
            self._drop(3)
        self._drop(len(self._text) - len(self._text.lstrip()))
        if self._text.startswith(b"["):
            self._drop(1)
            return True
        searched = 0
        while not self._found_after(searched):
            if self._ended or len(self._text) > PREAMBLE_BYTES:
                self._decode(_FIELDS, self._text, 0)
                raise TraceError(
                    f'{self._stream.path} has no list "traceEvents"; export it with the '
                    "profiler's export_chrome_trace"
                )
            searched = max(0, len(self._text) - 256)
            self._fill(2 * len(self._text) + PIECE_BYTES)
        return False

    def _found_after(self, begin: int) -> bool:
        """Whether the events begin in the text; if so, keep the fields before them."""
        for found in _EVENTS.finditer(self._text, begin):
            self._decoys += 1
            if self._decoys > MOST_DECOYS:
                raise TraceError(
                    f'{self._stream.path} holds too many lists "traceEvents", of which none is the '
                    "profile's; export it again"
                )
            fields, error = self._attempt(_FIELDS, self._text[: found.end()] + b"]}")
            if error is not None:  # the key is inside another field
                continue
            self._take_in(fields)
            self._drop(found.end())
            return True
        return False

    def _take_in(self, fields: _Fields) -> None:
        """Keep the fields beside the events."""
        for key in fields.__struct_fields__:
            text = bytes(getattr(fields, key))
            if text and text.count(b"[") + text.count(b"{") <= MOST_CONTAINERS:
                self.header[key] = self._decode(_VALUE, text, 0)

    def _piece(self) -> list[TraceEvent] | None:
        """Events up to the last boundary in the text; None if more text is needed to find one."""
        cut = self._last_boundary()
        if cut is None:
            return None
        body = b"[" + self._text[:cut].rstrip().removesuffix(b",") + b"]"
        events, error = self._attempt(self._decoders[0], body)
        if error is not None:
            place = _place(error)
            if place is None or place >= len(self._mended) - 1 or "trailing" in str(error):
                return None  # the boundary may be inside an event
            self._malformed(error, -1)
        self._drop(cut)
        found: list[TraceEvent] = events
        return found

    def _last_boundary(self) -> int | None:
        window = WINDOW_BYTES
        while True:
            begin = max(0, len(self._text) - window)
            cuts = [match.end() for match in _BOUNDARY.finditer(self._text, begin)]
            if cuts:
                return cuts[-1]
            if not begin:
                return None
            window *= 4

    def _bare_end(self) -> list[TraceEvent]:
        """The last events of a bare list; its bracket may be missing, as the format allows."""
        text = self._text.rstrip()
        if not text.endswith(b"]"):
            text = text.removesuffix(b",") + b"]"
        events: list[TraceEvent] = self._decode(self._decoders[0], b"[" + text, -1)
        return events

    def _end(self) -> list[TraceEvent]:
        """The last events of an object, and its other fields."""
        text = _BEFORE + self._text
        rest = self._decode(self._decoders[1], text, -len(_BEFORE))
        self._take_in(self._decode(_FIELDS, self._mended, -len(_BEFORE)))
        return list(rest.traceEvents)

    def _decode(self, decoder: Any, text: bytes, shift: int) -> Any:
        """Decode text that begins `shift` bytes from the start of `_text`."""
        found, error = self._attempt(decoder, text)
        if error is not None:
            self._malformed(error, shift)
        return found

    def _attempt(self, decoder: Any, text: bytes) -> tuple[Any, Exception | None]:
        """The value of a text, repaired if that makes it JSON, or the error."""
        failure: Exception | None = None
        text = text.replace(b'"external id"', b'"External id"')  # of kernels up to torch 1.12
        for mend in (bytes, _legible):
            self._mended = mend(text)
            if failure is not None and self._mended == text:
                break
            try:
                return decoder.decode(self._mended), None
            except msgspec.ValidationError as error:
                self._mistyped(error)
            except _NO_JSON as error:
                failure = error
        return None, failure

    def _mistyped(self, error: Exception) -> NoReturn:
        found = _INDEX.search(str(error))
        event = self._count + int(found[1]) if found else self._count
        field = f", {found[2]!r}" if found and found[2] else ""
        what = str(error).partition(" - at ")[0]
        what = what[:1].lower() + what[1:].replace("`", "")
        raise TraceError(
            f"{self._stream.path}: event {event} of traceEvents{field}: {what}; "
            "it was not written by torch.profiler, or was changed since"
        ) from error

    def _malformed(self, error: Exception, shift: int) -> NoReturn:
        place = _place(error)
        at = self._offset + shift + (len(self._mended) if place is None else place)
        what = str(error).removeprefix("JSON is malformed: ").partition(" (byte")[0]
        if place is None and "truncated" in what:
            what = "the file ends in the middle of an event"
        raise TraceError(
            f"{self._stream.path} is not JSON at byte {max(at, 0)}: {what}; "
            "it was cut short or damaged, export it again"
        ) from error


def _place(error: Exception) -> int | None:
    """The byte that an error names."""
    found = _PLACE.search(str(error))
    return int(found[1]) if found else None


def _legible(text: bytes) -> bytes:
    """The text with harmless faults repaired: bytes that are not UTF-8, infinities and NaN."""
    return _NOT_A_NUMBER.sub(_as_null, text.decode("utf-8", "replace").encode())


def _as_null(found: re.Match[bytes]) -> bytes:
    """JSON of the same length that is not a number."""
    return b"null".ljust(len(found[0])) if len(found[0]) > 3 else b'"" '
