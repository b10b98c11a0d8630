"""Chrome's JSON in pieces: the same events however it is cut, and a byte for every damage."""

import json
import zlib
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import EvenstepError, TraceError
from evenstep.importers import trace_events
from evenstep.importers.compression import Stream
from evenstep.importers.trace_events import TraceEvents

ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
EVENTS = st.lists(
    st.fixed_dictionaries(
        {"ph": st.just("X"), "name": st.text(), "ts": st.floats(0, 1e12)},
        optional={"args": st.dictionaries(st.text(), ANY), "more": ANY},
    ),
    max_size=30,
)


def read(path, data, piece=trace_events.PIECE_BYTES):
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch, Stream(path) as stream:
        patch.setattr(trace_events, "PIECE_BYTES", piece)
        patch.setattr(trace_events, "WINDOW_BYTES", min(piece, 64))
        events = TraceEvents(stream)
        found = [event for piece in events for event in piece]
    return found, events.header


@pytest.fixture(scope="session")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("events") / "trace.json"


@given(EVENTS, st.integers(1, 300), st.sampled_from([None, 1]), st.booleans())
def test_events_are_the_same_however_the_text_is_cut(path, events, piece, indent, bare):
    beside = {"host_name": "h", "last": [{"a": 1}, {"b": 2}], "distributedInfo": {"rank": 1}}
    whole = events if bare else {"first": 1, "traceEvents": events, **beside}
    found, header = read(path, json.dumps(whole, indent=indent).encode(), piece)
    assert [(event.name, event.ts) for event in found] == [(e["name"], e["ts"]) for e in events]
    assert header == ({} if bare else {"host_name": "h", "distributedInfo": {"rank": 1}})


@given(EVENTS.filter(bool), st.integers(1, 300), st.data())
def test_a_file_cut_at_any_byte_says_at_which(path, events, piece, data):
    text = json.dumps({"traceEvents": events, "last": 1}).encode()
    at = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(TraceError, match=rf"byte {at}\b|no list"):
        read(path, text[:at], piece)


@given(EVENTS.filter(bool), st.integers(1, 300), st.data())
def test_a_foreign_byte_anywhere_is_an_error_in_words_or_harmless(path, events, piece, data):
    text = bytearray(json.dumps({"traceEvents": events}).encode())
    text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    with suppress(EvenstepError):
        read(path, bytes(text), piece)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_error_in_words_or_events(path, data):
    with suppress(EvenstepError):
        read(path, data)


def test_the_byte_of_a_malformed_event_is_named(path):
    text = b'{"traceEvents": [{"name": "a"}, {"name" 1}]}'
    place = text.index(b" 1}") + 1
    with pytest.raises(TraceError, match=f"not JSON at byte {place}: expected ':'"):
        read(path, text)


@pytest.mark.parametrize("piece", [1, 20, 10**6])
def test_an_event_of_another_type_is_named_by_its_number(path, piece):
    events = [{"ts": 1.0}, {"ts": 2.0}, {"ts": "soon"}, {"ts": 3.0}]
    with pytest.raises(TraceError, match=r"event 2 of traceEvents, 'ts': expected float, got str"):
        read(path, json.dumps({"traceEvents": events}).encode(), piece)


@pytest.mark.parametrize("text", ["nan", "-nan", "inf", "-inf", "Infinity"])
@pytest.mark.parametrize("piece", [1, 40, 10**6])
def test_a_bandwidth_that_is_no_number_does_not_spoil_the_file(path, text, piece):
    event = f'{{"args": {{"GB/s": {text}, "x": [{{}}, {{}}]}}, "ts": 1}}'
    data = f'{{"traceEvents": [{event}, {event}], "x": [{{}}, {{}}]}}'
    assert [event.ts for event in read(path, data.encode(), piece)[0]] == [1, 1]


def test_a_name_that_is_not_utf8_is_read_as_far_as_it_goes(path):
    found, _ = read(path, b'{"traceEvents": [{"name": "a\xff"}]}')
    assert found[0].name == "a\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_field_that_is_not_utf8_is_read_as_far_as_it_goes(path, place):
    fields = {
        "before": b'"host_name": "\xff", "traceEvents": []',
        "after": b'"traceEvents": [], "host_name": "\xff"',
    }
    header = read(path, b"{" + fields[place] + b"}")[1]
    assert header == {"host_name": "\N{REPLACEMENT CHARACTER}"}


def test_an_event_that_never_ends_is_not_held(path, monkeypatch):
    monkeypatch.setattr(trace_events, "LONGEST_EVENT_BYTES", 1 << 16)
    nested = b'{"":0},' * 100_000
    with pytest.raises(TraceError, match="more than 65536 bytes"):
        read(path, b'{"traceEvents": [{"args": {"correlation": [' + nested + b"0]}}]}", 1 << 12)


def test_lists_that_only_seem_to_be_the_events_are_given_up(path):
    decoys = b'{"traceEvents":[]},' * 100
    with pytest.raises(TraceError, match='too many lists "traceEvents"'):
        read(path, b'{"a":[' + decoys + b'1],"traceEvents":[{}]}')


def test_a_bare_list_may_lack_its_bracket(path):
    assert len(read(path, b'[{"ts": 1},\n{"ts": 2},\n')[0]) == 2  # the format's own allowance


def test_times_with_more_digits_than_a_double_keep_them(path):
    found, _ = read(path, b'{"traceEvents": [{"ts": 1682725898236567.123}]}')
    assert int(found[0].ts * 1000) == 1_682_725_898_236_567_123


def test_brackets_in_names_are_not_taken_for_boundaries(path):
    events = [{"name": '"}, {"', "args": {"x": [{}, {}]}}] * 5
    found, _ = read(path, json.dumps({"traceEvents": events}).encode(), 10)
    assert [event.name for event in found] == ['"}, {"'] * 5


def test_a_claim_of_depth_is_refused(path):
    with pytest.raises(TraceError, match=r"not JSON|no list"):
        read(path, b'{"traceEvents": [{"args": {"Seq": ' + b"[" * 100_000)


def test_what_decompresses_without_end_is_refused(path, monkeypatch):
    monkeypatch.setenv("EVENSTEP_IMPORT_LIMIT_GB", "0.001")
    bomb = zlib.compress(b'{"traceEvents": [' + b" " * 10_000_000, wbits=31)
    assert len(bomb) < 20_000
    with pytest.raises(TraceError, match=r"more than 0\.001 GB.*set EVENSTEP_IMPORT_LIMIT_GB"):
        read(path, bomb)


def test_what_an_event_does_not_say_of_its_place_is_no_place():
    said = msgspec.json.decode(b"{}", type=trace_events.Args)
    assert (said.correlation, said.external, said.device, said.stream) == (-1, -1, -1, -1)


@pytest.mark.parametrize(
    ("text", "at", "what"),
    [
        (b'{"traceEvents": [{"name": "a', 28, "the file ends in the middle of an event"),
        (b'{"traceEvents": [{"name": "a"}, {"na', 36, "the file ends in the middle of an event"),
        (b'{"traceEvents": [{"name" 1}]}', 25, "expected ':'"),
        (b'[{"name": "a"}, {"name" 1}]', 24, "expected ':'"),
        (b'{"name": "a", "b"', 17, "the file ends in the middle of an event"),
    ],
)
def test_what_is_no_json_is_named_with_its_byte(path, text, at, what):
    with pytest.raises(TraceError, match=f"is not JSON at byte {at}: {what}; it was cut short"):
        read(path, text)
