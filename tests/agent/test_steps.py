"""What the events of a training thread mean. Times are small numbers, told from outside."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.agent.recording.phases import PhaseStack, Word
from evenstep.agent.recording.steps import (
    SHORTEST_EVALUATION_NS,
    ClosedStep,
    StepClock,
    Turns,
)
from evenstep.trace.reader import read_spool
from evenstep.trace.spool.layout import Kind, Phase
from evenstep.trace.spool.spool import Spool

MS = SHORTEST_EVALUATION_NS


@pytest.fixture(scope="module")
def spool(tmp_path_factory):
    path = tmp_path_factory.mktemp("steps") / "s"
    opened = Spool.create(path, {"rank": 0}, ring_bytes=1 << 16, summary_bytes=1)
    yield opened
    opened.shut()


@pytest.fixture
def clock(spool):
    """A step that began at 0, without DDP unless a forward is reported."""
    return StepClock(PhaseStack(spool), 0)


def leaf(closed):
    """Leaf times by phase, those of zero left out."""
    return {Phase(phase): ns for phase, ns in enumerate(closed.phase_ns) if ns}


def backward_begins(clock, now):
    clock.backward_begins(now, clock.stack.words[Word.LAST_ENTRY])


def backward_ends(clock, now):
    clock.backward_ends(now, clock.stack.words[Word.LAST_ENTRY])


def issue(clock, seq, now):
    """What the recorder of Python's own kernels does for one that does not block its caller."""
    clock.stack.words[Word.LAST_ENTRY] = now
    if clock.backwards:
        clock.unreported.append(seq)


def optimize(clock, begin, end):
    """The marking optimizer steps, which ends the step."""
    clock.optimizer_begins(begin)
    clock.ends(end)
    return clock.end_step(end)


# -- the law ---------------------------------------------------------------------------------------

EVENTS = {
    "input": lambda clock, now, back: clock.input_begins(now),
    "batch": lambda clock, now, back: clock.input_ends(now, 1),
    "forward": lambda clock, now, back: clock.forward_begins(now, training=True),
    "eval forward": lambda clock, now, back: clock.forward_begins(now, training=False),
    "output": lambda clock, now, back: clock.forward_ends(now),
    "backward": lambda clock, now, back: backward_begins(clock, now),
    "gradients": lambda clock, now, back: backward_ends(clock, now),
    "optimizer": lambda clock, now, back: clock.optimizer_begins(now),
    "checkpoint": lambda clock, now, back: clock.begins(Phase.CHECKPOINT, now),
    "ends": lambda clock, now, back: clock.ends(now),
    "train": lambda clock, now, back: clock.mode_changes(now, training=True),
    "eval": lambda clock, now, back: clock.mode_changes(now, training=False),
    "issue": lambda clock, now, back: issue(clock, 1, now),
    "wait": lambda clock, now, back: clock.stack.add(Phase.SYNC, now - back, now),
    "blocking": lambda clock, now, back: clock.stack.count(Phase.SYNC, now - back, now),
}
TALES = st.lists(
    st.tuples(st.sampled_from([*EVENTS, "step"]), st.integers(0, 3 * MS), st.integers(0, 5 * MS)),
    max_size=60,
)


def told(clock, tale):
    """Tell the clock a tale of (event, time since the last, length of a wait); the closed steps."""
    now, closed = 0, []
    for event, gap, back in tale:
        now += gap
        if event == "step":
            closed.append(clock.end_step(now))
        else:
            EVENTS[event](clock, now, back)
    return [*closed, clock.end_step(now)]


@settings(max_examples=100, deadline=None)
@given(tale=TALES)
def test_leaf_times_add_up_to_the_step_whatever_happens(spool, tale):
    closed = told(StepClock(PhaseStack(spool), 0), tale)
    for step in closed:
        assert min(step.phase_ns) >= 0
        assert sum(step.phase_ns) == step.end_ns - step.start_ns
    assert [step.start_ns for step in closed[1:]] == [step.end_ns for step in closed[:-1]]


