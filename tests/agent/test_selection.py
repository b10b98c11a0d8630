"""Parts of a job, as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.agent.settings import config, selection
from evenstep.agent.settings.selection import Selection, Whereabouts, whereabouts
from evenstep.agent.stacks import RankInWorld
from evenstep.attachment import agent
from evenstep.errors import ConfigError
from evenstep.trace.ranks import format_ranks
from evenstep.trace.spool.identity import Identity

HERE = Whereabouts(5, 2, frozenset({"gpu012.cluster", "gpu012"}), "batch")


@given(chosen=st.sets(st.integers(0, 300), min_size=1), rank=st.integers(0, 300))
def test_ranks_are_held_by_the_text_they_are_written_as(chosen, rank):
    part = Selection(ranks=selection.ranks_text(format_ranks(chosen)))
    assert part.holds(HERE._replace(rank=rank)) is (rank in chosen)


@pytest.mark.parametrize(
    ("nodes", "held"),
    [
        ("gpu012", True),
        ("gpu012.cluster", True),
        ("gpu0[01-16]", True),
        ("gpu[001-010,012]", True),
        ("login1, gpu0[12]", True),
        ("gpu[1-20]", False),  # Slurm's widths: this is gpu1 … gpu20
        ("gpu0[13-16]", False),
        ("gpu01", False),
        ("xgpu0[01-16]", False),
    ],
)
def test_nodes_are_matched_as_slurm_writes_them(nodes, held):
    assert Selection(nodes=selection.nodes_text(nodes)).holds(HERE) is held


def test_two_brackets_stand_for_rack_and_node():
    part = Selection(nodes=selection.nodes_text("rack[1-2]n[01-04]"))
    hosts = [f"rack{rack}n{node}" for rack in (1, 2, 3) for node in ("01", "04", "05")]
    held = [host for host in hosts if part.holds(HERE._replace(hosts=frozenset({host})))]
    assert held == ["rack1n01", "rack1n04", "rack2n01", "rack2n04"]


@pytest.mark.parametrize(
    ("part", "held"),
    [
        (Selection(), True),
        (Selection(partitions="debug,batch"), True),
        (Selection(partitions="bat"), False),
        (Selection(first_nodes=3), True),
        (Selection(first_nodes=2), False),
        (Selection(ranks="0-7", first_nodes=2), False),
    ],
)
def test_everything_given_must_hold(part, held):
    assert part.holds(HERE) is held


@pytest.mark.parametrize("text", ["", "a[", "a]", "a[]", "a[2-1]", "a[x]", "a b", ",", "a,,b"])
def test_what_is_no_list_of_nodes_is_refused(text):
    with pytest.raises(ConfigError, match=r"pace\.nodes"):
        config.resolve({"pace_nodes": text}, {}, {})


@pytest.mark.parametrize("text", ["x", "3-1", "-1", "1-", "99999999", True, ""])
def test_what_is_no_set_of_ranks_is_refused(text):
    with pytest.raises(ConfigError, match=r"record\.ranks"):
        config.resolve({"record_ranks": text}, {}, {})


@pytest.mark.parametrize("parsed", [
    selection.ranks_text, selection.nodes_text, selection.names_text,
])  # fmt: skip
@pytest.mark.parametrize("value", [True, False, None, 1.5, {"a": 1}, [], ""])
def test_what_is_no_text_number_or_list_is_no_part_of_a_job(parsed, value):
    with pytest.raises(ValueError, match=r".*"):
        parsed(value)
    assert parsed(["7", 8]) in ("7,8", "7-8")


def test_a_part_comes_from_the_file_the_environment_and_arguments():
    written = {"pace": {"ranks": [4, 0], "partitions": "a,b"}}
    given = config.resolve({"pace_nodes": "n1"}, {"EVENSTEP_PACE_FIRST_NODES": "4"}, written)
    assert given.part("pace") == Selection("0,4", "n1", "a,b", 4)
    assert given.part("record") == Selection()


def test_all_is_the_whole_job_again():
    part = config.resolve({"pace_ranks": "all"}, {"EVENSTEP_PACE_RANKS": "0"}, {}).part("pace")
    assert (part, str(part)) == (Selection(), "")


def test_a_node_has_the_names_its_scheduler_gives_it():
    environ = {"SLURMD_NODENAME": "gpu7", "NODE_NAME": "k8.zone", "SLURM_JOB_PARTITION": "p"}
    place = whereabouts(Identity("r", 0, 3, 1, 4, 1, "slurm"), environ)
    assert {"gpu7", "k8", "k8.zone"} < place.hosts
    assert (place.rank, place.node, place.partition) == (3, 1, "p")


def test_a_rank_outside_the_part_that_is_observed_is_left_alone(tmp_path):
    settings = config.resolve({"out": tmp_path / "run", "record_ranks": "1-3"}, {}, {})
    identity = Identity("r", 0, 0, 0, 4, 0, "torchrun")
    assert agent._open(settings, identity, RankInWorld(0, 4)) is False
    assert not (tmp_path / "run").exists()
