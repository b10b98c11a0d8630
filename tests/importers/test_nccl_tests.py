import json
from contextlib import suppress
from pathlib import Path
from random import Random
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import EvenstepError, TraceError
from evenstep.importers.content import SourceFile
from evenstep.importers.nccl import tests as nccl_tests
from evenstep.importers.opening import open_trace

# The layouts are those of the project's own logs, by version; times and bandwidths as printed.
PRESENT = """\
# nccl-tests version 2.17.1 nccl-headers=22805 nccl-library=22805
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 1 iters: 20
# Using devices
#  Rank  0 Group  0 Pid   9228 on     dgx-01 device  0 [0000:07:00] NVIDIA A100-SXM4-80GB
#  Rank  1 Group  0 Pid   9229 on     dgx-02 device  0 [0000:07:00] NVIDIA A100-SXM4-80GB
#
#                                                       out-of-place                in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)
"""
HEADER = "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong\n"
UNITS = "#  (B)  (elements)  (us)  (GB/s)  (GB/s)  (us)  (GB/s)  (GB/s)\n"
ROW = " 134217728 33554432 float sum -1  1234.5  108.72  108.72  0  1230.1  109.11  109.11  N/A\n"


def read(path):
    source = SourceFile(path, path.read_bytes()[: 1 << 16])
    return nccl_tests.read([source])["floors"]


@pytest.fixture
def floors(tmp_path):
    """The floors in a log."""

    def of(text: str):
        path = tmp_path / "log.txt"
        path.write_text(dedent(text))
        return read(path)

    return of


def test_a_log_is_recognised_by_its_table(tmp_path):
    assert nccl_tests.recognises(SourceFile(tmp_path, (PRESENT + HEADER).encode()))


def test_a_log_with_lines_of_nccl_among_them_tells_of_the_table_and_the_graph(tmp_path):
    log = tmp_path / "log.txt"
    ring = "node-a:1320:1330 [0] NCCL INFO Channel 00/02 :    0   1\n"
    log.write_text(PRESENT + ring + HEADER + ring + UNITS + ROW + ring)
    trace = tmp_path / "steps.csv"
    trace.write_text("rank,step,seconds\n0,1,2\n0,2,2\n")
    run = open_trace([trace, log]).run
    assert [floor["time_ns"] for floor in run["floors"]] == [1234500, 1230100]
    assert run["nccl"]["rings"]


def test_a_row_gives_a_floor_out_of_place_and_one_in_place(floors):
    out, within = floors(PRESENT + HEADER + UNITS + ROW)
    assert out == {
        "op": "all_reduce",
        "bytes": 134217728,
        "time_ns": 1234500,
        "algbw_gBps": 108.72,
        "busbw_gBps": 108.72,
        "ranks": 2,
        "nodes": 2,
        "in_place": False,
        "dtype": "float",
        "wrong": 0,
        "file": "log.txt",
    }
    assert (within["in_place"], within["time_ns"], within["wrong"]) == (True, 1230100, None)


def test_the_layout_without_a_root_is_read(floors):
    text = """\
        # nThread 1 nGpus 8 minBytes 8
        #   Rank  0 Pid   1320 on node-a device  0 [0x00] Tesla V100-SXM2-16GB
        #       size         count      type   redop     time   algbw   busbw  error     time  algbw  busbw  error
        #        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us) (GB/s) (GB/s)
             1048576        262144     float     sum    98.38   10.66   18.65  2e-07    98.67  10.63  18.60  2e-07
        """  # noqa: E501
    assert [floor["time_ns"] for floor in floors(text)] == [98380, 98670]


def test_columns_may_be_blank(floors):
    text = PRESENT.replace("all_reduce", "all_gather") + HEADER + UNITS
    row = " 1024  256  float   8.1  0.13  0.06  0   7.9  0.13  0.06  0\n"  # neither redop nor root
    assert [floor["op"] for floor in floors(text + row)] == ["all_gather", "all_gather"]


def test_a_row_without_its_first_results_has_the_second(floors):
    row = " 1024  256  float  sum  -1                       7.9  0.13  0.06  0\n"
    (floor,) = floors(PRESENT + HEADER + UNITS + row)
    assert (floor["in_place"], floor["time_ns"]) == (True, 7900)


def test_a_time_stamp_at_the_end_is_no_result(floors):
    header = HEADER.replace("\n", "  timestamp\n")
    row = ROW.replace("\n", "  2025-01-31 10:20:30\n")
    assert [f["time_ns"] for f in floors(PRESENT + header + UNITS + row)] == [1234500, 1230100]