@settings(max_examples=100, deadline=None)
@given(tale=TALES)
def test_whatever_happened_a_plain_step_afterwards_is_read_right(spool, tale):
    clock = StepClock(PhaseStack(spool), 0)
    finished = ("batch", "output", "gradients", "ends")  # what hooks report in a `finally`
    start = told(clock, [*tale, *((event, 0, 0) for event in finished * len(tale))])[-1].end_ns
    clock.end_step(start)
    clock.forward_begins(start + 10, training=True)
    clock.forward_ends(start + 20)
    backward_begins(clock, start + 20)
    backward_ends(clock, start + 50)
    assert leaf(optimize(clock, start + 50, start + 55)) == {
        Phase.OTHER: 10, Phase.FORWARD: 10, Phase.BACKWARD: 30, Phase.OPTIMIZER: 5,
    }  # fmt: skip


# -- forward and backward --------------------------------------------------------------------------


def test_a_step_with_ddp_divides_at_every_event(clock):
    clock.input_begins(0)
    clock.input_ends(5, 32)
    clock.forward_begins(6, training=True)
    clock.forward_ends(20)
    backward_begins(clock, 25)  # the loss lies between
    backward_ends(clock, 60)
    closed = optimize(clock, 62, 70)
    assert leaf(closed) == {
        Phase.OTHER: 3, Phase.INPUT: 5, Phase.FORWARD: 19, Phase.BACKWARD: 35, Phase.OPTIMIZER: 8,
    }  # fmt: skip
    assert (closed.number, closed.samples, closed.unsteady) == (0, 32, True)


def test_without_ddp_the_forward_reaches_from_the_last_phase_to_backward(clock):
    clock.input_begins(0)
    clock.input_ends(5, 1)
    backward_begins(clock, 30)
    backward_ends(clock, 50)
    assert leaf(optimize(clock, 50, 51))[Phase.FORWARD] == 25


def test_under_gradient_accumulation_each_micro_batch_has_its_forward(clock):
    for start in (0, 100):
        backward_begins(clock, start + 40)
        backward_ends(clock, start + 100)
    closed = optimize(clock, 200, 210)
    assert leaf(closed) == {Phase.FORWARD: 80, Phase.BACKWARD: 120, Phase.OPTIMIZER: 10}


def test_a_forward_without_backward_ends_where_the_module_returned(clock):
    clock.forward_begins(0, training=True)
    clock.forward_ends(10)
    clock.input_begins(15)
    clock.input_ends(20, 1)
    assert leaf(clock.end_step(20)) == {Phase.FORWARD: 10, Phase.INPUT: 5, Phase.OTHER: 5}


def test_a_collective_after_such_a_forward_takes_nothing_away_from_it(clock):
    clock.forward_begins(0, training=True)
    clock.stack.count(Phase.SYNC, 2, 4)  # inside it
    clock.forward_ends(10)
    clock.stack.count(Phase.SYNC, 12, 18)  # averaging the loss
    clock.input_begins(20)
    clock.input_ends(20, 1)
    assert leaf(clock.end_step(20)) == {Phase.FORWARD: 8, Phase.SYNC: 8, Phase.OTHER: 4}


def test_recomputing_a_forward_inside_backward_stays_backward(clock):
    clock.forward_begins(0, training=True)
    clock.forward_ends(10)
    backward_begins(clock, 10)
    clock.forward_begins(20, training=True)
    clock.forward_ends(30)
    backward_ends(clock, 40)
    assert leaf(clock.end_step(40)) == {Phase.FORWARD: 10, Phase.BACKWARD: 30}


def test_a_nested_backward_is_the_outer_ones(clock):
    clock.forward_begins(0, training=True)
    clock.forward_ends(0)
    backward_begins(clock, 0)
    backward_begins(clock, 10)
    backward_ends(clock, 20)
    backward_ends(clock, 30)
    assert leaf(clock.end_step(30)) == {Phase.BACKWARD: 30}


