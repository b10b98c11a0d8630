"""Overlap of communication and compute, against a count that shares no code with the importer."""

import gzip
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.measure.grid import step_grid
from evenstep.diagnose.measure.overview import device_times
from evenstep.importers.opening import open_trace
from evenstep.trace.spool.layout import Flag, Kind, Phase
from tests.diagnose.programs import Do, Job, data_parallel
from tests.diagnose.synthetic import MS, World
from tests.importers.profiles import Profile, two_steps

DATA = Path(__file__).parents[2] / ".." / "shared" / "data" / "kineto"
real = pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data/kineto is not here")
FILES = ("nccl_data.json.gz", "sampled_rank-0.json.gz", "sampled_rank-1.json.gz")


def counted(events):
    """Compute, communication, both, anything in ns: one walk over all beginnings and ends."""
    marks = []
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            begin, length = round(event["ts"] * 1000), round(event["dur"] * 1000)
            sort = "copy" if event["cat"] != "kernel" else event["name"].startswith("nccl")
            marks += [(begin, sort, 1), (begin + length, sort, -1)]
    marks.sort(key=lambda mark: mark[0])
    running = {True: 0, False: 0, "copy": 0}
    found = [0, 0, 0, 0]
    before = marks[0][0]
    for time, sort, change in marks:
        moving, computing = running[True] > 0, running[False] > 0
        both, any_at_all = moving and computing, any(running.values())
        for place, holds in enumerate((computing, moving, both, any_at_all)):
            found[place] += (time - before) * holds
        running[sort] += change
        before = time
    return tuple(found)


@real
@pytest.mark.parametrize("name", FILES)
def test_overlap_in_real_profiles_is_that_of_an_independent_count(name):
    (found,) = device_times(open_trace([DATA / name])).values()
    assert found[1:] == counted(
        json.loads(gzip.decompress((DATA / name).read_bytes()))["traceEvents"]
    )
    assert found.elapsed_ns > found.busy_ns


@real
def test_an_archive_of_real_profiles_is_read_whole_and_its_devices_as_counted():
    name = DATA / "dlrm_kineto.tar.gz"
    trace = open_trace([name])
    found = device_times(trace)
    with tarfile.open(name) as archive:
        for member in filter(tarfile.TarInfo.isreg, archive):
            events = json.load(archive.extractfile(member))
            assert found[events["distributedInfo"]["rank"]][1:] == counted(events["traceEvents"])
    assert len(found) == 8
    assert trace.nodes == ("",)  # worker0_step_12 is no host: nothing in the files names one


@real
def test_arrivals_in_a_real_step_are_those_of_the_kernels():
    """One host, ends within 7 µs: who waits for whom follows from when kernels began."""
    trace = open_trace([DATA / "dlrm_kineto.tar.gz"])
    rows = trace.of_kind(Kind.COLLECTIVE).sorted_by("group_seq", "rank")
    start = rows.device_enter_ns.reshape(8, 8)  # 5 all-to-alls and 3 all-reduces of 8 ranks
    spread_ms = (start.max(axis=1) - start.min(axis=1)) / 1e6
    assert spread_ms.round(2).tolist() == pytest.approx(
        [7.6, 1.1, 0.17, 0.13, 0.22, 0.53, 0.58, 0.89], abs=0.03
    )
    wait_ms = np.bincount(start.argmax(axis=1), (start.max(axis=1) - start.T).sum(axis=0) / 1e6)
    assert wait_ms[[7, 5, 4]].round(1).tolist() == [35.6, 6.3, 5.0]  # the data's README


@real
@pytest.mark.parametrize(("name", "percent"), [(FILES[1], 14.95), (FILES[2], 19.93)])
def test_overlap_is_that_of_holistic_trace_analysis(name, percent):
    """HTA 0.5.0, get_comm_comp_overlap, with include_last_profiler_step."""
    (found,) = device_times(open_trace([DATA / name])).values()
    assert 100 * found.hidden_ns / found.communication_ns == pytest.approx(percent, abs=0.005)


@real
@pytest.mark.parametrize("files", [FILES[:1], FILES[1:], FILES])
def test_real_profiles_are_diagnosed(files):
    diagnosis = diagnose(open_trace([DATA / name for name in files]))
    assert diagnosis.summary["steps"] == (3 if len(files) == 1 else 2)
    assert diagnosis.summary["step_time"]["mean_ns"] > 100_000_000


def test_overlap_of_a_made_up_profile_is_known(tmp_path):
    trace = open_trace([two_steps().write(tmp_path / "rank-0.json")])
    found = device_times(trace)[0]
    assert (found.communication_ns, found.compute_ns, found.hidden_ns) == (
        400_000,
        800_000,
        200_000,
    )
    assert found.hidden_ns / found.communication_ns == 0.5


def test_a_rank_without_a_device_has_no_share(tmp_path):
    profile = two_steps()
    profile.events = [event for event in profile.events if event["cat"] != "kernel"]
    assert not device_times(open_trace([profile.write(tmp_path / "rank-0.json")]))


