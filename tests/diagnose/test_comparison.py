"""What changed between two runs, on jobs whose difference is known."""

import dataclasses

import numpy as np
import pytest

from evenstep.diagnose.compare.comparison import (
    account,
    block_steps,
    compare,
    memory,
    parts,
    seen_variance,
    usual_of_same,
    word_of_difference,
)
from evenstep.diagnose.compare.result import (
    BETTER,
    NO_EVIDENCE,
    WORSE,
    pair_findings,
    parse_conditions,
    reason_met,
)
from evenstep.diagnose.finding import When, Where
from evenstep.errors import UsageError
from evenstep.importers.opening import open_trace
from evenstep.statistics.interval import student
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Phase
from tests.diagnose.synthetic import MS, World

STEPS = 120
CALM = World(noise=0.02, steps=STEPS)


def run_of(name, world):
    trace = world.trace()
    return account(name, trace)


@pytest.fixture(scope="module")
def calm():
    return run_of("calm", CALM)


@pytest.fixture(scope="module")
def slowed():
    """Rank 2 computes 8 ms longer in every backward; the same noise otherwise."""
    return run_of("slowed", CALM.slow(2, Phase.BACKWARD, 8 * MS))


@pytest.fixture(scope="module")
def congested():
    """The same work; every eighth step's transfers take 12 ms more, after backward is over."""

    def fabric(move):
        return (0.5 + 12.0 * (move.step % 8 == 0)) * MS

    return run_of("congested", dataclasses.replace(CALM, fabric=fabric, style="blocking"))


def test_a_run_against_itself_shows_no_evidence_of_anything(calm):
    found = compare(calm, calm)
    words = [found.verdict, *(c.verdict for c in (*found.changes, *found.findings))]
    assert set(words) == {NO_EVIDENCE}
    assert all(change.difference == 0 for change in found.changes)


@pytest.mark.parametrize("seed", range(1, 6))
def test_the_same_job_with_other_noise_shows_no_evidence(calm, seed):
    other = run_of("again", dataclasses.replace(CALM, seed=seed))
    assert compare(calm, other).verdict == NO_EVIDENCE


def test_a_slower_run_is_worse_and_the_way_back_better(calm, slowed):
    assert compare(calm, slowed).verdict == WORSE
    assert compare(slowed, calm).verdict == BETTER


def test_the_interval_holds_the_injected_difference(calm, slowed):
    slow = CALM.slow(2, Phase.BACKWARD, 8 * MS)
    injected = (slow.length_ns() - CALM.length_ns()) / STEPS  # replayed with the same noise
    step = compare(calm, slowed).change("step_time")
    assert step.low <= injected <= step.high
    assert step.difference == pytest.approx(injected, rel=0.02)


def test_numbers_are_those_of_the_diagnoses(calm, slowed):
    found = compare(calm, slowed)
    for run, side in ((calm, "baseline"), (slowed, "value")):
        summary = run.diagnosis.summary
        for name, share in summary["shares"].items():
            assert getattr(found.change(f"{name}_share"), side) == pytest.approx(share)
        assert getattr(found.change("throughput"), side) == pytest.approx(
            summary["throughput"]["value"]
        )
        assert getattr(found.change("cv"), side) == pytest.approx(summary["step_time"]["cv"])


@pytest.mark.parametrize("pair", [("calm", "slowed"), ("slowed", "calm"), ("calm", "congested")])
def test_parts_add_up_to_the_difference_of_the_step(pair, request):
    found = compare(*map(request.getfixturevalue, pair))
    assert sum(part.difference_ns for part in found.parts) == pytest.approx(found.difference_ns)


def test_a_straggler_costs_the_others_wait(calm, slowed):
    split = {part.part: part for part in compare(calm, slowed).parts}
    # four ranks: one computes 8 ms more, which is 2 ms in the mean; the rest of the growth is wait
    assert split["compute"].difference_ns == pytest.approx(2 * MS, rel=0.01)
    assert split["wait"].low_ns > 0
    assert abs(split["contention"].difference_ns) < 0.01 * MS


def test_transfers_above_their_floor_are_contention(congested):
    quiet = run_of("quiet", dataclasses.replace(CALM, style="blocking"))
    split = {part.part: part for part in compare(quiet, congested).parts}
    # four collectives in every eighth step, 12 ms more each: 6 ms a step in the mean
    assert split["contention"].difference_ns == pytest.approx(6 * MS, rel=0.05)
    assert abs(split["floor"].difference_ns) < 0.1 * MS


