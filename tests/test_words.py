import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep import words
from evenstep.trace.spool.layout import Phase

SHARE = st.floats(0.001, 1.0)


@pytest.mark.parametrize(
    ("value_ns", "text"),
    [
        (0, "0"),
        (812, "812 ns"),
        (1_640, "1.64 µs"),
        (999_600, "1 ms"),
        (41_234_567, "41.2 ms"),
        (3_600e9, "3,600 s"),
        (None, "unknown"),
        (math.nan, "unknown"),
    ],
)
def test_a_duration_has_three_digits_and_the_unit_that_suits(
    value_ns: float | None, text: str
) -> None:
    assert words.duration(value_ns) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (1.0, "100 %"),
        (0.6149, "61 %"),
        (0.0842, "8.4 %"),
        (0.0004, "0.04 %"),
        (0.00001, "< 0.01 %"),
        (0.0, "0 %"),
        (None, "unknown"),
    ],
)
def test_a_share_reads_in_percent(share: float | None, text: str) -> None:
    assert words.percent(share) == text


@given(st.floats(1e-6, 1e12))
def test_a_number_is_off_by_at_most_half_of_its_third_digit(value: float) -> None:
    text = words.number(value)
    assert re.fullmatch(r"[\d,]+(\.\d+)?", text)
    assert float(text.replace(",", "")) == pytest.approx(value, rel=0.0051)


def test_evidence_keeps_its_unit_and_times_and_shares_get_a_readable_one() -> None:
    assert words.measure(1410.0, "MHz") == "1,410 MHz"
    assert words.measure(40e6, "ns") == "40 ms"
    assert words.measure(0.05, "share") == "5 %"


def test_an_interval_needs_both_ends() -> None:
    assert words.interval(0.08, 0.12) == "(8 to 12 %)"
    assert words.interval(0.08, None) == ""


def test_an_interval_whose_ends_read_alike_is_not_told() -> None:
    assert words.interval(0.196, 0.204) == ""
    assert words.interval(0.194, 0.204) == "(19 to 20 %)"


def test_many_ranges_are_cut_short_and_say_so() -> None:
    assert words.ranges([(1, 3), (5, 5), (7, 9), (11, 12)]) == "1-3, 5, 7-9, …"
    assert words.ranges([(1, 3), (5, 5), (7, 9)]) == "1-3, 5, 7-9"


@given(st.lists(SHARE, min_size=5, max_size=5), st.integers(10, 200))
def test_the_cells_of_a_bar_fill_it_and_none_is_off_by_a_whole_cell(
    parts: list[float], width: int
) -> None:
    shares = {name: part / sum(parts) for (name, _), part in zip(words.SHARES, parts, strict=True)}
    cells = words.cells(shares, width)
    assert sum(cells.values()) == width
    assert all(abs(cells[name] - shares[name] * width) < 1 for name in shares)


def test_names_from_a_trace_cannot_move_the_cursor() -> None:
    assert words.printable("a\x1b[2Jb\nc") == "a\ufffd[2Jb c"


def test_a_unit_of_one_is_no_word_and_a_factor_a_sign() -> None:
    assert words.measure(0.25, "1") == "0.25"
    assert words.measure(1.27, "factor") == "1.27 ×"


def test_a_shortened_sentence_ends_with_no_word_that_leads_on():
    text = "rank 1 entered broadcast where the others entered reduce; it was in train.py"
    assert words.shorten(text, 9) == text.partition(";")[0]
    assert words.shorten("find what stopped it (SIGSTOP)", 4) == "find what stopped it"
    text = "8 runnable tasks on 2 cores of node vm, of which training threads need 0.6, 2 switches"
    assert words.shorten(text, 10) == text.partition(",")[0]
    text = "find the place in the loop in which ranks wait for longer than they work"
    assert words.shorten(text, 7) == "find the place in the loop"


def test_a_preposition_goes_with_the_clause_that_it_leads():
    text = "10 runnable tasks on 2 cores of node vm, of which training threads need 0.51"
    assert words.shorten(text, 8) == text.partition(",")[0]


@pytest.mark.parametrize(
    ("text", "most", "short"),
    [
        ("its own work grows from step 40 on, within 2 s", 7, "its own work grows from step 40 on"),
        ("find what all the ranks wait for, then mend it", 7, "find what all the ranks wait for"),
    ],
)
def test_a_clause_that_ends_in_a_preposition_keeps_it(text, most, short):
    assert words.shorten(text, most) == short


def test_a_shortened_sentence_keeps_no_condition_of_what_it_leaves_out():
    text = "find what grows in every step; if nothing does, sample clocks of the machine"
    assert words.shorten(text, 12) == text.partition(";")[0]
    assert words.shorten("look at rank 3, if it is there, and at all others", 8) == (
        "look at rank 3, if it is there"
    )


def test_a_list_is_shortened_to_what_it_is_a_list_of():
    text = "look for what slows rank 3 down in every phase: clocks, temperature, power limit"
    assert words.shorten(text, 11) == "look for what slows rank 3 down in every phase"


def test_a_shortened_sentence_keeps_the_object_of_its_verb():
    text = "find what else runs there (daemons) and move it, or bind ranks to cores of their own"
    assert words.shorten(text, 9) == "find what else runs there and move it"
    assert words.shorten(text, 7) == "find what else runs there and move …"


