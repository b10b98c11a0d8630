import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import EvenstepError, TraceError
from evenstep.importers.compression import read_head
from evenstep.importers.content import SourceFile
from evenstep.importers.nccl import debug as nccl_debug

# Lines as NCCL 2.4 to 2.28 print them; hosts and numbers are made up.
LOG = """\
gpu01:100:100 [0] NCCL INFO NCCL version 2.19.3+cuda12.3
gpu01:100:150 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5_0,mlx5_1.
gpu01:100:150 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
gpu02:200:250 [1] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.2<0>
gpu01:100:150 [0] NCCL INFO Using network IB
gpu01:100:150 [0] NCCL INFO comm 0x55a rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1c000 commId 0xabc - Init START
gpu02:200:250 [1] NCCL INFO comm 0x66b rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 2d000 commId 0xabc - Init START
gpu01:100:150 [0] NCCL INFO Channel 00/02 :    0   1
gpu01:100:150 [0] NCCL INFO Channel 01/02 :    1   0
gpu01:100:150 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->1
gpu02:200:250 [1] NCCL INFO Trees [0] -1/-1/-1->1->0 [1] 0/-1/-1->1->-1
gpu01:100:150 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA
gpu02:200:250 [1] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [receive] via NET/IB/1
gpu01:100:150 [0] NCCL INFO 2 coll channels, 0 collnet channels, 0 nvls channels, 2 p2p channels
gpu01:100:150 [0] NCCL INFO AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}
gpu01:100:150 [0] NCCL INFO 1048576 Bytes -> Algo 1 proto 2 time 35.2
gpu02:200:250 [1] misc/socket.cc:484 NCCL WARN socketProgress: Connection closed by remote peer
gpu02:200:250 [1] misc/socket.cc:484 NCCL WARN socketProgress: Connection closed by remote peer
"""  # noqa: E501


def read(*paths):
    sources = [SourceFile(path, path.read_bytes()[: 1 << 16]) for path in paths]
    return nccl_debug.read(sources)


@pytest.fixture
def heard(tmp_path):
    """What a log says."""

    def of(text: str):
        path = tmp_path / "log"
        path.write_text(text)
        return read(path)["nccl"]

    return of


def test_a_log_is_recognised_wherever_nccl_speaks(tmp_path):
    said = "[2025-01-31 10:20:30] " + LOG.splitlines()[0]
    warned = "train.py:7: FutureWarning: loading with weights_only=False is deprecated\n"
    for text, known in ((said, True), (warned * 2_000 + said, True), ("loss 0.3 step 4", False)):
        (path := tmp_path / "out.log").write_text(text)
        assert nccl_debug.recognises(SourceFile(path, read_head(path))) == known


def test_ranks_are_told_apart_in_mixed_lines(heard):
    facts = heard(LOG)
    assert facts["version"] == "2.19.3+cuda12.3"
    assert (facts["world"], facts["nodes"]) == (2, 2)
    assert facts["ranks"]["1"] == {"host": "gpu02", "pid": 200, "gpu": 1, "bus_id": "2d000"}
    assert facts["ranks"]["0"]["nics"] == ["0"]


def test_rings_and_trees_are_given_per_channel(heard):
    facts = heard(LOG)
    assert facts["rings"] == {"0": [0, 1], "1": [1, 0]}
    assert facts["trees"] == {"0": [-1, 0], "1": [1, -1]}  # the parent of each rank
    assert facts["channels"] == 2


def test_the_network_is_described(heard):
    facts = heard(LOG)
    assert facts["network"] == "IB"
    assert facts["nics"]["gpu01"] == ["mlx5_0:1/IB", "mlx5_1:1/RoCE"]
    assert facts["transports"] == {"NET/IB": 2}
    assert facts["gpu_direct_rdma"] is False  # one of the two links goes without
    assert facts["environment"] == {"NCCL_IB_HCA": "mlx5_0,mlx5_1"}


def test_choices_have_their_names_whether_printed_as_words_or_numbers(heard):
    choices = [(c["op"], c["bytes"], c["algorithm"], c["protocol"]) for c in heard(LOG)["choices"]]
    assert choices == [(None, 1048576, "Ring", "Simple"), ("AllReduce", 4096, "RING", "LL")]


def test_a_warning_is_kept_once_with_how_often_it_came(heard):
    (warning,) = heard(LOG)["warnings"]
    assert (warning["text"][:14], warning["times"]) == ("socketProgress", 2)


