import pytest

from evenstep.errors import ConfigError
from evenstep.probe.outcome import Board, address, gather
from evenstep.trace.spool.identity import Identity

ONE = Identity("r", 0, 0, 0, 2, 0, "torchrun")
TWO_NODES = Identity("r", 0, 1, 0, 2, 1, "slurm", nodes=2)
PLACE = {"node": 0, "host": "h", "device": "cpu", "kind": "cpu", "flop": 1, "copied_bytes": 1}


class Store(dict):
    """What the board needs of a store."""

    def set(self, key, value):
        self[key] = value

    def add(self, key, number):
        self[key] = self.get(key, 0) + number
        return self[key]

    def check(self, keys):
        return all(key in self for key in keys)

    def get(self, key, default=None):
        return dict.get(self, key, default)


def test_ranks_of_one_node_meet_there():
    assert address(ONE, {}) == ("127.0.0.1", 29531)
    assert address(ONE, {"MASTER_ADDR": "gpu1", "MASTER_PORT": "4000"}) == ("gpu1", 4000)


def test_ranks_of_several_nodes_must_be_told_where():
    with pytest.raises(ConfigError, match="export MASTER_ADDR="):
        address(TWO_NODES, {})


def test_a_port_that_is_none_is_named():
    with pytest.raises(ConfigError, match=r"MASTER_PORT.*'http'"):
        address(ONE, {"MASTER_PORT": "http"})


@pytest.fixture
def board():
    return Board(Store(), 3)


def stopped(board):
    board.read()
    return gather(board, 3).stopped


def test_who_never_arrived_is_told(board):
    board.post(0, "arrived", PLACE)
    board.post(2, "arrived", PLACE)
    assert stopped(board) == {1: "never arrived"}
    assert not board.all_arrived()


def test_who_fell_silent_first_is_told_not_those_who_wait(board):
    for rank in range(3):
        board.post(rank, "arrived", PLACE)
    board.post(0, "compute", [1])
    board.post(2, "compute", [1])
    assert stopped(board) == {1: "stopped in stage compute"}


def test_failures_are_told_in_the_order_they_happened(board):
    for rank in range(3):
        board.post(rank, "arrived", PLACE)
        failure = {"stage": "pairs", "error": f"E: {rank}", "time_ns": 10 - rank}
        board.post(rank, "failed", failure)
    assert list(stopped(board)) == [2, 1, 0]


def test_posts_survive_the_way_through_the_store(board):
    board.post(1, "memory", [1, 2, 3])
    assert board.read()
    assert board.posts["memory"] == {1: [1, 2, 3]}
    assert not board.read()
