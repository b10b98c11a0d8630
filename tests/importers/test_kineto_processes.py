"""Profiles of several processes that somebody put into one file."""

import json

import pytest

from evenstep.errors import TraceError
from evenstep.importers.opening import open_trace
from evenstep.trace.spool.layout import Kind
from tests.importers.profiles import two_steps

WORLD = 3


@pytest.fixture
def merged(tmp_path):
    """Write the events of a few ranks into one file, with these numbers of hosts and devices."""

    def write(host="{}", device="{}", **header):
        events = []
        for rank in range(WORLD):
            for event in two_steps(rank, late=10 * rank, world=WORLD).events:
                template = device if event["cat"] == "kernel" else host
                events.append(event | {"pid": template.format(100 + rank, rank=rank)})
        path = tmp_path / "all.json"
        path.write_text(json.dumps(header | {"traceEvents": events}))
        return path

    return write


@pytest.mark.parametrize(("host", "device"), [("{}", "{}"), ("{}", "{rank}"), ("{}", "gpu {}")])
def test_each_process_is_a_rank_with_its_own_kernels(merged, host, device):
    trace = open_trace([merged(host, device)])
    assert list(trace.ranks) == list(range(WORLD))
    assert any("in the order of their process numbers" in line for line in trace.limits)
    rows = trace.of_kind(Kind.COLLECTIVE)
    lengths = (rows.device_exit_ns - rows.device_enter_ns).reshape(WORLD, 2)
    assert lengths.tolist() == [[(200 - 10 * rank) * 1000] * 2 for rank in range(WORLD)]


def test_kernels_that_may_be_anybodys_are_not_given_to_anybody(merged):
    with pytest.raises(TraceError, match=r"holds 3 processes.*export one file per"):
        open_trace([merged(device="0")])


def test_a_header_that_says_nothing_of_use_is_no_obstacle(merged):
    assert len(open_trace([merged(distributedInfo="none")]).ranks) == WORLD
