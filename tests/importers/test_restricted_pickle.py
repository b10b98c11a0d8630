import os
import pickle
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import TraceError
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


def test_a_huge_place_in_memory_takes_no_memory():
    data = b"\x80\x02K\x01" + pickle.LONG_BINPUT + struct.pack("<I", 2**32 - 1) + b"."
    assert loads(data, "here") == 1