def test_nested_modules_are_one_forward(clock):
    clock.forward_begins(0, training=True)
    clock.forward_begins(2, training=True)
    clock.forward_ends(4)
    clock.forward_ends(10)
    assert leaf(clock.end_step(10)) == {Phase.FORWARD: 10}


def test_backward_ends_with_the_wait_for_what_was_issued_last(clock):
    clock.forward_begins(0, training=True)
    clock.forward_ends(0)
    backward_begins(clock, 0)
    issue(clock, 1, 30)
    issue(clock, 2, 40)
    backward_ends(clock, 100)
    assert leaf(clock.end_step(100)) == {Phase.BACKWARD: 40, Phase.SYNC: 60}


def test_what_was_waited_for_inside_backward_is_not_waited_for_at_its_end(clock):
    clock.forward_begins(0, training=True)
    clock.forward_ends(0)
    backward_begins(clock, 0)
    issue(clock, 1, 30)
    clock.stack.add(Phase.SYNC, 35, 50)
    clock.stack.words[Word.LAST_ENTRY] = 0
    backward_ends(clock, 100)
    assert leaf(clock.end_step(100)) == {Phase.BACKWARD: 85, Phase.SYNC: 15}


def test_saving_inside_backward_after_the_last_bucket_is_counted_once(clock):
    clock.forward_begins(0, training=True)
    clock.forward_ends(0)
    backward_begins(clock, 0)
    issue(clock, 1, 30)
    clock.begins(Phase.CHECKPOINT, 40)
    clock.ends(90)
    backward_ends(clock, 100)
    assert leaf(clock.end_step(100)) == {
        Phase.BACKWARD: 40, Phase.CHECKPOINT: 50, Phase.SYNC: 10,
    }  # fmt: skip


@pytest.mark.parametrize("awaits_all", [True, False])
def test_only_ddp_closes_what_no_callback_has_reported(clock, spool, awaits_all):
    clock.forward_begins(0, training=True, awaits_all=awaits_all)
    clock.forward_ends(0)
    backward_begins(clock, 0)
    seq = spool.put(30, 0, Kind.COLLECTIVE)
    issue(clock, seq, 30)
    backward_ends(clock, 100)
    assert spool.times(seq) == (30, 100 if awaits_all else 0)


# -- steps -----------------------------------------------------------------------------------------


def test_a_phase_open_across_a_boundary_is_split_there(clock):
    backward_begins(clock, 10)
    first = optimize(clock, 20, 30)  # an optimizer in a hook of backward
    backward_ends(clock, 50)
    second = clock.end_step(60)
    assert leaf(first) == {Phase.FORWARD: 10, Phase.BACKWARD: 10, Phase.OPTIMIZER: 10}
    assert leaf(second) == {Phase.BACKWARD: 20, Phase.OTHER: 10}


def test_two_optimizers_share_the_step_of_the_marking_one(clock):
    clock.optimizer_begins(0)
    clock.ends(10)
    closed = optimize(clock, 12, 20)
    assert leaf(closed) == {Phase.OPTIMIZER: 18, Phase.OTHER: 2}


def test_an_optimizer_that_calls_another_and_a_closure_stay_one_stretch(clock):
    clock.optimizer_begins(0)
    backward_begins(clock, 10)  # its closure
    backward_ends(clock, 20)
    clock.optimizer_begins(30)
    clock.ends(40)
    clock.ends(50)
    assert leaf(clock.end_step(50)) == {Phase.OPTIMIZER: 40, Phase.BACKWARD: 10}


@pytest.mark.parametrize("begin", ["forward", "eval forward", "optimizer"])
def test_an_exception_that_hides_an_end_costs_at_most_that_step(clock, begin):
    EVENTS[begin](clock, 0, 0)  # raised before its end could be reported
    clock.end_step(100)
    clock.input_begins(100)
    clock.input_ends(110, 1)
    assert leaf(clock.end_step(120)) == {Phase.INPUT: 10, Phase.OTHER: 10}