@real
def test_culprits_of_a_real_step_stand_as_they_were_waited_for():
    """A finding and the blame beside it begin with the same rank, titles name them by number: with
    its late entry they cost more than the loaders of all ranks."""
    found = diagnose(open_trace([DATA / "dlrm_kineto.tar.gz"]))
    blamed = found.summary["blame"]
    assert [one["rank"] for one in blamed["culprits"]] == [7, 5, 4]
    assert list(found.findings[0].where.ranks) == [7, 5, 4]
    assert found.findings[0].title.endswith("on ranks 4, 5 and 7")
    assert found.summary["verdict"].startswith("Ranks 4, 5 and 7 cost")
    assert blamed["largest_delay"]["rank"] == 7


def test_a_slow_rank_of_a_tensor_group_costs_what_the_job_without_it_saves():
    """Every call is waited for at once; waits after a part of the work would fit the noise, too."""
    layer = [Do("work", 2 * MS), Do("call", group=0)]
    job = Job(
        ranks=8, groups=[("tp", tuple(range(8)))], device=True, noise=0.1, slow={3: 1.3},
        program=lambda _: [*8 * layer, Do("work", MS, Phase.OPTIMIZER)],
        transfer=lambda *_: 0.3 * MS,
    )  # fmt: skip
    slow, well = job.run(), replace(job, slow={}).run()
    finding = diagnose(slow.trace()).findings[0]
    assert (finding.mode, finding.where.ranks) == ("straggler", [3])
    assert finding.severity == pytest.approx(1 - well.length_ns / slow.length_ns, rel=0.1)


def test_steps_that_hosts_ended_and_devices_did_not_are_left_out():
    """The last of 40 steps, and a call without an end of the twentieth, which the run survived."""
    trace = data_parallel(device=True, steps=40).run().trace()
    events = trace.events
    last = np.flatnonzero((events.kind == int(Kind.COLLECTIVE)) & (events["rank"] == 1))
    cut = np.isin(np.arange(len(events)), [last[-1], last[len(last) // 2]])
    for name in ("exit_ns", "device_exit_ns"):
        events = events.with_column(name, np.where(cut, 0, events[name]))
    whole = step_grid(trace).steps
    trace.events = events
    grid = step_grid(trace)
    assert grid.steps.tolist() == whole[:-1].tolist()
    assert grid.limits == ["last steps left out, which devices had not finished: 1"]


def test_steps_with_calls_that_run_no_kernel_are_compared(tmp_path):
    """A group of one rank runs none; its call is the last that steps 4 and 5 issue."""
    paths = []
    for rank in range(2):
        profile = Profile(rank)
        for number in range(6):
            profile.step(number, 1000 * number, 1000)
            profile.kernel("gemm", 1000 * number + 10, 1000 * number + 20, 500)
            profile.collective(1000 * number + 30, 1000 * number + 520, 100)
            if number > 3:
                alone = {"Group size": 1, "Process Group Name": f"tp{rank}"}
                alone["Process Group Ranks"] = f"[{rank}]"
                profile.collective(1000 * number + 700, 0, 1, **alone)
                del profile.events[-2:]  # the launch and its kernel
        paths.append(profile.write(tmp_path / f"{rank}.json"))
    grid = step_grid(open_trace(paths))
    assert (grid.steps.tolist(), grid.limits) == ([*range(6)], [])


@pytest.mark.parametrize(("buckets", "place"), [(5, "inside backward"), (1, "no phases tell")])
def test_work_between_collectives_lies_in_the_phase_that_issued_both(buckets, place):
    """Of the work around a step's only bucket nothing tells in which phase it was issued."""
    trace = data_parallel(device=True, noise=0.01, buckets=buckets, slow={2: 1.4}).run().trace()
    events, seq = trace.events, 1 + np.arange(len(trace.events))
    cell = events["rank"] * 100 + events.step
    phase = (events.kind == int(Kind.PHASE)) & (events.op == int(Phase.BACKWARD))
    first = np.full(cell.max() + 1, len(seq))
    np.minimum.at(first, cell[phase], seq[phase])
    parent = np.where(events.kind == int(Kind.COLLECTIVE), first[cell], 0)
    trace.events = events.with_column("seq", seq).with_column("parent", parent)
    finding = diagnose(trace).findings[0]
    assert finding.where.ranks == [2]
    assert place in finding.cause


def test_a_first_step_is_no_longer_for_clocks_of_hosts_that_nothing_places():
    """As compiled hooks record it, whose hosts flag no end of collectives of a device: hosts booted
    an hour apart."""
    clocks = {1: (3600e9, 0.0)}
    trace = World(ranks_per_node=2, clocks=clocks, on_device=True, style="blocking").trace()
    flags = trace.events.flags & ~np.uint16(Flag.EXIT_UPPER_BOUND)
    trace.events = trace.events.with_column("flags", flags)
    grid = step_grid(trace)
    assert grid.clocks.unplaced == (2, 3)
    assert grid.step_ns[0] == pytest.approx(np.median(grid.duration_ns), rel=0.1)
