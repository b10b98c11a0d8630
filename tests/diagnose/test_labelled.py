"""A slice of the labelled corpus: small, fast, and of seeds that nothing was tuned to.

The whole is `python -m benchmarks corpus`. Truth is in the labels: what was injected, into
whom, and what the job would have gained without it, by running the same program again.
"""

import numpy as np
import pytest

from benchmarks.labelled import calm, simulated, worlds
from benchmarks.labelled.example import Example, Label, judged

SEVERITY, SEED = 0.2, 5000


@pytest.mark.parametrize("cause", worlds.CAUSES)
def test_what_was_injected_comes_first_with_its_culprits(cause):
    for example in worlds.disturbed(range(SEED, SEED + 1), [SEVERITY], cause):
        found = judged(example)
        if found.counts:
            assert found.right_mode, found.findings
            assert found.right_culprit is not False, found.findings


@pytest.mark.parametrize("kind", calm.KINDS)
def test_nothing_is_found_where_nothing_is_wrong(kind):
    for example in worlds.healthy(range(SEED, SEED + 1), kind):
        assert judged(example).right_mode


@pytest.mark.parametrize("cause", ["slow", "a periodic neighbour", "many small"])
def test_simulated_causes_come_first(cause):
    for example in simulated.disturbed(range(SEED, SEED + 1), [SEVERITY], cause):
        assert judged(example).right_mode


def finding(mode, severity, *ranks):
    return {"mode": mode, "severity": severity, "where": {"ranks": list(ranks)}}


def judge(label, *findings):
    example = Example(name="", label=label, diagnosis=lambda: {"findings": list(findings)})
    return judged(example)


def test_another_mode_first_is_a_mistake_and_so_is_another_culprit():
    label = Label(mode="straggler", culprits=frozenset({1}))
    assert judge(label, finding("straggler", 0.2, 1)).right_culprit
    assert not judge(label, finding("straggler", 0.2, 1, 2)).right_culprit
    assert not judge(label, finding("incast", 0.2), finding("straggler", 0.1, 1)).right_mode


def test_findings_below_the_threshold_do_not_count():
    assert judge(Label(mode=None), finding("straggler", 0.05, 1)).right_mode


def test_what_may_be_true_as_well_counts_only_with_a_culprit():
    label = Label(mode=None, besides=frozenset({"runtime_jitter"}))
    assert judge(label, finding("runtime_jitter", 0.3)).right_mode
    assert not judge(label, finding("runtime_jitter", 0.3, 1)).right_mode


def test_losses_are_compared_with_those_injected():
    label = Label(mode="straggler", culprits=frozenset({1}), lost=0.2)
    found = judge(label, finding("straggler", 0.15, 1), finding("straggler", 0.03, 2))
    assert found.error == pytest.approx(0.15 / 0.2 - 1)


def test_labels_are_the_same_for_the_same_seed():
    random = [np.random.default_rng(3) for _ in range(2)]
    one, other = (worlds.CAUSES["chronic"](draw, SEVERITY).label for draw in random)
    assert one == other
