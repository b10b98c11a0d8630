import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.diagnose.engine import diagnose
from evenstep.errors import EvenstepError, TraceError
from evenstep.importers.content import SourceFile
from evenstep.importers.nccl import inspector as nccl_inspector
from evenstep.trace.spool.layout import Flag, Kind, Op

DUMPED_US = 1_748_030_377_748_202  # the plugin's README


def record(
    rank: int, number: int, *, exec_us: int = 61_974, coll: str = "AllReduce", **head
) -> dict:
    """The example of the plugin's README, for a rank and a place in the order."""
    return {
        "header": {"id": "0x7f8c496ae9f661", "rank": rank, "n_ranks": 2, "nnodes": 1, **head},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "dump_timestamp_us": DUMPED_US + 1000 * number,
            "hostname": "example-hostname",
            "pid": 1639453 + rank,
        },
        "coll_perf": {
            "coll": coll,
            "coll_sn": number,
            "coll_msg_size_bytes": 17179869184,
            "coll_exec_time_us": exec_us,
            "coll_algobw_gbs": 277.210914,
            "coll_busbw_gbs": 485.119099,
        },
    }


def write(folder: Path, *logs: list[dict]) -> list[Path]:
    paths = []
    for number, records in enumerate(logs):
        paths.append(folder / f"example-hostname-pid{number}.log")
        paths[-1].write_text("".join(json.dumps(item) + "\n" for item in records))
    return paths


def read(paths):
    sources = [SourceFile(path, path.read_bytes()[: 1 << 16]) for path in paths]
    return nccl_inspector.read(sources)


def test_a_log_is_recognised_by_its_first_line(tmp_path):
    path = write(tmp_path, [record(0, 1)])[0]
    assert nccl_inspector.recognises(SourceFile(path, path.read_bytes()))
    assert not nccl_inspector.recognises(SourceFile(path, b'{"traceEvents": []}'))


def test_records_become_collectives_on_the_device_with_their_durations(tmp_path):
    trace = read(write(tmp_path, [record(0, 7)], [record(1, 7, exec_us=500)]))
    rows = trace.of_kind(Kind.COLLECTIVE)
    assert (rows.device_exit_ns - rows.device_enter_ns).tolist() == [61_974_000, 500_000]
    assert rows.group_seq.tolist() == [7, 7]
    assert set(rows.op.tolist()) == {int(Op.ALL_REDUCE)}
    assert (rows.flags & int(Flag.ON_DEVICE)).all()
    assert trace.groups[0].ranks == (0, 1)


def test_the_verbose_trace_tells_when_the_kernel_ran(tmp_path):
    item = record(0, 1, exec_us=100)
    kernels = [{"kernel_start_ts": 2_000_000, "kernel_stop_ts": 2_000_100}]
    item["coll_perf"]["event_trace_ts"] = {"coll_start_ts": 1_999_950, "kernel_events": kernels}
    events = read(write(tmp_path, [item])).events
    assert (events.enter_ns[0], events.exit_ns[0]) == (1_999_950_000, 2_000_100_000)


def test_waiting_counted_as_execution_is_told_in_the_limits(tmp_path):
    limits = read(write(tmp_path, [record(0, 1)], [record(1, 1)])).limits
    assert any("counts waiting for other ranks as execution" in limit for limit in limits)


def test_collectives_that_repeat_are_steps_and_tell_who_is_waited_for(tmp_path):
    logs = [[], []]
    for rank, log in enumerate(logs):
        for number in range(40):  # one a step of 100 ms, of which rank 1 is 30 ms late
            item = record(rank, number, exec_us=35_000 if rank == 0 else 5_000)
            item["metadata"]["dump_timestamp_us"] = DUMPED_US + 100_000 * number
            log.append(item)
    finding = diagnose(read(write(tmp_path, *logs))).findings[0]
    assert (finding.mode, finding.where.ranks) == ("straggler", [1])
    assert finding.severity == pytest.approx(0.3, rel=0.1)


def test_durations_alone_tell_neither_that_all_is_healthy_nor_of_hosts_that_launch_late(tmp_path):
    """Both ranks wait 3 ms of every 100 by turns: the log tells of no compute and no launch."""
    logs = [[], []]
    for rank, log in enumerate(logs):
        for number in range(40):
            item = record(rank, number, exec_us=5_000 + 3_000 * ((number + rank) % 2))
            item["metadata"]["dump_timestamp_us"] = DUMPED_US + 100_000 * number
            log.append(item)
    found = diagnose(trace := read(write(tmp_path, *logs)))
    assert "healthy" not in found.verdict
    assert "runtime_jitter" not in {finding.mode for finding in found.findings}
    assert found.summary["overlapped_communication"] is None
    assert any("costs are rough" in limit for limit in trace.limits)


def test_without_repetition_the_log_is_one_step_and_its_waits_are_of_all_of_it(tmp_path):
    waits_us = [10_000, 70_000, 500, 90_000]
    logs = [[record(0, n, exec_us=us + 100) for n, us in enumerate(waits_us)],
            [record(1, n, exec_us=100) for n in range(len(waits_us))]]  # fmt: skip
    for log in logs:
        for number, item in enumerate(log):
            item["metadata"]["dump_timestamp_us"] = DUMPED_US + 100_000 * number**2
    diagnosis = diagnose(read(write(tmp_path, *logs)))
    assert diagnosis.findings[0].where.ranks == [1]
    elapsed_us = 100_000 * 3**2 + 1100  # from the first entry to the last end
    share = sum(waits_us) / elapsed_us / 2  # of two ranks' time
    assert diagnosis.summary["shares"]["wait"] == pytest.approx(share, rel=0.01)