@pytest.mark.parametrize(
    ("most", "kept"),
    [
        (12, "it is slower: a bit in forward, which every stage after it"),
        (11, "it is slower: a bit in forward"),
        (5, "it is slower: a bit"),
    ],
)
def test_a_sentence_loses_relative_clauses_whole_and_others_by_phrases(most, kept):
    assert words.shorten("it is slower: a bit in forward, which every stage after it", most) == kept


def test_a_part_of_a_list_behind_a_colon_is_no_end():
    """It would read like all of the list."""
    text = "compare rank 1 with another: its machine (clocks), its batches, and what it alone does"
    whole, *_, last = words.shorter_forms(text)[0]
    assert (whole, last) == (text, "compare rank 1 with another")
    assert words.shorten(text, 8) == last


def test_one_of_what_is_counted_is_single():
    assert words.measure(1, "ranks") == "1 rank"
    assert words.measure(1, "retries") == "1 retry"
    assert words.measure(2, "ranks") == "2 ranks"
    assert words.measure(2, "generation") == "2"
    assert words.measure(1, "s") == "1 s"
    assert words.measure(1, "GB/s") == "1 GB/s"
    assert words.measure(1, "1/s") == "1 1/s"


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([7], "rank 7"),
        ([0, 1], "ranks 0 and 1"),
        ([0, 1, 2], "ranks 0-2"),
        ([3, 0, 2], "ranks 0, 2 and 3"),
        ([0, 1, 2, 3, 8], "ranks 0-3 and 8"),
        (range(0, 40, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"),
        (range(0, 4000, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 1,992 more"),
    ],
)
def test_ranks_read_like_a_sentence(numbers, text):
    assert words.ranks(list(numbers)) == text


@pytest.mark.parametrize("most", range(9, 16))
def test_what_is_cut_does_not_say_the_opposite(most):
    """With its end, "do not" would lose the not; a bracket is left out whole."""
    action = (
        f"find what rank 2 does {words.PLACES[Phase.OTHER]} that the others do not, and remove it"
    )
    told = words.shorten(action, most)
    assert "not" in told or "others" not in told
    assert ("(" in told) == (")" in told)


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate",
            "RuntimeError: DefaultCPUAllocator: can't allocate",
        ),
        ("[/a/unbound_buffer.cc:78] Timed out waiting 9ms", "RuntimeError: Timed out waiting 9ms"),
        ("[Errno 5] Input/output error", "RuntimeError: [Errno 5] Input/output error"),
        ("[10.0.0.1:29500] refused", "RuntimeError: [10.0.0.1:29500] refused"),
        ("[a.cc:7]", "RuntimeError: [a.cc:7]"),
        (" ", "RuntimeError"),
    ],
)
def test_what_was_raised_is_told_without_the_place_in_a_library(raised, told):
    assert words.how_ended({"raised": {"type": "RuntimeError", "message": raised}}) == told


@pytest.mark.parametrize(
    ("third", "told"),
    [("a.py:1 f", "a.py:1 f"), ("b.py:2 g", "a.py:1 f (ranks 0 and 1), b.py:2 g (rank 2)")],
)
def test_ranks_that_were_apart_are_told_with_the_place_of_each(third, told):
    frames = [[place] for place in ("a.py:1 f", "a.py:1 f", third)]
    assert words.seen_by(enumerate(frames)) == told


def test_where_a_signal_struck_is_told_and_where_the_script_left_before_it_is_not():
    left = {"by": "SIGSEGV", "frames": ["<ctypes.py>:5 string_at", "train.py:31 step"]}
    facts = {"ended": {"signal": "SIGSEGV"}, "left": left}
    assert words.how_ended(facts) == "SIGSEGV at train.py:31 step"
    assert words.how_ended(facts, brief=True) == "SIGSEGV"
    assert words.how_ended(facts | {"left": left | {"by": "os._exit"}}) == "SIGSEGV"


def test_where_the_script_was_comes_before_where_the_package_was_that_it_called():
    frames = ["<numpy/core.py>:3 dot", "site-packages/PIL/Image.py:9 resize", "train.py:3 augment"]
    assert words.seen_at(frames) == "train.py:3 augment, in site-packages/PIL/Image.py:9 resize"
    raised = {"type": "RuntimeError", "frames": frames, "message": "closed"}
    assert words.how_ended({"raised": raised}).startswith("RuntimeError at train.py:3 augment, in ")


@pytest.mark.parametrize(
    ("inside", "told"),
    [
        (["<torch/utils/data/dataloader.py>:9 next"], "train.py:3 step, waiting for its loader"),
        (["<python/subprocess.py>:4 wait"], "train.py:3 step, in a subprocess"),
        (["<torch/_dynamo/guards.py>:8 check", "<torch/nn/module.py>:2 call"],
         "train.py:3 step, compiling"),
        (["<torch/nn/module.py>:2 call"], "train.py:3 step"),
    ],
)  # fmt: skip
def test_what_the_library_does_that_the_script_called_is_told_and_not_what_called_it(inside, told):
    frames = [*inside, "train.py:3 step", "<python/subprocess.py>:1 main"]
    assert words.seen_at(frames) == told


def test_packages_are_told_where_the_script_does_not_tell_ranks_apart():
    frames = ["-packages/b.py:1 g", "a.py:1 f"], ["-packages/b.py:2 g", "a.py:3 g"]
    assert words.seen_by(enumerate(frames)) == "a.py:1 f (rank 0), a.py:3 g (rank 1)"
    frames[1][1] = "a.py:1 f"
    told = [f"a.py:1 f, in -packages/b.py:{line} g (rank {line - 1})" for line in (1, 2)]
    assert words.seen_by(enumerate(frames)) == ", ".join(told)