def test_per_iteration_columns_are_left_aside(floors):
    header = HEADER.replace("#wrong", "#wrong i_min i_max i_p99 i_cv%")
    row = " 8 2 float sum -1  5.1 0.1 0.1 0 4.9 5.9 5.8 3.1  5.2 0.1 0.1 0 4.8 5.7 5.6 2.9\n"
    assert [f["time_ns"] for f in floors(PRESENT + header + UNITS + row)] == [5100, 5200]


def test_several_tests_in_a_file_keep_their_names_and_ranks(floors):
    second = PRESENT.replace("all_reduce", "reduce_scatter").replace("dgx-02", "dgx-01")
    found = floors(PRESENT + HEADER + UNITS + ROW + second + HEADER + UNITS + ROW)
    assert [(f["op"], f["nodes"]) for f in found[::2]] == [("all_reduce", 2), ("reduce_scatter", 1)]


@pytest.mark.parametrize(
    "tag",
    ["[1,0]<stdout>:", " 0: ", "[rank0]:", "2026-11-20T12:00:00.123456789Z ", "1: [1,3]<stdout>:",
     "\x1b[32m", "Sun Mar  2 12:00:01 2025[1,7]<stdout>:", "[prterun-node7-99@1,7]<stdout>: "],
    ids=["mpirun", "srun", "torchrun", "collector", "two of them", "colour", "times", "mpirun 5"],
)  # fmt: skip
def test_what_launchers_put_before_a_line_is_left_aside(floors, tag):
    log = PRESENT + HEADER + UNITS + ROW
    assert floors("".join(tag + line for line in log.splitlines(keepends=True))) == floors(log)


def test_the_json_report_gives_the_same(tmp_path):
    side = {"time": 1234.5, "alg_bw": 108.72, "bus_bw": 108.72, "nwrong": 0.0}
    result = {"size": 134217728, "type": "float", "redop": "sum", "root": "    -1"}
    devices = [{"rank": r, "group": 0, "hostname": f"dgx-0{r}"} for r in range(2)]
    path = tmp_path / "report.json"
    report = {
        "version": 2,
        "args": ["./build/all_reduce_perf", "-b", "8"],
        "env": ["SECRET=x"],
        "nccl_version": 22805,
        "config": {"devices": devices},
        "results": [{**result, "out_of_place": side, "in_place": None}],
    }
    path.write_text(json.dumps(report))
    assert nccl_tests.recognises(SourceFile(path, path.read_bytes()))
    (floor,) = read(path)
    assert (floor["op"], floor["time_ns"], floor["nodes"]) == ("all_reduce", 1234500, 2)


def test_a_line_of_json_per_result_is_a_floor(tmp_path):
    """The lines of rccl-tests (-Z json), ROCm/rccl-tests#93."""
    line = (
        '{{"#wrong":"0","algBw":{0},"busBw":{1},"gpusPerRank":1,"inPlace":{2},"name":"AllReduce",'
        '"nodes":2,"ranks":4,"ranksPerNode":2,"redop":"sum","size":2048,"time":19.5,"type":"float"}}'
    )
    path = tmp_path / "rccl.json"
    path.write_text("\n".join([line.format(0.105, 0.1575, 0), "[1]", line.format(0.1, 0.15, 1)]))
    assert nccl_tests.recognises(SourceFile(path, path.read_bytes()))
    found = read(path)
    assert [each["in_place"] for each in found] == [False, True]
    first = {name: found[0][name] for name in ("op", "bytes", "time_ns", "busbw_gBps", "ranks")}
    assert first == {
        "op": "all_reduce", "bytes": 2048, "time_ns": 19_500, "busbw_gBps": 0.1575, "ranks": 4,
    }  # fmt: skip
    assert found[0]["nodes"] == 2


def test_a_report_that_was_cut_is_a_sentence(tmp_path):
    path = tmp_path / "report.json"
    path.write_text('{"version": 2, "args": [')
    with pytest.raises(TraceError, match="not whole JSON"):
        read(path)


def test_a_log_without_results_is_a_sentence(floors):
    with pytest.raises(TraceError, match="no result of nccl-tests"):
        floors(PRESENT)


TOKENS = """size count type time algbw busbw #wrong timestamp # 8 -1 nan inf 1e400 float (us) (ms)
all_reduce_perf Rank"""
WORDS = st.sampled_from([*TOKENS.split(), "9" * 50, "\x00"])


@given(st.lists(st.lists(WORDS, max_size=16), max_size=8), st.binary(max_size=60))
def test_any_text_gives_floors_or_a_sentence(tmp_path_factory, rows, tail):
    path = tmp_path_factory.mktemp("log") / "log"
    text = HEADER + "\n".join(" ".join(row) for row in rows)
    path.write_bytes(text.encode() + tail)
    with suppress(EvenstepError):
        json.dumps(read(path), allow_nan=False)


