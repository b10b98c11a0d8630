"""Kineto files that are damaged, foreign or absurd: a sentence, or a trace with limits."""

import gzip
import json
from contextlib import suppress
from decimal import Decimal
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import EvenstepError, TraceError
from evenstep.importers.kineto.file import _numbers, _times
from evenstep.importers.opening import open_trace
from evenstep.trace.spool.layout import Kind
from tests.importers.profiles import Profile, two_steps

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
    | st.text(max_size=8) | st.sampled_from([-1, 2**63, 2**64, -(2**63), 1e300, "0", "[0, 1]"])
)  # fmt: skip
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4), max_leaves=6)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("profiles")


def opened(folder, *documents):
    paths = []
    for number, document in enumerate(documents):
        paths.append(folder / f"rank-{number}.json")
        paths[-1].write_text(json.dumps(document))
    return open_trace(paths)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10), VALUES), max_size=4))
def test_any_value_anywhere_is_no_defect(folder, changes):
    documents = [two_steps(rank).document() for rank in range(2)]
    places = [*documents, *(document["distributedInfo"] for document in documents)]
    events = [event for document in documents for event in document["traceEvents"]]
    places += [*events, *(event["args"] for event in events if event["args"])]
    for where, which, value in changes:
        place = places[where % len(places)]
        place[sorted(place)[which % len(place)]] = value
    with suppress(EvenstepError):
        trace = opened(folder, *documents)
        assert set(trace.ranks) <= set(range(trace.world))


@given(st.integers(0, 10**9))
def test_a_compressed_file_cut_at_any_byte_leaves_the_other_ranks(folder, at):
    whole, cut = folder / "rank-0.json", folder / "rank-1.json.gz"
    two_steps(0).write(whole)
    data = gzip.compress(json.dumps(two_steps(1).document()).encode())
    cut.write_bytes(data[: at % len(data)])
    trace = open_trace([whole, cut])
    assert list(trace.ranks) == [0]
    assert any("rank-1.json.gz" in line for line in trace.limits)


@given(st.integers(0, 10**9), st.integers(0, 255))
def test_a_compressed_file_with_a_foreign_byte_is_no_defect(folder, at, byte):
    path = folder / "rank-0.json.gz"
    data = bytearray(gzip.compress(json.dumps(two_steps().document()).encode()))
    data[at % len(data)] = byte
    path.write_bytes(bytes(data))
    with suppress(EvenstepError):
        open_trace([path])


@pytest.mark.parametrize(
    ("field", "value"), [("dur", -5), ("ts", 1e300), ("ts", -1e17), ("dur", 1e18)]
)
def test_events_at_impossible_times_are_left_out_and_counted(folder, field, value):
    document = two_steps().document()
    document["traceEvents"][-1][field] = value  # the last collective's kernel
    trace = opened(folder, document)
    assert len(trace.of_kind(Kind.COLLECTIVE)) == 2
    assert "1 events have an impossible time or duration: left out" in trace.limits


def test_numbers_among_what_is_none_are_read_and_the_rest_is_unknown():
    assert _numbers([0, 1, -7, 2**31]).tolist() == [0, 1, -1, 2**31]
    assert _numbers([0, None, -7, "1", "x", 2**64]).tolist() == [0, -1, -1, 1, -1, -1]
    assert _numbers([0, 2**63 + 5]).tolist() == [0, 5]  # of which the lower bits tell them apart


def test_a_profile_of_nothing_says_what_to_record(folder):
    with pytest.raises(TraceError, match=r"holds no operator, annotation or kernel; record it"):
        opened(folder, {"schemaVersion": 1, "traceEvents": []})


def test_events_that_only_begin_are_counted(folder):
    profile = two_steps()
    profile.events.append({"ph": "B", "name": "x", "ts": 1.0})
    assert any(
        "only begin or only end" in line for line in opened(folder, profile.document()).limits
    )


def test_a_claim_of_a_million_ranks_takes_no_memory(folder):
    profile = Profile(world=1_000_000)
    profile.step(0, 0, 10)
    profile.host("aten::mm", 1, 2)
    trace = opened(folder, profile.document())
    assert (trace.world, list(trace.ranks)) == (1_000_000, [0])
    assert all(len(line) < 200 for line in trace.limits)


def test_a_file_of_several_ranks_is_refused(folder):
    events = [
        event | {"pid": rank}
        for rank in (100, 101)
        for event in two_steps().document()["traceEvents"]
    ]
    with pytest.raises(TraceError, match=r"holds 2 processes that train; give one file per"):
        opened(folder, {"traceEvents": events})


@pytest.mark.parametrize("kind", [int, float, Decimal])
def test_times_are_whole_nanoseconds_or_impossible(kind):
    """The largest are in the year 2096; an event has no negative length."""
    times = [(5, 1.5), (-5, 0.0), (4 * 10**15, 1), (5, -1), (5, 4e15), (4 * 10**15 - 1, 2.0)]
    events = [SimpleNamespace(ts=kind(ts), dur=dur) for ts, dur in times]
    start_ns, end_ns, sane = _times(events)
    assert sane.tolist() == [True, True, False, False, False, True]
    assert start_ns[sane].tolist() == [5_000, -5_000, 3_999_999_999_999_999_000]
    assert (end_ns - start_ns)[sane].tolist() == [1_500, 0, 2_000]


def test_times_between_microseconds_are_kept_to_the_nanosecond():
    events = [SimpleNamespace(ts=ts, dur=0.001) for ts in (1.75e15 + 0.25, -0.25, 7.0)]
    start_ns, end_ns, sane = _times(events)
    assert (start_ns.tolist(), sane.all()) == ([1_750_000_000_000_000_250, -250, 7_000], True)
    assert (end_ns - start_ns).tolist() == [1, 1, 1]
