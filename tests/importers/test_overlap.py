"""Overlap of communication and compute, against a count that shares no code with the importer."""

import gzip
import json
from pathlib import Path

import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.importers.opening import open_trace
from evenstep.importers.overlap import overlaps
from tests.importers.profiles import two_steps

DATA = Path(__file__).parents[2] / ".." / "shared" / "data" / "kineto"
real = pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data/kineto is not here")
FILES = ("nccl_data.json.gz", "sampled_rank-0.json.gz", "sampled_rank-1.json.gz")


def counted(path):
    """Communication, compute and both at once in ns: one walk over all beginnings and ends."""
    marks = []
    for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
        if event.get("cat") == "kernel":
            begin, length = round(event["ts"] * 1000), round(event["dur"] * 1000)
            communicates = event["name"].startswith("nccl")
            marks += [(begin, communicates, 1), (begin + length, communicates, -1)]
    marks.sort()
    running = {True: 0, False: 0}
    found = [0, 0, 0]
    before = marks[0][0]
    for time, communicates, change in marks:
        moving, computing = running[True] > 0, running[False] > 0
        for place, holds in enumerate((moving, computing, moving and computing)):
            found[place] += (time - before) * holds
        running[communicates] += change
        before = time
    return tuple(found)


@real
@pytest.mark.parametrize("name", FILES)
def test_overlap_in_real_profiles_is_that_of_an_independent_count(name):
    (found,) = overlaps(open_trace([DATA / name])).values()
    assert found == counted(DATA / name)


@real
@pytest.mark.parametrize(("name", "percent"), [(FILES[1], 14.95), (FILES[2], 19.93)])
def test_overlap_is_that_of_holistic_trace_analysis(name, percent):
    """HTA 0.5.0, get_comm_comp_overlap, with include_last_profiler_step."""
    (found,) = overlaps(open_trace([DATA / name])).values()
    assert 100 * found.share == pytest.approx(percent, abs=0.005)


@real
@pytest.mark.parametrize("files", [FILES[:1], FILES[1:], FILES])
def test_real_profiles_are_diagnosed(files):
    diagnosis = diagnose(open_trace([DATA / name for name in files]))
    assert diagnosis.summary["steps"] == (3 if len(files) == 1 else 2)
    assert diagnosis.summary["step_time"]["mean_ns"] > 100_000_000


def test_overlap_of_a_made_up_profile_is_known(tmp_path):
    trace = open_trace([two_steps().write(tmp_path / "rank-0.json")])
    found = overlaps(trace)[0]
    assert (found.communication_ns, found.compute_ns, found.hidden_ns) == (
        400_000,
        800_000,
        200_000,
    )
    assert found.share == 0.5


def test_a_rank_without_a_device_has_no_share(tmp_path):
    profile = two_steps()
    profile.events = [event for event in profile.events if event["cat"] != "kernel"]
    found = overlaps(open_trace([profile.write(tmp_path / "rank-0.json")]))[0]
    assert found.share is None