def test_lines_of_old_versions_are_understood(heard):
    facts = heard(
        "node:24570:24907 [0] NCCL INFO Channel 00 :    0   1   2\n"
        "node:24570:24907 [0] NCCL INFO Ring 00 : 1 -> 2 [send] via NET/Socket/0\n"
        "NCCL version 2.4.8+cuda10.0\n"
        "node:24570:24907 [0] NCCL INFO comm 0x7f rank 1 nranks 3 cudaDev 0 - Init COMPLETE\n"
    )
    assert facts["version"] == "2.4.8+cuda10.0"
    assert facts["rings"] == {"0": [0, 1, 2]}
    assert facts["transports"] == {"NET/Socket": 1}
    assert facts["world"] == 3


def test_nodes_are_those_a_communicator_counts(heard):
    line = "node:1:2 [0] NCCL INFO ncclCommInitRank comm 0x7f rank 0 nRanks 8 nNodes 4 cudaDev 0\n"
    assert heard(line)["nodes"] == 4


@pytest.mark.parametrize(("ways", "direct"), [(["/GDRDMA"], True), ([""], False), ([], None)])
def test_memory_is_reached_directly_if_all_links_do(heard, ways, direct):
    link = "node:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0"
    speaks = "node:1:2 [0] NCCL INFO Using network IB\n"
    assert heard(speaks + "".join(f"{link}{way}\n" for way in ways))["gpu_direct_rdma"] is direct


def test_rccl_prints_the_same(heard):
    line = "amd:1:2 [0] NCCL INFO RCCL version 2.21.5+hip6.3 HEAD:abc\n"
    assert heard(line)["version"] == "2.21.5+hip6.3"


def test_results_of_nccl_tests_in_the_same_log_are_floors(tmp_path):
    path = tmp_path / "log"
    table = (
        "# Collective test starting: all_reduce_perf\n"
        "#  size count type redop root time algbw busbw #wrong\n"
        "  1000 250 float sum -1 10.0 0.10 0.10 0\n"
    )
    path.write_text(LOG + table)
    assert [floor["time_ns"] for floor in read(path)["floors"]] == [10_000]


def test_a_log_in_which_nccl_says_nothing_is_a_sentence(tmp_path):
    path = tmp_path / "log"
    path.write_text("nothing\n")
    with pytest.raises(TraceError, match="NCCL_DEBUG=INFO"):
        read(path)


PIECES = st.sampled_from(
    [*LOG.splitlines(), *LOG.split(), "9" * 30, "-1", "\x00", "comm 0x1 rank 9 nranks 999999999"]
)


@given(st.lists(st.lists(PIECES, max_size=4).map(" ".join), max_size=8), st.binary(max_size=40))
def test_any_text_gives_facts_or_a_sentence(tmp_path_factory, rows, tail):
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_bytes("\n".join(rows).encode() + tail)
    with suppress(EvenstepError):
        json.dumps(read(path), allow_nan=False)


@given(st.integers(0, len(LOG)))
def test_a_log_cut_anywhere_gives_facts_or_a_sentence(tmp_path_factory, length):
    path = tmp_path_factory.mktemp("cut") / "log"
    path.write_text(LOG[:length])
    with suppress(EvenstepError):
        assert read(path)["nccl"]["warnings"] is not None


def test_no_tree_is_heard_of_beyond_the_most_channels_and_ranks():
    log = nccl_debug._Log()
    for channel, rank in ((0, 1), (nccl_debug.MOST_CHANNELS, 1), (1, nccl_debug.MOST_RANKS)):
        nccl_debug._tree(log, ("host", 1), ("", str(channel), str(rank), "3"))
    assert log.trees == {0: {1: 3}}


def test_an_id_far_from_a_communicator_is_not_its_own(heard):
    line = "gpu01:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 2{} commId 0xabc\n"
    found = [heard(line.format("." * gap))["communicators"][0]["id"] for gap in (80, 81)]
    assert found == ["0xabc", "of 2 ranks"]  # else a line of many takes quadratic time


def test_choices_are_counted(heard):
    line = "gpu01:1:1 [0] NCCL INFO AllReduce: 4096 Bytes -> Algo RING proto LL channel\n"
    other = "gpu01:1:1 [0] NCCL INFO 8192 Bytes -> Algo 1 proto 2 time 35.2\n"
    assert [one["times"] for one in heard(2 * line + other)["choices"]] == [1, 2]


