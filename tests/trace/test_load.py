"""A run folder turned into a Trace, with whatever is wrong in it said in `limits`."""

import json
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import evenstep
from evenstep.errors import TraceError
from evenstep.trace.columns import Columns
from evenstep.trace.loading import load
from evenstep.trace.spool.folder import RunFolder
from evenstep.trace.spool.layout import Flag, Kind, Op
from evenstep.trace.spool.spool import Spool
from evenstep.trace.spool.summary import FEWEST_RECORDS, StepSummary, SummaryLog
from evenstep.trace.trace import RankInfo, Trace
from tests.trace.small_run import STEPS, WORLD, identity, write_rank, write_run

MS = 1_000_000


@pytest.fixture
def run(tmp_path):
    root = write_run(tmp_path / "run")
    (root / "run.json").write_text(json.dumps({"run_id": "r", "world": WORLD}))
    return root


def spool(root, rank, attempt=0):
    return root / f"attempt-{attempt:03d}" / f"rank-{rank:05d}.spool"


@pytest.mark.parametrize(
    ("hosts", "boots", "are_one"),
    [("aa", "xy", True), ("ab", "xx", False), (("", ""), "xx", True), (("", ""), "xy", False)],
)
def test_ranks_share_a_host_by_its_name_or_where_it_has_none_by_its_clock(hosts, boots, are_one):
    places = enumerate(zip(hosts, boots, strict=True))
    ranks = {r: RankInfo(r, {"hostname": host, "boot_id": boot}) for r, (host, boot) in places}
    assert Trace({}, 2, 0, ranks, Columns({})).one_host == are_one


def test_a_whole_run_has_nothing_to_complain_about(run):
    trace = evenstep.load(run)
    assert (trace.world, trace.attempt, sorted(trace.ranks)) == (WORLD, 0, [0, 1, 2])
    assert trace.limits == []
    assert trace.run["world"] == WORLD
    assert trace.nodes == ("h0", "h1")
    assert len(trace.of_kind(Kind.COLLECTIVE)) == len(trace.summaries) == WORLD * STEPS


def test_tables_of_all_ranks_become_one(run):
    trace = load(run)
    collectives = trace.of_kind(Kind.COLLECTIVE)
    assert {trace.groups[index].uid for index in collectives.group} == {"world"}
    assert {trace.names[index] for index in collectives.name} == {"shared"}
    assert {group.name for group in trace.groups} == {"solo", "dp"}
    assert next(group.ranks for group in trace.groups if group.name == "dp") == (0, 1, 2)


def test_an_attempt_folder_and_a_single_file_can_be_loaded_too(run):
    assert len(load(run / "attempt-000").ranks) == WORLD
    alone = load(spool(run, 1))
    assert sorted(alone.ranks) == [1]
    assert alone.run["run_id"] == "r"
    assert alone.missing_ranks == (0, 2)


def test_the_last_attempt_is_read_unless_another_is_named(run):
    write_run(run, range(1), attempt=2)
    assert load(run).attempt == 2
    assert "the run has 2 attempts; this is attempt 2" in load(run).limits
    lost = "attempt 1 left no trace here: no rank attached, or it lies elsewhere"
    assert lost in load(run).limits  # such as where a rank dies before `init_process_group`
    assert sorted(load(run, attempt=0).ranks) == [0, 1, 2]
    with pytest.raises(TraceError, match="has no attempt 1; there are 0, 2"):
        load(run, attempt=1)


def test_missing_ranks_are_named(run):
    spool(run, 1).unlink()
    assert any(limit.startswith("rank 1 of 3 left no trace") for limit in load(run).limits)


def test_a_foreign_file_is_left_out_by_name_and_the_others_are_used(run):
    spool(run, 0).write_bytes(b"\x00" * 8192)
    trace = load(run)
    assert sorted(trace.ranks) == [1, 2]
    assert any("rank-00000.spool is not a spool" in limit for limit in trace.limits)


def test_a_rank_whose_spool_cannot_be_read_is_not_told_to_have_left_none(run):
    spool(run, 0).write_text("something else")
    spool(run, 1).unlink()
    told = [limit for limit in load(run).limits if "left" in limit]
    assert [limit[:18] for limit in told] == ["left out: " + str(run)[:8], "rank 1 of 3 left n"]


def test_another_layout_version_is_left_out_by_name(run):
    data = spool(run, 2).read_bytes()
    spool(run, 2).write_bytes(data[:8] + b"\x07" + data[9:])
    trace = load(run)
    assert sorted(trace.ranks) == [0, 1]
    assert any("rank-00002.spool has record layout 7" in limit for limit in trace.limits)


@settings(max_examples=30, deadline=None)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_rank_cut_anywhere_never_costs_the_others(tmp_path_factory, share):
    root = write_run(tmp_path_factory.mktemp("cut"))
    data = spool(root, 1).read_bytes()
    spool(root, 1).write_bytes(data[: int(share * len(data))])
    trace = load(root)
    events = trace.of_kind(Kind.COLLECTIVE)
    assert [int((events["rank"] == rank).sum()) for rank in (0, 2)] == [STEPS, STEPS]
    ring_end = 4096 + (1 << 20) + FEWEST_RECORDS * 512 + 64 * 112  # regions at their smallest
    named = any("rank-00001.spool" in limit for limit in trace.limits)
    assert named == (int(share * len(data)) < ring_end)