@given(st.recursive(st.none() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=4))
def test_any_json_gives_floors_or_a_sentence(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("json") / "log"
    result = {"size": value, "type": value, "in_place": {"time": value}, "out_of_place": value}
    path.write_text(json.dumps({"args": value, "config": value, "results": [result, value]}))
    with suppress(EvenstepError):
        json.dumps(read(path), allow_nan=False)


def test_a_message_of_no_bytes_has_a_time_too(floors):
    row = " 0  0  float  sum  -1  5.1  0.00  0.00  0  4.9  0.00  0.00  0\n"
    assert [floor["bytes"] for floor in floors(PRESENT + HEADER + UNITS + row)] == [0, 0]


@pytest.mark.parametrize(
    ("head", "known"),
    [
        (b'{"nccl_version": "2.28", "args": []}', True),
        (b'{"args": []}', False),
        (b'{"nccl_version": 1}', False),
        (b"#  size  algbw  busbw", True),
        (b"a page about algbw", False),
        (b"# nThread 1 nGpus 8", True),
    ],
)
def test_a_table_of_nccl_tests_is_told_by_its_own_words(head, known):
    assert nccl_tests.recognises(SourceFile(Path("out"), head)) is known


def test_a_log_without_its_beginning_has_as_many_ranks_as_the_last_says(floors):
    """coreweave/nccl-tests#43 shows the last of 72 ranks: one rank on one node was taken."""
    found = floors(
        "#  Rank 71 Group  0 Pid  14840 on slurm-gb200-207-171 device  3 [0x01] NVIDIA GB200\n"
        + HEADER + UNITS
        + " 536870912 134217728 float sum -1 1806.7 297.16 586.06 0 1835.9 292.43 576.74 0\n"
    )  # fmt: skip
    assert [(one["op"], one["ranks"], one["nodes"]) for one in found] == [(None, 72, None)] * 2


@pytest.mark.parametrize("rank", ["9" * 5000, "99999999"])
def test_a_rank_beyond_all_bounds_is_none_of_a_test(floors, rank):
    head = f"#  Rank {rank} Group  0 Pid  14840 on node device  3 [0x01] NVIDIA GB200\n"
    assert {one["ranks"] for one in floors(head + HEADER + UNITS + ROW)} == {1}


def test_a_device_of_a_report_may_name_no_rank(tmp_path):
    path = tmp_path / "out.json"
    side = {"time": 10.0, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": 0}
    path.write_text(json.dumps({
        "nccl_version": "2.28", "args": ["all_reduce_perf"],
        "config": {"devices": [{}, {"rank": "x"}]},
        "results": [{"size": 10_000, "out_of_place": side}],
    }))  # fmt: skip
    assert [one["ranks"] for one in read(path)] == [2]


@pytest.mark.parametrize(
    "row",
    [1, {"op": 1}, {"op": "all_reduce", "bytes": "8", "time_ns": 1, "algbw_gBps": 1,
                    "busbw_gBps": 1}],
)  # fmt: skip
def test_what_is_no_floor_among_those_of_a_probe_is_a_sentence(tmp_path, row):
    path = tmp_path / "floors.json"
    path.write_text(json.dumps({"schema": "evenstep.floors/1", "floors": [row]}))
    with pytest.raises(TraceError, match="has no list of floors"):
        read(path)


def test_a_damaged_measurement_hides_no_other(tmp_path):
    (tmp_path / "steps.csv").write_text("rank,step,seconds\n0,1,2\n0,2,2\n")
    (tmp_path / "all_reduce.log").write_text(PRESENT + HEADER + UNITS + ROW)
    (tmp_path / "floors.json").write_text('{"schema": "evenstep.floors/1", "floors": null}')
    trace = open_trace([tmp_path / name for name in ("steps.csv", "floors.json", "all_reduce.log")])
    assert [floor["file"] for floor in trace.run["floors"]] == ["all_reduce.log"] * 2
    assert [limit for limit in trace.limits if "floors.json has no list of floors" in limit]


PROGRAMS = {"all_reduce": "float", "all_gather": "half", "reduce_scatter": "bfloat16",
            "broadcast": "int8", "reduce": "double"}  # fmt: skip


def written(random):
    """A log of up to three tests with columns, units and an order of their own; what it says."""
    text, said = [], []
    for _ in range(random.randint(1, 3)):
        op, dtype = random.choice(list(PROGRAMS.items()))
        hosts, each = random.randint(1, 3), random.randint(1, 4)
        text += [f"# Collective test starting: {op}_perf", "# nThread 1 nGpus 1 minBytes 8"]
        for rank in range(hosts * each):
            text.append(
                f"#  Rank {rank:2} Group  0 Pid {900 + rank} on node-{rank // each} device 0"
            )
        wrong = random.choice(["#wrong", "error"])
        reduces, rooted = op in ("all_reduce", "reduce_scatter", "reduce"), random.random() < 0.5
        columns = ["size", "count", "type", *["redop"] * reduces, *["root"] * rooted]
        orders = [False, True] if random.random() < 0.5 else [True, False]
        text.append("#   " + "   ".join("in-place" if one else "out-of-place" for one in orders))
        results = ["time", "algbw", "busbw", wrong]
        text.append("#  " + "  ".join([*columns, *results, *results]))
        text.append("#  (B)  (elements)  (us)  (GB/s)  (GB/s)  (us)  (GB/s)  (GB/s)")
        for _ in range(random.randint(1, 4)):
            size = random.randint(1, 10**9)
            left = [size, size // 4, dtype, *["sum"] * reduces, *[0] * rooted]
            right = []
            for in_place in orders:
                time, algbw, busbw = (round(random.uniform(0.01, 999), 2) for _ in range(3))
                errors = random.randint(0, 3)
                right += [time, algbw, busbw, errors]
                said.append({
                    "op": op, "bytes": size, "time_ns": round(time * 1e3),
                    "algbw_gBps": algbw, "busbw_gBps": busbw, "ranks": hosts * each, "nodes": hosts,
                    "in_place": in_place, "dtype": dtype, "wrong": errors, "file": "log.txt",
                })  # fmt: skip
            text.append("  ".join(map(str, [*left, *right])))
            text.append(random.choice(["# Out of bounds values : 0 OK", "a line of the job's own"]))
    return "\n".join(text) + "\n", said


@pytest.mark.parametrize("seed", range(20))
def test_what_a_log_says_is_what_is_read(floors, seed):
    text, said = written(Random(seed))
    assert floors(text) == said


@pytest.mark.parametrize("word", ["algbw", "busbw", "in-place", "out-of-place", "time"])
def test_a_comment_that_has_a_word_of_a_tables_head_is_none(floors, word):
    head = f"# all_reduce_perf\n{HEADER}{UNITS}"
    assert floors(f"{head}# {word} follows\n{ROW}# mean {word} 109\n") == floors(head + ROW)


@pytest.mark.parametrize(
    ("named", "ranks", "nodes"),
    [
        (["0 on a", "1 on a", "2 on b", "3 on b"], 4, 2),
        (["2 on b", "3 on b"], 4, None),  # the beginning is missing
        (["0 Group 0 on a", "0 Group 1 on a", "1 Group 1 on b"], 2, 2),
        ([], None, None),
    ],
)
def test_ranks_are_those_of_one_communicator(floors, named, ranks, nodes):
    rows = (one.replace(" on", " Pid 9 on") for one in named)
    who = "".join(f"#  Rank {row} device 0\n" for row in rows)
    found = floors(f"# all_reduce_perf\n# nThread 1\n{who}{HEADER}{UNITS}{ROW}")
    assert {(floor["ranks"], floor["nodes"]) for floor in found} == {(ranks, nodes)}


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e15", "-1e15", "x", "", None, [1]])
def test_what_is_no_number_that_is_printed_is_none(value):
    assert nccl_tests._number(value) is None


def test_numbers_are_read_however_they_are_printed():
    assert [nccl_tests._number(one) for one in ("0", 7, 2.5, " 1e3 ", "-1", 9e14)] == [
        0, 7, 2.5, 1000, -1, 9e14
    ]  # fmt: skip


def test_ranks_of_groups_beside_each_other_are_those_of_one_group(floors):
    device = "Pid 900 on node device 0 [0x01] NVIDIA GB200\n"
    head = "".join(f"#  Rank {rank} Group {rank // 2} {device}" for rank in range(4))
    assert floors(head + HEADER + ROW)[0]["ranks"] == 2
    older = "".join(f"#  Rank {rank} {device}" for rank in (2, 3))  # whose beginning is missing
    assert floors(older + HEADER + ROW)[0]["ranks"] == 4


@pytest.mark.parametrize("value", ["9" * 400, "x", None, [1], "nan", "1e15", 10**400])
def test_what_is_no_time_is_no_result(tmp_path, value):
    path = tmp_path / "a.json"
    row = {"size": 8, "out_of_place": {"time": value, "alg_bw": 1.0, "bus_bw": 1.0}}
    for some, count in (([row], 0), ([row, {**row, "out_of_place": {"time": "7"}}], 1)):
        path.write_text(json.dumps({"nccl_version": 1, "args": [], "results": some}))
        assert len(nccl_tests.from_json(path, probed=False)) == count
