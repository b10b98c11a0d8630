import base64
import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from evenstep.report.page.sheet import ALIGNMENT_BYTES, pack
from evenstep.trace.columns import Columns

COLUMN = st.sampled_from(["f8", "f4", "i4", "u4", "u2", "u1"]).flatmap(
    lambda kind: arrays.arrays(np.dtype(kind), st.integers(0, 20))
)


@given(st.lists(COLUMN, max_size=5))
def test_every_column_comes_back_bit_for_bit(columns: list[np.ndarray]) -> None:
    directory, data = pack(
        {str(at): Columns({"value": column}) for at, column in enumerate(columns)}
    )
    raw = gzip.decompress(base64.b64decode(data))
    for at, column in enumerate(columns):
        entry = directory[str(at)]["value"]
        again = np.frombuffer(raw, "<" + entry["type"], entry["length"], entry["offset"])
        assert entry["offset"] % ALIGNMENT_BYTES == 0
        assert again.tobytes() == column.tobytes()


def test_big_endian_columns_are_turned_round() -> None:
    _, data = pack({"t": Columns({"v": np.array([1, 2], ">u2")})})
    assert gzip.decompress(base64.b64decode(data))[:4] == b"\x01\0\x02\0"


def test_the_same_columns_give_the_same_bytes() -> None:
    tables = {"t": Columns({"v": np.arange(100, dtype=np.int32)})}
    assert pack(tables) == pack(tables)


def test_a_type_browsers_do_not_have_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"column t\.v has type int64"):
        pack({"t": Columns({"v": np.arange(3, dtype=np.int64)})})
