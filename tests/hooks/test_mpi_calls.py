"""Sizes of what MPI programs send, which may be any object; no MPI is needed."""

from __future__ import annotations

from array import array
from types import SimpleNamespace

import numpy as np
import pytest

from evenstep.hooks.mpi.calls import argument, dtype, nbytes, size_and_type
from evenstep.hooks.mpi.methods import Ticket, Watch
from evenstep.hooks.mpi.requests import Requests
from evenstep.trace.spool.layout import DType


class Unwilling:
    @property
    def nbytes(self):
        raise RuntimeError("not computed yet")


@pytest.mark.parametrize(
    "sent",
    [Unwilling(), SimpleNamespace(nbytes=lambda: 8), SimpleNamespace(nbytes=float("nan")), {}],
)
def test_an_object_that_does_not_tell_its_size_has_none(sent):
    assert nbytes(sent) == 0


def test_a_buffer_tells_its_size():
    assert [nbytes(b"abc"), nbytes(memoryview(b"abcd")), nbytes([bytearray(5), None])] == [3, 4, 5]


def test_what_moves_is_measured_as_bytes_of_a_type():
    assert size_and_type(np.zeros((3, 2), np.float32)) == (24, DType.FLOAT32)
    assert size_and_type(array("d", [1, 2])) == (16, DType.FLOAT64)
    assert size_and_type([np.zeros(4, np.int16), None]) == (8, DType.INT16)
    assert size_and_type(b"abc") == (3, 0)


def test_an_argument_is_found_by_its_name_or_its_place():
    parameters = ("buf", "dest", "tag")
    assert argument("dest", parameters, ("x", 2), {}) == 2
    assert argument("tag", parameters, ("x",), {"tag": 7, "dest": 2}) == 7
    assert argument("tag", parameters, ("x", 2), {}) is None


def watching(give_up):
    agent = SimpleNamespace(gate=None, recorder=None, give_up=give_up)
    return Watch(SimpleNamespace(Exception=OSError), agent)


def test_what_another_thread_has_taken_is_no_failure():
    failures = []
    requests = Requests(watching(failures.append), print, print)
    requests.opened(SimpleNamespace(handle=1), Ticket(1))
    requests._open[1].clear()
    wait = requests.one(lambda request: True, tests=False)
    assert wait(SimpleNamespace(handle=1)) is True
    assert not failures


def test_a_wait_that_nobody_observes_is_the_program_s_own():
    watch = watching(pytest.fail)
    watch.armed = False
    requests = Requests(watch, pytest.fail, pytest.fail)
    request = SimpleNamespace(handle=1)
    requests.opened(request, Ticket(1, wildcard=(None, None)))  # whose status would be asked for
    asked = requests.one(lambda request, status=None: (request, status), tests=False)
    assert asked(request) == (request, None)
    several = requests.several(classmethod(lambda cls, them: them), lambda *_: (0,))
    assert several.__get__(None, object)([request]) == [request]


FOUR = SimpleNamespace(Get_size=lambda: 4)
ROW = np.zeros(8, np.float32)


@pytest.mark.parametrize(
    ("buffer", "size"),
    [
        ([ROW, FOUR], 32), ([ROW, 3, FOUR], 12), ([ROW, (1, 2), FOUR], 32), ([ROW, 3], 32),
        ([ROW, 3, 4], 32), ([], 0), ((), 0), ([[1, 2], FOUR], 0), ([[ROW, 3], 3, FOUR], 12),
        (SimpleNamespace(nbytes=-5), 0), (SimpleNamespace(nbytes="7"), 7), (bytearray(9), 9),
        (array("d", [1, 2, 3]), 24), (3, 0),
    ],
)  # fmt: skip
def test_a_specification_of_a_message_has_the_size_it_says(buffer, size):
    assert nbytes(buffer) == size


@pytest.mark.parametrize(
    ("buffer", "kind"),
    [
        (ROW, DType.FLOAT32), ([ROW, 3, FOUR], DType.FLOAT32), (array("q"), DType.INT64),
        (np.zeros(1, "U3"), DType.OTHER), (np.zeros(1, "?"), DType.BOOL), ([], 0), (b"x", 0),
        (SimpleNamespace(dtype=SimpleNamespace(char=7)), 0),
    ],
)  # fmt: skip
def test_the_type_of_a_buffer_is_that_of_its_elements(buffer, kind):
    assert dtype(buffer) == kind
