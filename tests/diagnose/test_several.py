"""Several synthetic runs at different sizes, diagnosed together."""

from dataclasses import replace

import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.modes.scaling_collapse import diagnose_together
from evenstep.diagnose.predict.scaling import scaling_point
from evenstep.report.terminal import brief
from tests.diagnose.synthetic import MS, World


def runs(*worlds, **run):
    traces = [world.trace() for world in worlds]
    traces = [replace(trace, run={**trace.run, **run}) for trace in traces]
    return [scaling_point(trace, diagnose(trace)) for trace in traces]


def world(ranks, **changes):
    """64.2 ms of work and one exposed transfer that grows with the square of ranks."""
    transfer = 0.02 * MS * ranks * ranks
    return World(ranks=ranks, steps=30, noise=0.002, transfer_ns=transfer, **changes)


@pytest.fixture(scope="module")
def falling():
    return diagnose_together(runs(*(world(ranks, samples=8) for ranks in (4, 8, 16, 32))))


def test_efficiency_lost_is_the_severity(falling):
    (finding,) = falling.findings
    # (64.2 + .32)/(64.2 + 20.48 + queue): four buckets in flight share the link behind backward
    largest = falling.summary["scaling"]["points"][-1]
    assert finding.mode == "scaling_collapse"
    assert finding.severity == pytest.approx(1 - largest["efficiency"], abs=1e-3)


def test_throughput_is_in_samples_where_the_batch_is_known(falling):
    scaling = falling.summary["scaling"]
    assert (scaling["unit"], scaling["kind"]) == ("samples/s", "weak")
    # 4 ranks of 8 samples in 64.2 ms of work and .32 ms of transfer
    assert scaling["points"][0]["throughput"] == pytest.approx(32 / 64.52e-3, rel=0.01)


def test_past_the_knee_fewer_ranks_are_recommended(falling):
    scaling = falling.summary["scaling"]
    assert scaling["recommended_ranks"] < 32
    assert falling.findings[0].options[0].action.startswith("use about")
    assert "More ranks than about" in falling.verdict


def test_runs_that_scale_have_no_finding():
    same = [World(ranks=ranks, steps=30, noise=0.002) for ranks in (2, 4, 8)]
    together = diagnose_together(runs(*same))
    assert together.findings == []
    assert together.verdict.endswith("it scales.")


def test_more_ranks_for_the_same_samples_scale_strongly():
    together = diagnose_together(runs(world(4, samples=32), world(8, samples=16)))
    assert together.summary["scaling"]["kind"] == "strong"
    assert together.limits == [
        "two sizes carry one parameter of the law: its knee and peak are guesses"
    ]


def test_runs_of_one_size_say_nothing_about_scaling():
    together = diagnose_together(runs(world(4), world(4)))
    assert together.findings == []
    assert together.limits == ["the runs are all of one size: nothing can be said about scaling"]


def test_runs_of_different_scripts_are_told_and_make_no_curve():
    one, other = runs(world(4), command=["a.py"]), runs(world(8), command=["torchrun", "b.py"])
    together = diagnose_together([*one, *other])
    assert (together.findings, together.summary["scaling"]) == ([], None)
    head = "No scaling to judge: the runs are of different scripts: a.py, b.py"
    assert brief.render(together, width=80, color=False).startswith(head)
    assert "the runs are of different scripts: a.py, b.py" in together.limits


def test_the_document_has_the_keys_of_every_diagnosis(falling):
    assert set(falling.to_json()) == {"schema", "run", "summary", "findings", "limits"}
    assert [run["world"] for run in falling.run["runs"]] == [4, 8, 16, 32]