def test_a_floor_is_that_of_the_same_transfer_in_other_steps():
    step = np.repeat(np.arange(20), 3)
    took = np.tile([5.0, 8.0, 3.0], 20)  # the first, second and third of each step
    took[7] += 100.0
    rows = {"step": step, "kind": np.zeros(60, int), "transfer_ns": took, "grown": np.ones(60)}
    assert usual_of_same(Columns(rows))["floor_ns"].tolist() == [5.0, 8.0, 3.0] * 20


def test_a_faster_fabric_lowers_the_floor(congested):
    quiet = run_of("quiet", dataclasses.replace(CALM, style="blocking"))
    faster = run_of("faster", dataclasses.replace(CALM, style="blocking", transfer_ns=0.2 * MS))
    split = {part.part: part.difference_ns for part in compare(quiet, faster).parts}
    assert split["floor"] == pytest.approx(-4 * 0.3 * MS, rel=0.02)  # four collectives a step


def test_locality_is_taken_out_of_the_wait_first_and_then_of_the_transfer(congested):
    at = np.arange(congested.steps)
    without = parts(congested, at, split=True, locality=0.0)
    share = (without["wait"] + without["floor"] / 2) / sum(without.values())
    found = parts(congested, at, split=True, locality=share)
    assert found["wait"] == pytest.approx(0, abs=1)
    assert found["floor"] == pytest.approx(without["floor"] / 2)
    assert sum(found.values()) == pytest.approx(sum(without.values()))
    assert found["locality"] == pytest.approx(share * sum(found.values()))


def test_more_locality_than_there_is_to_wait_and_move_stays_within_it(congested):
    found = parts(congested, np.arange(congested.steps), split=True, locality=1.0)
    assert min(found.values()) >= 0
    assert sum(found.values()) == pytest.approx(congested.length_ns.mean())


def test_a_new_finding_is_named_and_worse(calm, slowed):
    found = compare(calm, slowed)
    straggler = next(item for item in found.findings if item.mode == "straggler")
    assert (straggler.change, straggler.verdict, straggler.ranks) == ("new", WORSE, (2,))
    assert straggler.title in found.sentence


def test_findings_are_matched_by_their_cause_wherever_it_is(slowed):
    other = run_of("other", CALM.slow(1, Phase.BACKWARD, 8 * MS))
    assert {item.change for item in pair_findings(slowed.diagnosis, slowed.diagnosis)} == {"kept"}
    moved = pair_findings(slowed.diagnosis, other.diagnosis)
    straggler = next(item for item in moved if item.mode == "straggler")
    assert straggler.ranks == (1,)
    assert straggler.title == "rank 2 → rank 1: Slow backward"  # so it is told that it moved


def test_a_cause_of_all_ranks_that_becomes_one_rank_s_is_said_to_be_of_none_before(slowed):
    first = next(one for one in slowed.diagnosis.findings if one.mode == "straggler")
    whole = dataclasses.replace(first, where=Where(), title="Slow backward")
    turns = dataclasses.replace(
        first, when=When((), "rotating"), title="Slow backward, one rank after the other"
    )
    for before, place in ((whole, "no rank in particular"), (turns, "one rank after the other")):
        found = pair_findings(
            dataclasses.replace(slowed.diagnosis, findings=[before]), slowed.diagnosis
        )
        assert f"{place} → rank 2: Slow backward" in [item.title for item in found]


def test_runs_of_different_sizes_are_compared_per_rank_too():
    small, large = run_of("small", World(ranks=4)), run_of("large", World(ranks=8, samples=0))
    found = compare(small, large)
    assert found.change("throughput_per_rank").relative == pytest.approx(-0.5, abs=0.01)
    assert found.verdict == WORSE  # in all it is faster
    assert found.sentence.startswith("large is slower than small per rank: throughput -50 %")
    assert ", in all " in found.sentence
    assert any("4 ranks, large 8" in limit for limit in found.limits)


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"transfer_ns": 0.8 * MS}, "transfers in quiet steps, too"),
        ({"pace": 1.2}, "compute"),
    ],
)
def test_what_is_slower_without_a_finding_is_told_by_its_largest_part(changed, part):
    known = {"style": "blocking", "samples": 4}
    found = compare(run_of("calm", World(**known)), run_of("slow", World(**known, **changed)))
    assert f"; mostly {part}: " in found.sentence


def test_slower_steps_of_which_no_part_is_known_are_not_told_to_be_of_another(tmp_path):
    runs = []
    for name, seconds in (("calm", 0.1), ("slow", 0.13)):
        times = [f"{step},{seconds + step % 7 / 1e4}" for step in range(60)]
        file = tmp_path / f"{name}.csv"
        file.write_text(
            "\n".join(
                ["rank,step,step_time_s", *(f"{rank},{one}" for rank in (0, 1) for one in times)]
            )
        )
        runs.append(account(name, open_trace([file])))
    found = compare(*runs)
    assert found.verdict == WORSE
    assert "mostly" not in found.sentence


