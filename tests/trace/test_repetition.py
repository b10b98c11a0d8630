"""Steps from the period of group, operation and bytes, where a program marks none."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.importers.draft import Draft
from evenstep.trace import repetition
from evenstep.trace.columns import Columns
from evenstep.trace.loading import renumber
from evenstep.trace.repetition import infer_steps, with_shared_steps, with_steps
from evenstep.trace.spool.layout import Flag, Kind, Op, Phase

MS = 1_000_000
STEP_MS, STEPS = 100, 20


class Program:
    """Ranks that call what they are told, every `STEP_MS`."""

    def __init__(self, world):
        self.draft, self.counts, self.world = Draft(), {}, world
        for rank in range(world):
            self.draft.rank(rank)

    def call(self, step, at_ms, name, ranks, size=1024, lasts_ms=1):
        group = self.draft.group(name, ranks)
        number = self.counts[name] = self.counts.get(name, 0) + 1
        begun = (1000 + step * STEP_MS + at_ms) * MS
        for rank in ranks:
            self.draft.rows(rank, **{
                "kind": int(Kind.COLLECTIVE), "op": int(Op.ALL_REDUCE), "group": group,
                "group_seq": number, "bytes_in": size, "enter_ns": begun,
                "exit_ns": begun + lasts_ms * MS, "flags": int(Flag.HOST_BLOCKED),
            })  # fmt: skip

    def message(self, step, at_ms, source, target):
        group = self.draft.group("pp", range(self.world))
        number = self.counts[source, target] = self.counts.get((source, target), 0) + 1
        begun = (1000 + step * STEP_MS + at_ms) * MS
        for rank, peer, op in ((source, target, Op.SEND), (target, source, Op.RECV)):
            self.draft.rows(rank, **{
                "kind": int(Kind.POINT_TO_POINT), "op": int(op), "peer_or_root": peer,
                "group": group, "group_seq": number, "bytes_in": 64, "enter_ns": begun,
                "exit_ns": begun + MS, "flags": int(Flag.ASYNC),
            })  # fmt: skip

    def steps(self):
        trace, self.said = with_steps(self.draft.trace({}))
        rows = trace.of_kind(Kind.STEP)
        self.trace = trace
        return {rank: rows.select(rows["rank"] == rank) for rank in range(self.world)}


def test_equal_calls_for_each_layer_are_one_step_where_backward_comes_once():
    program = Program(2)
    for step in range(STEPS):
        for rank in (0, 1):
            begun = (1000 + step * STEP_MS + 2) * MS
            row = {"kind": int(Kind.PHASE), "op": int(Phase.BACKWARD)}
            program.draft.rows(rank, **row, **{"enter_ns": begun, "exit_ns": begun + MS})
        for layer in range(6):  # after pauses that vary more than those between steps
            at_ms = 10 + 14 * layer + (step * layer) % 7
            program.call(step, at_ms, "all", (0, 1), 4096)
            program.call(step, at_ms + 2, "all", (0, 1), 64)
    assert {len(rows) for rows in program.steps().values()} == {STEPS - 1}
    assert program.said == f"steps were inferred: 12 collectives that come again {STEPS - 1} times"


@pytest.fixture
def pipeline():
    """Two stages of two ranks: messages between them, all-reduces within, none of all ranks."""
    program = Program(4)
    for step in range(STEPS):
        for replica in (0, 1):
            for micro in range(3):
                program.message(step, 10 + 20 * micro + replica, replica, replica + 2)
                program.message(step, 20 + 20 * micro + replica, replica + 2, replica)
        for stage in (0, 1):
            program.call(step, 75, f"dp{stage}", (2 * stage, 2 * stage + 1))
    return program


def test_ranks_that_share_no_collective_have_the_same_steps(pipeline):
    found = pipeline.steps()
    assert {rank: len(rows) for rank, rows in found.items()} == dict.fromkeys(range(4), STEPS - 1)
    lengths = np.concatenate([rows.exit_ns - rows.enter_ns for rows in found.values()])
    assert set(lengths.tolist()) == {STEP_MS * MS}
    assert "7 collectives and messages that come again 19 times" in pipeline.said


def test_what_a_step_holds_is_the_same_on_all_ranks(pipeline):
    pipeline.steps()
    rows = pipeline.trace.of_kind(Kind.POINT_TO_POINT).sorted_by("group_seq", "payload")
    for number in np.unique(rows.group_seq):
        assert len(np.unique(rows.step[rows.group_seq == number])) == 1


def test_steps_end_after_the_same_collective_whoever_pauses_longer_before_it(pipeline):
    for step in range(STEPS):  # the second stage has longest to do before its gradients
        pipeline.call(step, 90, "world", range(4))
    rows = pipeline.steps()
    last = pipeline.trace.of_kind(Kind.COLLECTIVE)
    for rank in range(4):
        mine = last.select((last["rank"] == rank) & (last.bytes_in == 1024))
        ends = mine.exit_ns[mine.enter_ns % (STEP_MS * MS) == 90 * MS]
        assert set(rows[rank].exit_ns.tolist()) <= set(ends.tolist())


def test_a_call_now_and_then_is_passed_over():
    program = Program(2)
    for step in range(60):
        program.call(step, 10, "world", (0, 1))
        program.call(step, 40, "world", (0, 1), size=8)
        if step in (21, 34, 55):
            program.call(step, 60, "world", (0, 1), size=4)
    lengths = program.steps()[0]
    assert set((lengths.exit_ns - lengths.enter_ns).tolist()) == {STEP_MS * MS}


def test_what_never_repeats_has_no_steps():
    program = Program(2)
    for step in range(40):
        program.call(step, 10, "world", (0, 1), size=1 + step * step)
        program.call(step, 10 + step, f"only {step}", (0, 1))
    assert not any(len(rows) for rows in program.steps().values())
    calls = repetition._calls(program.trace, None)
    assert [len(repetition._cuts(calls, place)) for place in range(2)] == [0, 0]


def test_calls_that_are_all_but_even_are_a_step_each():
    program = Program(2)
    for step in range(STEPS):
        program.call(step, 5 * (step % 2), "world", (0, 1))  # pauses of 104 and 94 ms
    assert {rank: len(rows) for rank, rows in program.steps().items()} == {0: 19, 1: 19}


def test_an_inferred_step_has_its_part_of_what_the_recorded_steps_over_it_counted():
    program = Program(2)
    for step in range(STEPS):
        program.call(step, 10, "world", (0, 1))
    begun, each = 1000 * MS, 2 * STEP_MS * MS  # the rank had taken two calls for one step
    for rank, of_step in ((0, 40), (1, 60)):
        for start in range(begun, begun + STEPS * STEP_MS * MS, each):
            program.draft.rows(rank, **{
                "kind": int(Kind.STEP), "flags": int(Flag.INFERRED), "enter_ns": start,
                "exit_ns": start + each, "group_seq": of_step * MS, "parent": 1000, "group": 0,
            })  # fmt: skip
    steps = program.steps()
    assert {rank: set(rows.group_seq) for rank, rows in steps.items()} == {
        0: {20 * MS},
        1: {30 * MS},
    }
    assert {value for rows in steps.values() for value in rows.parent} == {500}


def test_what_repeats_nowhere_is_one_step_of_all_that_was_recorded():
    program = Program(2)
    for step in range(3):
        program.call(step, 10, "world", (0, 1))
    found = infer_steps(program.draft.trace({}), "nothing marks steps")
    rows = found.of_kind(Kind.STEP)
    assert rows["rank"].tolist() == [0, 1]
    assert (rows.exit_ns - rows.enter_ns).tolist() == [(2 * STEP_MS + 1) * MS] * 2
    assert found.limits[-1] == "nothing marks steps: all of it is taken as one"


def learner_and_actors(steps, last=None):
    """Rank 0 marks a step between what it gathers and what it sends; rank 2 ends after `last`."""
    program = Program(3)
    for step in range(steps):
        ranks = range(3 if last is None or step <= last else 2)
        program.call(step, 50, "world", ranks)
        program.call(step, 70, "world", ranks, size=7)
    for step in range(steps):
        end = (1000 + step * STEP_MS + 60) * MS
        mark = {"kind": int(Kind.STEP), "enter_ns": end - STEP_MS * MS, "exit_ns": end}
        program.draft.rows(0, step=step, **mark)
    trace = program.draft.trace({})
    ends = trace.of_kind(Kind.STEP).exit_ns
    marked = np.searchsorted(ends, trace.events.enter_ns) * (trace.events["rank"] == 0)
    is_step = trace.events.kind == int(Kind.STEP)
    step = np.where(is_step, trace.events.step, marked)
    events, shifts = renumber(trace.events.with_column("step", step.astype(np.uint32)))
    assert not shifts
    return with_shared_steps(replace(trace, events=events))


def test_ranks_that_mark_no_steps_have_those_of_a_rank_that_does():
    trace = learner_and_actors(STEPS)
    calls, steps = trace.of_kind(Kind.COLLECTIVE), trace.of_kind(Kind.STEP)
    for number in np.unique(calls.group_seq):
        assert len(np.unique(calls.step[calls.group_seq == number])) == 1
    for rank in (1, 2):
        mine = steps.select(steps["rank"] == rank)
        assert mine.step.tolist() == list(range(1, STEPS))
        assert set(((mine.exit_ns // MS) % STEP_MS).tolist()) == {51}  # what was gathered is sent
        assert (mine.flags & int(Flag.INFERRED)).all()
    said = "a step of ranks that mark none (1, 2) is what they share with rank 0's"
    assert trace.limits[-1] == said


def test_a_rank_that_ends_early_has_the_steps_up_to_its_end_if_they_are_not_few():
    steps = learner_and_actors(STEPS, last=9).of_kind(Kind.STEP)
    assert steps.step[steps["rank"] == 2].tolist() == list(range(1, 10))
    steps = learner_and_actors(STEPS, last=4).of_kind(Kind.STEP)
    assert set(steps["rank"].tolist()) == {0, 1}


@pytest.mark.parametrize(("marks", "last"), [([-1], STEPS), ([5], STEPS), (range(STEPS), 0)])
def test_few_marks_or_a_rank_that_ends_in_its_first_step_give_no_steps(marks, last):
    program = Program(2)
    for step in range(STEPS):
        program.call(step, 50, "world", (0, 1) if step <= last else (0,))
    for step in marks:
        end = (1000 + (step + 1) * STEP_MS) * MS
        program.draft.rows(0, kind=int(Kind.STEP), enter_ns=end - STEP_MS * MS, exit_ns=end)
    trace = program.draft.trace({})
    assert with_shared_steps(trace) is trace


def test_a_last_step_whose_collective_nobody_left_is_no_step():
    program = Program(2)
    for step in range(STEPS):
        program.call(step, 10, "a", [0, 1])
        program.call(step, 20, "b", [0, 1])
    trace = program.draft.trace({})
    assert len(with_steps(trace)[0].of_kind(Kind.STEP)) == 2 * (STEPS - 1)
    last = trace.events.seq == trace.events.seq.max()
    trace.events = trace.events.with_column("exit_ns", np.where(last, 0, trace.events.exit_ns))
    assert len(with_steps(trace)[0].of_kind(Kind.STEP)) == 2 * (STEPS - 2)


def test_a_long_collective_is_no_pause_though_a_message_comes_first():
    program = Program(2)
    for step in range(STEPS):
        program.message(step, 0, 0, 1)
        program.call(step, 5, "dp", (0, 1), lasts_ms=50)
        program.call(step, 57, "tp", (0, 1))
    starts = program.steps()[0].enter_ns // MS
    assert set((starts % STEP_MS).tolist()) == {58}  # when the last collective has ended


def test_a_step_ends_with_its_last_collective_though_the_next_call_comes_late():
    program = Program(2)
    for step in range(STEPS):
        program.call(step, 0, "dp", (0, 1), lasts_ms=30)
        program.call(step, 40, "tp", (0, 1), lasts_ms=20)  # 40 ms follow in which nobody calls
    steps = program.steps()[0]
    assert set((steps.enter_ns // MS % STEP_MS).tolist()) == {60}
    assert set(((steps.exit_ns - steps.enter_ns) // MS).tolist()) == {STEP_MS}


def test_steps_are_counted_from_the_first_call_that_comes_again():
    program = Program(2)
    program.call(-1, 90, "world", (0, 1), size=4)  # once, before the first
    for step in range(STEPS):
        program.call(step, 0, "world", (0, 1))  # and nothing for 89 ms
        program.call(step, 90, "world", (0, 1), size=8)
    steps = program.steps()[0]
    assert (steps.enter_ns[0], len(steps)) == ((1000 + 1) * MS, STEPS - 1)


@pytest.mark.parametrize("longest", [0, 1, 2])
def test_steps_end_where_ranks_pause_longest(longest):
    program, pauses = Program(2), [30, 30, 30]
    pauses[longest] += 10
    for step in range(STEPS):
        for place in range(3):
            program.call(step, sum(pauses[:place]), "world", (0, 1), size=place + 1)
    ends = {0: 1, 1: pauses[0] + 1, 2: sum(pauses[:2]) + 1}[longest]
    steps = program.steps()[1]
    assert set(((steps.enter_ns // MS) % STEP_MS).tolist()) == {ends}


@pytest.mark.parametrize(("calls", "repeated", "steps"), [(2, 5, 0), (2, 6, 5), (4, 3, 2)])
def test_calls_make_steps_once_their_order_comes_again_by_no_chance(calls, repeated, steps):
    """Of n calls after the first quarter, of k kinds in turn, all repeat by a chance of
    (1/k)^(n - k): below .01 with n of 9 for two kinds, of 9 for four."""
    program = Program(2)
    for step in range(repeated):
        for kind in range(calls):
            program.call(step, 20 * kind, "world", (0, 1), 1024 << kind)
    assert len(program.steps()[0]) == steps


def test_the_rank_whose_calls_are_most_tells_the_steps():
    """The first rank calls once a step; the second also in a group that the first is not in."""
    program = Program(3)
    for step in range(STEPS):
        program.call(step, 0, "world", (0, 1, 2))
        program.call(step, 20, "pair", (1, 2))
        program.call(step, 70, "pair", (1, 2), size=8)
    program.steps()
    assert "3 collectives that come again 19 times" in program.said


def test_calls_that_are_all_alike_make_a_step_where_their_pauses_repeat_six_times():
    program = Program(2)
    for step in range(7):
        for at_ms in (0, 10, 20, 30):
            program.call(step, at_ms, "world", (0, 1))
    program.call(7, 0, "world", (0, 1))
    steps = program.steps()[0]
    assert ((steps.exit_ns - steps.enter_ns) // MS).tolist() == [STEP_MS] * 6
    assert steps.enter_ns[0] // MS % STEP_MS == 31


@pytest.mark.parametrize(("longer_ms", "steps"), [(20, 49), (0, 299)])
def test_a_long_pause_in_each_step_tells_its_calls_also_where_all_pauses_vary(longer_ms, steps):
    """Equal calls after pauses of 10 ± 3 ms, those of every sixth longer."""
    program, draw, at_ms = Program(2), np.random.default_rng(4), 0.0
    for number in range(300):
        at_ms += max(2.0, 10 + 3 * draw.standard_normal()) + longer_ms * (number % 6 == 3)
        program.call(0, round(at_ms), "world", (0, 1))
    lengths = {len(rows) for rows in program.steps().values()}
    assert lengths == {steps}


def on_devices(clock):
    """Kernels that run 40 ms after they are issued; the host is told of none of their ends."""
    program = Program(2)
    for step in range(STEPS):
        program.call(step, 0, "dp", (0, 1))
        program.call(step, 20, "tp", (0, 1))
    trace = program.draft.trace({})
    rows = trace.events
    columns = {
        "device_enter_ns": rows.enter_ns + 40 * MS, "device_exit_ns": rows.enter_ns + 45 * MS,
        "exit_ns": 0 * rows.exit_ns, "flags": 0 * rows.flags + np.uint16(Flag.ON_DEVICE),
    }  # fmt: skip
    for name, values in columns.items():
        rows = rows.with_column(name, values)
    for info in trace.ranks.values():
        info.facts["device_clock"] = clock
    return replace(trace, events=rows)


@pytest.mark.parametrize(("clock", "ends_at"), [("host", 20 + 45), ("its own", STEP_MS)])
def test_a_step_ends_with_a_call_on_a_device_where_that_can_be_told(clock, ends_at):
    """The last calls of steps run 40 ms after they are issued; else the step ends with the next."""
    trace = on_devices(clock)
    found, _ = with_steps(trace)
    ends = found.of_kind(Kind.STEP).exit_ns[:-1] // MS
    assert set((ends % STEP_MS).tolist()) == {ends_at % STEP_MS}


GROUPS = [(0, 1), (1, 2), (0, 2), (0, 1, 2)]


@settings(max_examples=25)
@given(st.lists(st.sampled_from(GROUPS), max_size=5), st.integers(0, 3), st.integers(8, 16))
def test_any_calls_that_come_again_are_a_step_of_every_rank(calls, before, steps):
    program = Program(3)
    for number in range(before):  # what comes first is none
        program.call(-2, 10 * number, "world", range(3), size=900 + number)
    for step in range(steps):
        for place, ranks in enumerate(calls):
            program.call(step, 5 * place, str(ranks), ranks)
        program.call(step, 5 * len(calls), "world", range(3), size=7)  # and then a long pause
    found = program.steps()
    ends = STEP_MS * np.arange(1, steps) + 1000 + 5 * len(calls) + 1
    for rows in found.values():
        assert (rows.exit_ns // MS).tolist() == ends.tolist()
        assert rows.step.tolist() == list(range(1, steps))
        assert rows.enter_ns[1:].tolist() == rows.exit_ns[:-1].tolist()
    made = program.trace.of_kind(Kind.COLLECTIVE)
    own = made.select(made.enter_ns >= 1000 * MS)
    assert (own.step == (own.enter_ns // MS - 1000) // STEP_MS).all()


@settings(max_examples=15)
@given(st.integers(1, 4), st.booleans(), st.integers(9, 14))
def test_stages_that_only_send_to_each_other_have_steps_in_common(micros, back, steps):
    program = Program(3)
    for step in range(steps):
        for micro in range(micros):
            for stage in (0, 1):
                program.message(step, 4 * micro + 2 * stage, stage, stage + 1)
                if back:
                    program.message(step, 30 + 4 * micro - 2 * stage, stage + 1, stage)
    found = program.steps()
    assert {len(rows) for rows in found.values()} <= {steps - 1, steps - 2}
    rows = program.trace.of_kind(Kind.POINT_TO_POINT)
    for rank in range(3):
        mine = rows.select(rows["rank"] == rank)
        same = np.diff(mine.step.astype(int)) == 0
        assert (np.diff(mine.enter_ns)[same] < 50 * MS).all()  # a pause of 50 ms is between steps
        assert (np.diff(mine.step.astype(int)) <= 1).all()


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=4).flatmap(
    lambda unit: st.tuples(
        st.lists(st.integers(0, 9), max_size=12), st.just(unit), st.integers(1, 14),
        st.lists(st.integers(0, 9), max_size=2),
    )
).map(lambda parts: np.array([*parts[0], *parts[1] * parts[2], *parts[3]], np.int64))  # fmt: skip


@given(TOKENS)
def test_calls_of_rare_kinds_are_passed_over_where_they_are_few(token):
    """Each of which comes fewer times than steps have to be, in all but the first quarter."""
    start = len(token) // 4
    counts = Counter(token[start:].tolist())
    rare = [at for at in range(start, len(token))
            if counts[int(token[at])] < repetition.FEWEST_STEPS]  # fmt: skip
    few = len(rare) <= repetition.RARE * (len(token) - start)
    kept = [at for at in range(len(token)) if not few or at not in rare]
    assert repetition._returning(token).tolist() == kept


@given(TOKENS)
def test_a_period_is_the_shortest_after_which_all_calls_come_again(token):
    """By trying all, of those in which the rarest kind comes at most half of its times; below 0
    where it comes too few times for what may be chance."""
    settled = token[len(token) // 4 :].tolist()
    counts = Counter(settled)
    rarest = min(sorted(counts), key=counts.__getitem__)
    first = settled.index(rarest)
    alike = sum((count / len(settled)) ** 2 for count in counts.values())
    expected = 0
    for period in range(1, len(settled) - first):
        many = settled[first : first + period].count(rarest)
        if settled[first + period] != rarest or many > counts[rarest] // 2:
            continue
        if settled[period:] == settled[:-period]:
            often = counts[rarest] // many >= repetition.FEWEST_STEPS
            sure = alike ** (len(settled) - period) < repetition.COINCIDENCE
            expected = period if often or sure else -period
            break
    assert repetition._period(token) == expected


def test_no_period_is_longer_than_any_step(monkeypatch):
    token = np.array(list(range(6)) * 40)
    monkeypatch.setattr(repetition, "LONGEST", 6)
    assert repetition._period(token) == 6
    monkeypatch.setattr(repetition, "LONGEST", 5)
    assert repetition._period(token) == 0


@given(st.lists(st.integers(0, 20), min_size=2, max_size=12), st.data())
def test_a_rank_has_the_steps_up_to_the_last_whole_one_that_ended(lengths, data):
    """Cuts are the last calls of steps; its last steps may lack calls, or ends of calls."""
    cuts = np.cumsum(lengths)
    last = data.draw(st.integers(0, int(cuts[-1])))
    ended = np.zeros(int(cuts[-1]) + 1, np.int64)
    ended[: last + 1] = 7
    usual = np.median(lengths[1:])
    whole = max(at for at, length in enumerate(lengths[1:]) if length >= usual) + 2
    over = sum(1 for cut in cuts.tolist() if cut <= last)
    assert repetition._whole(cuts, ended) == min(whole, over)
    before = sum(1 for cut in cuts.tolist() if cut < cuts[-1])
    assert repetition._whole(cuts, 0 * ended) == min(whole, before)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), max_size=8),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), min_size=1, max_size=8),
)
def test_a_call_knows_how_many_backwards_its_rank_had_begun(begun, calls):
    draft = Draft()
    for rank in range(3):
        draft.rank(rank)
    for rank, at in begun:
        for op in (Phase.BACKWARD, Phase.FORWARD):
            draft.rows(rank, kind=int(Kind.PHASE), op=int(op), enter_ns=at, exit_ns=at + 1)
    rows = Columns(rank=np.array([r for r, _ in calls]), enter_ns=np.array([t for _, t in calls]))
    assert repetition._backwards(draft.trace({}), rows).tolist() == [
        sum(1 for other, begin in begun if other == rank and begin < at) for rank, at in calls
    ]
