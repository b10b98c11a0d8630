"""Compiled kernels on a fake device: what they stamp, and which events they make."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from evenstep.compiled import LibrarySource, build
from evenstep.hooks.torch import library
from tests.forks import start
from tests.hooks.device_job import CALLS, ROUNDS

DEVICE = Path(__file__).with_name("fake_device.cpp")
MS = 1_000_000


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the job recorded."""
    folder = Path(torch.__file__).parent
    flags, against = (made := library.source_for(folder)).flags, made.against
    libraries = (
        library.build_recorder(folder),
        build(LibrarySource(DEVICE, flags=flags, against=against)),
    )
    for each in libraries:
        if each.path is None:
            pytest.skip(each.reason)
    spool = tmp_path_factory.mktemp("device") / "spool"
    job = start("tests.hooks.device_job", *[str(each.path) for each in libraries], str(spool))
    said, failed = job.communicate()
    assert job.returncode == 0, failed
    return json.loads(said)


def test_a_collective_is_stamped_when_its_stream_gets_there(found):
    # Issued at 10 ms times the round plus 1 ms times the call, half a millisecond ahead.
    arrived = [10 * MS * at + MS * call + MS // 2 for at in range(ROUNDS) for call in range(CALLS)]
    assert found["stamps"] == [[ns, ns] for ns in arrived]
    assert found["failures"] == []


def test_events_that_were_read_are_recorded_again_and_none_is_destroyed(found):
    made = 2 * CALLS + 1  # two of each collective of a round, and the reference
    assert found["events"] == [[made, 0]] * ROUNDS


def test_a_batch_ends_when_its_stream_goes_on_and_has_no_length_where_that_did_not_wait(found):
    assert found["batches"] == [[100 * MS, 105 * MS], [200 * MS, 200 * MS]]
