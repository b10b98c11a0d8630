"""What a script may say of itself, with and without an agent."""

import os
from types import SimpleNamespace

import pytest

import evenstep
from evenstep.agent.recording.phases import Word
from evenstep.agent.recording.recorder import Recorder
from evenstep.attachment import agent
from evenstep.trace.reader import read_spool
from evenstep.trace.spool.layout import Kind
from evenstep.trace.spool.spool import Spool


@pytest.fixture
def attached(tmp_path, monkeypatch):
    """As much of an agent as a session talks to."""
    spool = Spool.create(tmp_path / "s", {"rank": 0}, ring_bytes=1 << 16, summary_bytes=1 << 16)
    failures = []
    fake = SimpleNamespace(
        recorder=Recorder(spool), spool=spool, failure="", failures=failures,
        give_up=failures.append, end_step=lambda now, _: fake.recorder.clock.end_step(now),
    )  # fmt: skip
    monkeypatch.setattr(agent, "_agent", fake)
    yield fake
    if spool._memory is not None:
        shut(fake)


def shut(fake):
    fake.recorder.summaries.release()
    fake.spool.shut()


def records(fake, kind):
    found = read_spool(fake.spool.path).records
    return found[found["kind"] == kind]


def test_without_an_agent_everything_is_allowed_and_nothing_happens():
    with evenstep.span("block") as inside:
        evenstep.log(loss=1.0)
        evenstep.step()
    assert inside is not None


def test_a_span_is_recorded_with_its_name_and_both_its_ends(attached):
    with evenstep.span("tokenize"):
        assert records(attached, Kind.SPAN)["exit_ns"][0] == 0
    row = records(attached, Kind.SPAN)[0]
    assert row["exit_ns"] >= row["enter_ns"] > 0
    assert read_spool(attached.spool.path).names[int(row["name"])] == "tokenize"


def test_a_forked_child_that_leaves_the_block_does_not_end_its_parents_span(attached):
    with evenstep.span("parent's"):
        span = evenstep.span("both")
        span.__enter__()
        child = os.fork()
        if not child:
            span.__exit__(None, None, None)
            os._exit(0)
        os.waitpid(child, 0)
        assert records(attached, Kind.SPAN)["exit_ns"].tolist() == [0, 0]


def test_a_span_ends_with_its_block_even_by_an_exception(attached):
    with pytest.raises(ZeroDivisionError), evenstep.span("fails"):
        raise ZeroDivisionError
    assert records(attached, Kind.SPAN)["exit_ns"][0] > 0


def test_a_span_that_outlives_its_trace_is_quiet(attached):
    with evenstep.span("outer"):
        shut(attached)
        with evenstep.span("inner"):
            pass
    assert attached.failures == []


def test_a_span_ends_in_the_trace_it_began_in(attached, tmp_path, monkeypatch):
    other = Spool.create(tmp_path / "o", {"rank": 0}, ring_bytes=1, summary_bytes=1)
    seq = other.put(1, 0, Kind.COLLECTIVE)
    with evenstep.span("across"):
        monkeypatch.setattr(agent, "_agent", SimpleNamespace(spool=other, failure=""))
    assert other.times(seq) == (1, 0)
    other.shut()


@pytest.mark.parametrize("name", ["", "é", "a" * 10_000, "\ud800", None, 7])
def test_any_name_is_survived(attached, name):
    with evenstep.span(name):
        pass
    assert attached.failures == []


def test_an_internal_error_is_handed_over_and_the_block_runs(attached, monkeypatch):
    monkeypatch.setattr(Recorder, "span_begins", lambda *_: 1 // 0)
    with evenstep.span("x"):
        ran = True
    assert ran
    assert [type(error) for error in attached.failures] == [ZeroDivisionError]


def test_numbers_are_logged_and_what_is_none_is_left_out(attached):
    evenstep.log(loss=2, norm=float("nan"), note="text", huge=10**400, nothing=None, flag=True)
    names = read_spool(attached.spool.path).names
    assert [names[n] for n in records(attached, Kind.MARKER)["name"]] == ["loss", "norm", "flag"]


def test_an_object_that_refuses_to_be_a_number_is_left_out(attached):
    class Several:  # as a tensor of two elements does
        def __float__(self):
            raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")

    evenstep.log(loss=Several(), norm=2)
    assert len(records(attached, Kind.MARKER)) == 1
    assert not attached.failures


def test_logging_after_the_trace_has_ended_is_quiet(attached):
    shut(attached)
    evenstep.log(loss=1.0)


def test_a_step_of_ones_own_ends_it_and_takes_the_marking_over(attached):
    evenstep.step()
    evenstep.step()
    assert attached.recorder.stack.step == 2
    assert attached.recorder.manual


@pytest.mark.parametrize(("backward", "steps"), [(False, 1), (True, 2)])
def test_the_first_mark_after_an_optimizers_is_of_the_same_step(attached, backward, steps):
    recorder = attached.recorder
    recorder.words[Word.MARKING] = 1
    recorder.clock.end_step(10)
    if backward:  # a loop without an optimizer follows
        recorder.clock.backward_begins(20)
        recorder.clock.backward_ends(30)
    evenstep.step()
    assert recorder.stack.step == steps
    evenstep.step()
    assert recorder.stack.step == steps + 1


def test_a_step_that_fails_inside_us_is_ours_to_handle(attached):
    attached.end_step = lambda *_: 1 // 0
    evenstep.step()
    assert [type(error) for error in attached.failures] == [ZeroDivisionError]


def test_after_a_failure_nothing_is_recorded_any_more(attached):
    attached.failure = "broken"
    with evenstep.span("x"):
        evenstep.log(loss=1.0)
        evenstep.step()
    assert len(read_spool(attached.spool.path).records) == 0


def test_a_tensor_on_a_device_is_not_read(attached):
    class OnDevice:
        is_cuda = True

        def __float__(self):
            raise AssertionError("reading it would synchronise")

    evenstep.log(loss=OnDevice(), norm=2)
    assert len(records(attached, Kind.MARKER)) == 1