def test_the_records_of_phases_tell_their_leaf_times(spool, clock):
    before = read_spool(spool.path).records["seq"][-1:].sum()
    clock.forward_begins(0, training=True)
    clock.forward_ends(0)
    backward_begins(clock, 0)
    issue(clock, 1, 30)
    backward_ends(clock, 100)
    records = read_spool(spool.path).records
    new = records[records["seq"] > before]
    backward, sync = new[new["op"] == Phase.BACKWARD][0], new[new["op"] == Phase.SYNC][0]
    assert (backward["enter_ns"], backward["exit_ns"], backward["group_seq"]) == (0, 100, 30)
    assert (sync["enter_ns"], sync["exit_ns"], sync["group_seq"]) == (30, 100, 70)
    assert sync["parent"] == backward["seq"]


# -- evaluation ------------------------------------------------------------------------------------


def test_a_stretch_under_eval_is_evaluation_with_all_that_happens_in_it(clock):
    clock.mode_changes(10 * MS, training=False)
    clock.input_begins(11 * MS)
    clock.input_ends(12 * MS, 64)
    clock.forward_begins(12 * MS, training=False)
    clock.forward_ends(19 * MS)
    clock.mode_changes(20 * MS, training=True)
    closed = clock.end_step(30 * MS)
    assert leaf(closed) == {Phase.EVALUATION: 10 * MS, Phase.OTHER: 20 * MS}
    assert closed.unsteady
    assert closed.samples == 0  # nobody trains on them


def test_waits_for_other_ranks_are_no_part_of_an_evaluation(spool, clock):
    """Else who waits for rank 0, which alone plots or writes meanwhile, evaluates as long as it."""
    clock.mode_changes(10 * MS, training=False)
    clock.stack.count(Phase.SYNC, 12 * MS, 17 * MS)  # a barrier
    clock.mode_changes(20 * MS, training=True)
    last = read_spool(spool.path).records[-1]
    assert (last["op"], last["exit_ns"] - last["enter_ns"]) == (Phase.EVALUATION, 10 * MS)
    assert last["group_seq"] == 5 * MS
    told = {Phase.EVALUATION: 5 * MS, Phase.SYNC: 5 * MS, Phase.OTHER: 20 * MS}
    assert leaf(clock.end_step(30 * MS)) == told


def test_without_a_return_to_training_its_forwards_are_evaluation(clock):
    clock.mode_changes(0, training=False)
    clock.forward_begins(10, training=False)
    clock.forward_ends(20)
    assert leaf(clock.end_step(30)) == {Phase.EVALUATION: 10, Phase.OTHER: 20}


def test_freezing_a_part_of_the_model_is_not_an_evaluation(clock):
    clock.mode_changes(0, training=True)
    clock.mode_changes(1, training=False)  # the frozen part
    backward_begins(clock, 40 * MS)
    backward_ends(clock, 50 * MS)
    optimize(clock, 50 * MS, 51 * MS)
    clock.mode_changes(51 * MS, training=True)
    backward_begins(clock, 90 * MS)
    closed = clock.end_step(100 * MS)
    assert Phase.EVALUATION not in leaf(closed)
    assert not closed.unsteady