def test_a_ring_that_nccl_cut_at_the_end_of_a_line_is_none(heard):
    """NVIDIA/nccl#1453: 20 of 24 ranks in each of 16 channels."""
    said = "gpu01:1:1 [0] NCCL INFO "
    facts = heard(
        f"{said}comm 0x5 rank 0 nRanks 24 nNodes 3 localRanks 8\n"
        f"{said}Channel 00/16 :  {'  '.join(map(str, range(20)))}\n"
    )
    assert (facts["rings"], facts["channels"], facts["world"]) == ({}, 16, 24)


def test_rings_are_told_where_nobody_named_a_communicator_and_channels_where_there_are_none(heard):
    ring = "gpu01:1:1 [0] NCCL INFO Channel 03/04 :    1   0\n"
    assert heard(ring)["rings"] == {"3": [1, 0]}
    assert (heard(ring)["channels"], heard(ring)["world"]) == (4, None)
    nothing = heard("gpu01:1:1 [0] NCCL INFO Using network IB\n")
    assert (nothing["rings"], nothing["channels"], nothing["nodes"]) == ({}, None, None)


def test_a_whole_log_is_these_facts_and_no_others(heard):
    """The numbers 1 and 2 are Ring and Simple in NCCL's `nccl_common.h`."""
    nics = ["mlx5_0:1/IB", "mlx5_1:1/RoCE"]
    assert heard(LOG) == {
        "version": "2.19.3+cuda12.3", "world": 2, "nodes": 2, "channels": 2, "network": "IB",
        "ranks": {
            "0": {"host": "gpu01", "pid": 100, "gpu": 0, "bus_id": "1c000", "nics": ["0"]},
            "1": {"host": "gpu02", "pid": 200, "gpu": 1, "bus_id": "2d000"},
        },
        "communicators": [{"id": "0xabc", "size": 2, "ranks_heard": 2}],
        "rings": {"0": [0, 1], "1": [1, 0]},
        "trees": {"0": [-1, 0], "1": [1, -1]},
        "transports": {"NET/IB": 2},
        "nics": {"gpu01": nics, "gpu02": nics},
        "gpu_direct_rdma": False,  # one of both links goes through the host
        "choices": [
            {"op": None, "bytes": 1048576, "algorithm": "Ring", "protocol": "Simple", "times": 1},
            {"op": "AllReduce", "bytes": 4096, "algorithm": "RING", "protocol": "LL", "times": 1},
        ],
        "environment": {"NCCL_IB_HCA": "mlx5_0,mlx5_1"},
        "warnings": [
            {"text": "socketProgress: Connection closed by remote peer", "times": 2}
        ],
    }  # fmt: skip


def test_of_what_comes_without_end_the_first_is_kept(heard, monkeypatch):
    """Two of each are kept; of what is known already, more are counted."""
    for name in ("COMMUNICATORS", "WARNINGS", "CHOICES", "VARIABLES", "CHANNELS"):
        monkeypatch.setattr(nccl_debug, f"MOST_{name}", 2)
    said = "gpu01:1:1 [0] NCCL "
    log = [
        *(f"{said}INFO comm 0x{n} rank {n} nranks 8 commId 0x{n} - Init" for n in (0, 1, 2)),
        f"{said}INFO comm 0x9 rank 5 nranks 8 commId 0x1 - Init",
        *(f"{said}WARN warning {n}" for n in (0, 1, 2, 1)),
        *(f"{said}INFO {n} Bytes -> Algo 0 proto 0 time 1" for n in (1, 2, 3, 2)),
        *(f"{said}INFO NCCL_V{n} set by environment to {n}." for n in (0, 1, 2)),
        f"{said}INFO NCCL_V1 set by environment to 7.",
        *(f"{said}INFO Channel 0{n}/04 :  0 1 2 3 4 5 6 7" for n in (0, 1, 2)),
        f"{said}INFO Channel 00/04 :  1 0 2 3 4 5 6 7",
    ]
    found = heard("\n".join(log) + "\n")
    assert found["communicators"] == [
        {"id": "0x0", "size": 8, "ranks_heard": 1}, {"id": "0x1", "size": 8, "ranks_heard": 2},
    ]  # fmt: skip
    assert found["warnings"] == [
        {"text": "warning 1", "times": 2}, {"text": "warning 0", "times": 1}
    ]  # fmt: skip
    assert [(one["bytes"], one["times"]) for one in found["choices"]] == [(1, 1), (2, 2)]
    assert found["environment"] == {"NCCL_V0": "0", "NCCL_V1": "1"}
    assert found["rings"] == {"0": [*range(8)], "1": [*range(8)]}