def test_of_two_runs_in_one_folder_the_larger_is_kept_and_the_other_named(run):
    write_rank(run / "attempt-000" / "rank-00007.spool", 7, run_id="another")
    trace = load(run)
    assert sorted(trace.ranks) == [0, 1, 2]
    assert any("rank-00007.spool belongs to run 'another', not 'r'" in x for x in trace.limits)


def test_a_second_trace_of_a_rank_is_left_out_by_name(run):
    shutil.copy(spool(run, 1), run / "attempt-000" / "rank-00001-copy.spool")
    trace = load(run)
    assert len(trace.of_kind(Kind.COLLECTIVE)) == WORLD * STEPS
    assert any("is a second trace of rank 1" in limit for limit in trace.limits)


@pytest.mark.parametrize("text", ["{", "[]", "\ud800", ""])
def test_an_unreadable_run_json_is_named_and_the_headers_are_used(run, text):
    (run / "run.json").write_bytes(text.encode("utf-16-le", "surrogatepass"))
    trace = load(run)
    assert trace.run == {"run_id": "r", "world": WORLD}
    assert any("run.json" in limit and "headers are used" in limit for limit in trace.limits)


def test_a_folder_without_spools_is_one_sentence(tmp_path):
    with pytest.raises(TraceError, match=r"no rank has attached: there is no rank-\*.spool"):
        load(tmp_path)


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(TraceError, match="does not exist; give a run folder"):
        load(tmp_path / "no")


def test_folders_that_only_look_like_attempts_do_no_harm(run):
    for name in ("attempt-²", "attempt-old"):
        shutil.copytree(run / "attempt-000", run / name)
        (run / name / "rank-00001.spool").unlink()
    found = load(run)
    assert (found.attempt, sorted(found.ranks), found.limits) == (0, [0, 1, 2], [])
    assert load(run / "attempt-old").attempt == 0


def test_a_killed_rank_is_open_and_an_ended_one_closed(run, tmp_path):
    assert all(info.closed for info in load(run).ranks.values())
    data = spool(run, 0).read_bytes().replace(b'"key":"closed"', b'"key":"cl0sed"')
    spool(run, 0).write_bytes(data)
    assert not load(run).ranks[0].closed


def test_steps_of_a_rank_that_attached_later_are_renumbered_in_events_and_summaries(run):
    spool(run, 2).unlink()
    write_rank(spool(run, 2), 2, first=2)
    trace = load(run)
    late = trace.events.select(trace.events["rank"] == 2)
    assert late.step.tolist() == late.group_seq.tolist() == [2, 3]
    assert trace.summaries["first_step"][trace.summary_rank == 2].tolist() == [2, 3]
    assert any("rank 2 began to count 2 steps after" in limit for limit in trace.limits)


def test_times_are_each_ranks_own(run):
    collectives = load(run).of_kind(Kind.COLLECTIVE)
    assert (collectives.enter_ns % 1000 == collectives["rank"]).all()
    assert np.all(np.diff(collectives["rank"]) >= 0)


@pytest.mark.parametrize("marked", [False, True])
def test_steps_that_ranks_inferred_from_few_calls_are_inferred_anew_from_all(tmp_path, marked):
    """Twenty steps of two calls; the ranks took every two for one, unless one was marked."""
    for rank in range(2):
        place = RunFolder(tmp_path).spool_path(0, rank)
        place.parent.mkdir(parents=True, exist_ok=True)
        spool = Spool.create(place, identity(rank), ring_bytes=1 << 16, summary_bytes=1)
        group = spool.add_group({"uid": "world", "name": "dp", "ranks": "0-1"})
        log = SummaryLog(spool.summary_view(), spool.regions.summary_capacity)
        for step in range(20):
            at = 1000 * MS + 100 * MS * step
            for turn in range(2):
                call = (Kind.COLLECTIVE, Op.ALL_REDUCE, step // 2, 0, group, 2 * step + turn)
                spool.put(at + 10 * MS * turn, at + 10 * MS * turn + MS, *call, bytes_in=8 + turn)
            if step % 2:
                flags = 0 if marked and step == 9 and rank else int(Flag.INFERRED)
                spool.put(at - 90 * MS, at + 90 * MS, Kind.STEP, 0, step // 2, flags=flags)
                log.append(StepSummary(step // 2, step // 2, at - 90 * MS, at + 90 * MS, 0))
        spool.add_fact("steps", "inferred")
        log.release()
        spool.shut()
    trace = load(tmp_path)
    steps = trace.of_kind(Kind.STEP)
    said = [limit for limit in trace.limits if "steps were inferred" in limit]
    if marked:
        assert (len(steps), said, len(trace.summaries)) == (20, [], 20)
        assert trace.ranks[0].facts["steps"] == "inferred"
    else:
        assert len(steps) == 2 * 19
        assert np.unique(steps.exit_ns - steps.enter_ns).tolist() == [100 * MS]
        assert len(said) == 1
        assert said[0].endswith("evenstep.step() at the end of the loop marks them")
        assert len(trace.summaries) == len(trace.summary_rank) == 0
        assert all("steps" not in info.facts for info in trace.ranks.values())
