import os

import pytest

from evenstep.trace import cores


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(cores, "available", lambda: 2)


def test_results_come_in_the_order_of_the_items_from_other_processes(two_cores):
    found = cores.map_on_cores(lambda number: (number * number, os.getpid()), range(7))
    assert [square for square, _ in found] == [number * number for number in range(7)]
    assert os.getpid() not in {process for _, process in found}


def test_a_single_item_needs_no_other_process(two_cores):
    assert cores.map_on_cores(lambda _: os.getpid(), ["one"]) == [os.getpid()]


def test_what_a_process_raises_is_raised_here(two_cores):
    with pytest.raises(ZeroDivisionError):
        cores.map_on_cores(lambda number: 1 // number, [1, 0])