@pytest.mark.parametrize(
    ("rank", "size", "heard_of"),
    [(0, 1, True), (7, 8, True), (8, 8, False), (0, 0, False), (0, 1 << 20, True),
     (0, (1 << 20) + 1, False)],
)  # fmt: skip
def test_a_communicator_has_ranks_below_its_size(heard, rank, size, heard_of):
    line = f"gpu01:1:1 [0] NCCL INFO comm 0x1 rank {rank} nranks {size} commId 0xabc - Init\n"
    found = heard(line)
    assert found["ranks"] == ({str(rank): {"host": "gpu01", "pid": 1}} if heard_of else {})


def test_devices_of_a_rank_are_those_it_sends_by(heard):
    """In ranks of the largest communicator; a link to be received by tells nothing of that."""
    comm = "gpu01:1:1 [0] NCCL INFO comm 0x1 rank {} nranks 3 commId 0xabc - Init\n"
    link = "gpu01:1:1 [0] NCCL INFO Channel 00/0 : {}[0] -> 1[1] [{}] via NET/IB/{}/GDRDMA\n"
    log = comm.format(0) + comm.format(2)
    log += link.format(0, "send", 3) + link.format(0, "send", 1) + link.format(0, "send", 3)
    log += link.format(2, "receive", 5) + link.format(1, "send", 4)
    found = heard(log + link.format(2, "send", 5).replace("/5/GDRDMA", ""))
    assert found["ranks"]["0"]["nics"] == ["1", "3"]
    assert "nics" not in found["ranks"]["2"]
    assert found["transports"] == {"NET/IB": 6}
    assert found["gpu_direct_rdma"] is False


def test_trees_name_the_parent_of_each_rank_that_was_heard(heard):
    trees = "gpu01:1:1 [0] NCCL INFO Trees [0] 1/-1->{}->{} [1] -1->{}->{}\n"
    found = heard(trees.format(0, -1, 0, 2) + trees.format(2, 0, 2, -1))
    assert found["trees"] == {"0": [-1, None, 0], "1": [2, None, -1]}
    assert found["channels"] == 2


def test_a_long_warning_counts_again_though_no_other_is_taken_any_more(heard, monkeypatch):
    monkeypatch.setattr(nccl_debug, "MOST_WARNINGS", 1)
    line = f"gpu01:1:1 [0] NCCL WARN {'x' * 500}\n"
    other = "gpu01:1:1 [0] NCCL WARN another\n"
    assert heard(line + other + line)["warnings"] == [{"text": "x" * 400, "times": 2}]


@pytest.mark.parametrize("text", ["00x", "7", "12"])
def test_an_algorithm_of_no_known_number_keeps_what_was_printed(heard, text):
    found = heard(f"gpu01:1:1 [0] NCCL INFO 8 Bytes -> Algo {text} proto {text} time 1\n")
    assert [(one["algorithm"], one["protocol"]) for one in found["choices"]] == [(text, text)]


def test_what_a_log_sets_and_names_is_kept_up_to_a_length(heard):
    log = [
        "gpu01:1:1 [0] NCCL INFO NCCL_A set by environment to " + "v" * 500,
        f"gpu01:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/{'n' * 500}",
        "gpu01:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 12345678 commId 0xa - Init",
    ]
    found = heard("\n".join(log) + "\n")
    assert found["environment"] == {"NCCL_A": "v" * 400}
    assert found["ranks"]["0"]["nics"] == ["n" * 400]
    assert found["ranks"]["0"]["gpu"] == 123456


def test_trees_that_claim_more_ranks_than_are_kept_are_none(monkeypatch):
    trees = {0: {0: -1, 3: 0}, 1: {1: 0}}
    for most, kept in ((8, True), (7, False)):
        monkeypatch.setattr(nccl_debug, "MOST_MEMBERS", most)
        assert bool(nccl_debug._trees(trees, 2)) is kept