def test_a_header_may_stand_once_per_dump(tmp_path):
    whole = [record(0, number) for number in range(3)]
    marker = {name: whole[0][name] for name in ("header", "metadata")}
    lines = [{**marker, "dump_stats": {"coll_dropped": 4}}, *({"coll_perf": item["coll_perf"]}
             for item in whole)]  # fmt: skip
    path = write(tmp_path, lines)[0]
    assert nccl_inspector.recognises(SourceFile(path, path.read_bytes()))
    trace = read([path, *write(tmp_path / "..", [record(1, number) for number in range(3)])])
    rows = trace.of_kind(Kind.COLLECTIVE)
    assert rows.group_seq[rows["rank"] == 0].tolist() == [0, 1, 2]
    assert any("dropped 4 records" in limit for limit in trace.limits)


def test_operations_that_were_not_written_are_counted(tmp_path):
    limits = read(write(tmp_path, [record(0, 1), record(0, 11)])).limits
    assert any("2 of 11 operations were recorded" in limit for limit in limits)


def test_device_times_of_all_communicators_of_a_rank_are_on_one_clock(tmp_path):
    later = [record(0, number, id="0xb", n_ranks=1) for number in range(5, 9)]
    trace = read(write(tmp_path, [record(0, number) for number in range(4)] + later))
    rows = trace.of_kind(Kind.COLLECTIVE)
    assert len(np.unique(rows.group)) == 2
    assert len(np.unique(rows.exit_ns - rows.device_exit_ns)) == 1


def test_a_small_communicator_is_mapped_by_its_processes(tmp_path):
    small = {"id": "0xb", "rank": 0, "n_ranks": 1}
    logs = [record(0, 1)], [record(1, 1), {**record(1, 1), "header": small}]
    groups = {group.name: group.ranks for group in read(write(tmp_path, *logs)).groups}
    assert groups == {"world": (0, 1), "communicator 0xb": (1,)}


def test_a_second_log_of_a_rank_is_left_out(tmp_path):
    other = record(0, 1)
    other["metadata"]["pid"] = 99
    trace = read(write(tmp_path, [record(0, 1), record(1, 1)], [other]))
    assert len(trace.of_kind(Kind.COLLECTIVE)) == 2
    assert any("second log of rank 0" in limit for limit in trace.limits)


def test_a_damaged_line_is_named_and_the_others_are_used(tmp_path):
    path = write(tmp_path, [record(0, 1), record(0, 2)])[0]
    path.write_text(path.read_text() + '{"header": {"id"')
    trace = read([path])
    assert len(trace.of_kind(Kind.COLLECTIVE)) == 2
    assert any("line 3: Input data was truncated" in limit for limit in trace.limits)


def test_a_log_without_records_is_a_sentence(tmp_path):
    path = tmp_path / "empty.log"
    path.write_text("")
    with pytest.raises(TraceError, match="no record of NCCL Inspector"):
        read([path])


FIELDS = st.sampled_from(
    [("header", "rank"), ("header", "n_ranks"), ("header", "id"), ("metadata", "pid")]
    + [("coll_perf", name) for name in ("coll", "coll_sn", "coll_exec_time_us", "event_trace_ts")]
    + [("metadata", "dump_timestamp_us"), ("coll_perf", "coll_msg_size_bytes")]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["kernel_events", "kernel_stop_ts", "x"]), inner)
    ),
    max_leaves=5,
)


@given(st.lists(st.tuples(FIELDS, VALUES), max_size=4), st.integers(0, 700))
def test_any_content_gives_a_trace_or_a_sentence(tmp_path_factory, changes, cut):
    item = record(0, 1)
    for (part, name), value in changes:
        item[part][name] = value
    path = write(tmp_path_factory.mktemp("log"), [record(1, 1), item])[0]
    path.write_bytes(path.read_bytes()[: 1400 - cut])
    with suppress(EvenstepError):
        diagnose(read([path])).to_json()


def test_of_a_process_with_several_devices_only_the_largest_communicator_is_placed(tmp_path):
    both = [record(0, 1), record(1, 1)]
    both[1]["metadata"]["pid"] = both[0]["metadata"]["pid"]
    small = {**record(1, 1), "header": {"id": "0xb", "rank": 0, "n_ranks": 1}}
    small["metadata"]["pid"] = both[0]["metadata"]["pid"]
    trace = read(write(tmp_path, [*both, small]))
    assert sorted(trace.of_kind(Kind.COLLECTIVE)["rank"].tolist()) == [0, 1]


def test_a_rank_beyond_its_communicator_and_one_of_another_size_are_left_out_and_named(tmp_path):
    good = [record(0, number) for number in range(3)]
    beyond, larger = record(2, 5, id="0xnew"), record(0, 6, n_ranks=4)
    (path,) = write(tmp_path, [*good, beyond, record(2, 7), larger])
    (said,) = [limit for limit in read([path]).limits if "lines were left out" in limit]
    assert "3 lines were left out" in said
    assert "line 4: rank 2 of 2 ranks in communicator 0xnew;" in said
    known = "communicator 0x7f8c496ae9f661, which has 2"
    assert f"line 5: rank 2 of 2 ranks in {known}" in said
    assert f"line 6: rank 0 of 4 ranks in {known}" in said
