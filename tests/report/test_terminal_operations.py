"""The published measures of an operation table, as the report prints them."""

from evenstep.report.terminal.sentences import stragglers

FOUND = {
    "blocking_slowdown": 1.18,
    "launch_slowdown": 1.02,
    "ms": {"Ms": 0.6},
    "mw": {"Mw": 0.03},
    "blocking_decompose_by_stage": {3: 1.2, 0: 1.0},
    "blocking_decompose_by_dp_rank": {1: 1.17},
    "blocking_decompose_by_optype": dict.fromkeys("abcde", 1.0),
}


def test_slowdown_and_its_shares_are_printed_under_their_names():
    first, second, *_ = stragglers(FOUND)
    assert first.startswith("slowdown 1.18 ×")
    assert "60 % disappears with a usual last stage (M_S)" in second
    assert "3 % with usual slowest workers (M_W)" in second


def test_parts_stand_with_the_slowest_first_and_many_are_cut_short():
    *_, stage, dp_rank, optype = stragglers(FOUND)
    assert stage == "slowdown by stage: 3 1.2 ×, 0 1 ×"
    assert dp_rank == "slowdown by data-parallel rank: 1 1.17 ×"
    assert optype.endswith("d 1 × …")


def test_a_trace_without_operations_says_nothing():
    assert not list(stragglers({}))