def test_two_modules_that_change_modes_in_turn_are_not_evaluating(clock):
    clock.mode_changes(0, training=False)  # the generator
    clock.mode_changes(MS // 10, training=True)  # the discriminator
    backward_begins(clock, 5 * MS)
    backward_ends(clock, 9 * MS)
    closed = optimize(clock, 9 * MS, 10 * MS)
    assert Phase.EVALUATION not in leaf(closed)


def test_a_checkpoint_makes_a_step_unsteady(clock):
    clock.begins(Phase.CHECKPOINT, 10)
    clock.ends(20)
    closed = clock.end_step(30)
    assert leaf(closed) == {Phase.CHECKPOINT: 10, Phase.OTHER: 20}
    assert closed.unsteady


def test_samples_are_counted_unless_they_are_told(clock):
    for told, count in ((None, 12), (5, 5)):
        start = clock.start_ns
        for _ in range(3):
            clock.input_begins(start)
            clock.input_ends(start, 4)
        if told is not None:
            clock.set_samples(told)
        assert clock.end_step(start + 10).samples == count
    assert clock.end_step(clock.start_ns + 10).samples == 0


@pytest.mark.parametrize("awaits_all", [True, False])
def test_whoever_waits_for_turns_may_delay_a_phase_and_hears_of_its_end(clock, awaits_all):
    told = []

    class Late(Turns):
        def begins(self, phase, now_ns):
            told.append(("begins", phase, now_ns))
            return now_ns + 5

        def ends(self, phase, now_ns):
            told.append(("ends", phase, now_ns))

    clock.turns.append(Late())
    clock.input_begins(10)
    clock.input_ends(30, 1)
    clock.forward_begins(40, True, awaits_all)
    clock.forward_ends(50)
    backward_begins(clock, 50)
    backward_ends(clock, 80)
    told_of_backward = [("ends", Phase.BACKWARD, 80)] * awaits_all
    assert told == [("begins", Phase.INPUT, 10), ("ends", Phase.INPUT, 30), *told_of_backward]
    assert leaf(clock.end_step(80))[Phase.INPUT] == 15
    assert Turns().begins(Phase.INPUT, 7) == 7


def test_collectives_of_a_backward_before_are_not_closed_by_the_next(clock, spool):
    """A second forward does not wait: what it left open stays so."""
    seqs = []
    for awaits_all, at in ((False, 0), (True, 100)):
        clock.forward_begins(at, True, awaits_all)
        clock.forward_ends(at)
        backward_begins(clock, at)
        seqs.append(spool.put(at + 30, 0, Kind.COLLECTIVE))
        issue(clock, seqs[-1], at + 30)
        backward_ends(clock, at + 90)
    assert [spool.times(seq) for seq in seqs] == [(30, 0), (130, 190)]


def test_an_evaluation_ends_before_a_backward_or_an_optimizer_begins(clock):
    """Under `eval()` a model may train, too: nothing of it is evaluation then."""
    for begins in (
        lambda now: backward_begins(clock, now),
        lambda now: clock.optimizer_begins(now),
    ):
        start = clock.start_ns
        clock.mode_changes(start, training=False)
        begins(start + 2 * MS)
        clock.ends(start + 3 * MS)
        clock.backwards = 0
        clock.mode_changes(start + 9 * MS, training=True)
        assert Phase.EVALUATION not in leaf(clock.end_step(start + 10 * MS))


def test_an_evaluation_lasts_from_the_first_module_that_changes_to_the_return(clock):
    clock.mode_changes(10 * MS, training=False)
    clock.mode_changes(15 * MS, training=False)  # a module inside
    clock.mode_changes(20 * MS, training=True)
    clock.mode_changes(25 * MS, training=True)
    assert leaf(clock.end_step(30 * MS)) == {Phase.EVALUATION: 10 * MS, Phase.OTHER: 20 * MS}


def test_the_shortest_evaluation_counts_and_no_shorter_one(clock):
    for lasts, counts in ((MS, True), (MS - 1, False)):
        start = clock.start_ns
        clock.mode_changes(start, training=False)
        clock.mode_changes(start + lasts, training=True)
        assert (Phase.EVALUATION in leaf(clock.end_step(start + 2 * MS))) == counts


def test_only_the_first_step_and_those_with_a_checkpoint_or_an_evaluation_are_unsteady():
    plain = [0] * len(Phase)
    for phase in Phase:
        spent = list(plain)
        spent[phase] = 5
        special = phase in (Phase.CHECKPOINT, Phase.EVALUATION)
        assert ClosedStep(3, 0, 10, spent).unsteady == special
    assert ClosedStep(0, 0, 10, plain).unsteady
    assert not ClosedStep(1, 0, 10, plain).unsteady