def test_runs_with_other_batches_are_said_to_have_steps_of_another_size():
    small, large = (run_of(str(n), World(samples=n, pace=n / 16)) for n in (16, 24))
    limits = compare(small, large).limits
    assert any("16 has 16 samples a rank, of 24 24: compare throughput" in one for one in limits)
    assert not any("samples a rank" in one for one in compare(small, small).limits)


def test_a_run_without_steps_cannot_be_compared(calm):
    broken = dataclasses.replace(calm, name="empty", step_ns=np.zeros(0))
    assert compare(calm, broken).sentence.startswith("empty has no step that every rank finished")


def test_steps_that_took_no_time_cannot_be_compared(calm):
    broken = dataclasses.replace(calm, name="timeless", step_ns=0 * calm.step_ns)
    assert compare(broken, calm).sentence.startswith("timeless has no step")


def test_what_is_sure_but_negligible_is_no_evidence():
    assert word_of_difference(1e-5, 2e-5, 1, negligible=1e-3) == NO_EVIDENCE
    assert word_of_difference(2e-3, 3e-3, 1, negligible=1e-3) == BETTER
    assert word_of_difference(2e-3, 3e-3, -1, negligible=1e-3) == WORSE
    assert word_of_difference(-3e-3, 2e-3, -1, negligible=1e-3) == NO_EVIDENCE


@pytest.mark.parametrize(
    ("freedom", "published"),  # t(.975), the tables in any textbook
    [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (7, 2.365), (10, 2.228), (30, 2.042)],
)
def test_student_is_that_of_the_tables(freedom, published):
    assert student(freedom) == pytest.approx(published, rel=0.01)


def test_every_run_has_at_least_five_blocks_where_it_can():
    assert all(steps // block_steps(steps) >= 5 for steps in range(5, 3000))


def process(coefficient, steps, seed=0):
    noise = np.random.default_rng(seed).standard_normal(steps)
    values = np.zeros(steps)
    for i in range(1, steps):
        values[i] = coefficient * values[i - 1] + noise[i]
    return values


@pytest.mark.parametrize("coefficient", [0.0, 0.5, 0.8])
def test_the_memory_of_a_process_is_its_coefficient(coefficient):
    assert memory(process(coefficient, 4000)) == pytest.approx(coefficient, abs=0.05)


def test_blocks_of_a_process_show_as_much_of_its_variance_as_is_said():
    values = process(0.8, 200_000).reshape(-1, 10)
    whole = (1 / (1 - 0.8)) ** 2 / 10  # of the mean of ten, were blocks independent: σ²/(1-φ)²/l
    assert values.mean(axis=1).var() / whole == pytest.approx(seen_variance(0.8, 10), rel=0.05)


def test_a_run_with_memory_has_a_wider_interval(calm):
    other = dataclasses.replace(calm, step_ns=1e6 * (100 + process(0.8, calm.steps)))
    assert other.widening > 1.2 * calm.widening


# -- conditions ------------------------------------------------------------------------------------


def failing(text, comparison):
    return [
        reason
        for condition in parse_conditions(text)
        if (reason := reason_met(condition, comparison))
    ]


def test_a_condition_is_met_beyond_its_limit_only(calm, slowed):
    found = compare(calm, slowed)
    slower = -found.change("throughput").relative  # about 8 / 66 = 12 %, less what noise hid
    assert failing(f"slower:{slower - 0.01}", found)
    assert not failing(f"slower:{slower + 0.01}", found)
    assert not failing("slower:0", compare(slowed, calm))


def test_noise_alone_meets_no_condition(calm):
    other = run_of("again", dataclasses.replace(CALM, seed=3))
    assert failing("slower:0%,step:0%,p50:0%,wait:0%,finding:0%", compare(calm, other)) == []


def test_several_conditions_are_each_told(calm, slowed):
    reasons = failing("slower:2%, wait:1%, finding:3%, cv:500%", compare(calm, slowed))
    assert [reason.partition(":")[0] for reason in reasons] == ["slower", "wait", "finding"]


@pytest.mark.parametrize(
    "text", ["slower", "slower:x", "faster:2%", "slower:-1%", "slower:nan", ""]
)
def test_a_condition_that_is_not_understood_says_what_is_expected(text):
    with pytest.raises(UsageError, match="NAME:LIMIT such as slower:2%"):
        parse_conditions(text)


def test_nothing_is_better_because_the_step_is_longer(calm, slowed):
    found = compare(calm, slowed)
    assert found.change("step_time").verdict == WORSE
    assert found.change("compute_share").verdict != BETTER
