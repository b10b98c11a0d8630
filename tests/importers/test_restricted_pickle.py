import os
import pickle
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import TraceError
from evenstep.importers.flight_recorder import restricted_pickle
from evenstep.importers.flight_recorder.restricted_pickle import loads

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


class Payload:
    """A value that runs a command when an ordinary pickle loader reads it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@given(PLAIN, st.sampled_from(PROTOCOLS))
def test_plain_values_come_back_as_they_were(value, protocol):
    assert loads(pickle.dumps(value, protocol), "here") == value


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_pickle_that_would_run_a_command_is_refused_and_runs_nothing(tmp_path, protocol):
    trap = tmp_path / "sprung"
    data = pickle.dumps({"entries": [Payload(trap)]}, protocol)
    with pytest.raises(TraceError, match=r"asks to run posix\.system.*nothing of it was run"):
        loads(data, "here")
    assert not trap.exists()
    pickle.loads(data)
    assert trap.exists()  # the payload is a real one


@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_one_sentence(data):
    with suppress(TraceError):
        loads(b"\x80\x02" + data, "here")


@given(PLAIN, st.data())
def test_a_pickle_cut_anywhere_is_called_damaged(value, data):
    whole = pickle.dumps(value, 2)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(TraceError, match="damaged pickle"):
        loads(cut, "here")


CLAIMS = {
    "text": pickle.BINUNICODE + struct.pack("<I", 4_000_000_000),
    "long text": pickle.BINUNICODE8 + struct.pack("<Q", 100_000_000_000),
    "bytes": pickle.BINBYTES8 + struct.pack("<Q", 100_000_000_000),
    "integer": pickle.LONG4 + struct.pack("<i", 2_000_000_000),
}


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_a_claimed_size_is_not_believed(claim):
    with pytest.raises(TraceError, match="damaged"):
        loads(b"\x80\x02" + claim + b".", "here")


def test_a_place_in_memory_that_no_pickler_would_choose_takes_none():
    program = b"\x80\x02K\x01" + pickle.LONG_BINPUT + struct.pack("<I", 2**32 - 1) + b"."
    assert loads(program, "here") == 1


def test_marks_that_nothing_closes_are_damage():
    with pytest.raises(TraceError, match="damaged"):
        loads(b"\x80\x02" + pickle.MARK * 200_000 + b"N.", "here")


def _colliding(number):
    """An integer that hashes to 0: a table of such keys is filled in quadratic time."""
    return b"\x8a\x0a" + (number * (2**61 - 1)).to_bytes(10, "little") + b"N"


HOSTILE = {
    "a key 200,000 tuples deep": b"})" + b"\x85" * 200_000 + b"Ns.",
    "a key of 2^40 parts": b"})" + b"q\x01h\x01\x86" * 40 + b"Ns.",
    "a value 200,000 tuples deep": b")" + b"\x85" * 200_000 + b".",
    "a value of 2^40 parts": b")" + b"q\x01h\x01\x86" * 40 + b".",
    "a list in itself": b"]q\x00h\x00a.",
    "keys of one hash": b"}(" + b"".join(map(_colliding, range(1, 20_000))) + b"u.",
    "a list as a key": b"}]Ns.",
}


@pytest.mark.parametrize("program", HOSTILE.values(), ids=HOSTILE)
def test_a_shape_that_harms_whoever_walks_it_is_called_damaged(program):
    with pytest.raises(TraceError, match="damaged"):
        loads(b"\x80\x02" + program, "here")


def test_more_lists_than_any_ring_has_are_not_built(monkeypatch):
    monkeypatch.setattr(restricted_pickle, "MOST_CONTAINERS", 1_000)
    with pytest.raises(TraceError, match="more than a flight recorder's ring ever does"):
        loads(b"\x80\x02" + b"]" * 1_001 + b".", "here")


@given(st.integers(1, 40), st.integers(1, 40))
def test_shared_parts_come_back_shared(frames, entries):
    stack = [{"name": f"f{n}", "line": n} for n in range(frames)]
    ring = {"entries": [{"record_id": n, "frames": stack} for n in range(entries)]}
    assert loads(pickle.dumps(ring, 2), "here") == ring


def test_a_dictionary_may_be_written_whole_or_item_by_item():
    assert loads(b"(Va\nI1\nVb\nI2\nd.", "here") == {"a": 1, "b": 2}  # as protocol 0 may
    assert loads(b"(dVa\nI1\ns(Vb\nI2\nVc\nI3\nu.", "here") == {"a": 1, "b": 2, "c": 3}


@pytest.mark.parametrize("program", [b"((lI1\nd.", b"(lI1\nI2\ns.", b"(dVa\n(u."])
def test_what_no_pickler_puts_into_a_dictionary_is_damage(program):
    with pytest.raises(TraceError, match="damaged"):
        loads(program, "here")
