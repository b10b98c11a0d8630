import re
from dataclasses import replace

import pytest

from evenstep.diagnose.engine import rank_findings
from evenstep.diagnose.finding import CallStack, Diagnosis, Effect, Finding, Option, Where
from evenstep.diagnose.sentences import partial, say, verdict
from evenstep.report.terminal import brief

LONG = "and so on, " * 60


def lines(diagnosis: Diagnosis, width: int = 80) -> list[str]:
    return brief.render(diagnosis, width=width, color=False).splitlines()


def worded(finding: Finding) -> Finding:
    options = [Option(LONG, 0.2, 0.1, 0.3, "", "")]
    stacks = [CallStack(3, 0.9, ["loader.py:12 fetch"])]
    return replace(finding, cause=LONG, options=options, stacks=stacks)


def test_one_finding_takes_fifteen_lines_and_two_take_twenty(diagnosis: Diagnosis) -> None:
    diagnosis.findings[:] = [worded(diagnosis.findings[0])]
    assert len(lines(diagnosis)) <= 15
    diagnosis.findings *= 2
    assert len(lines(diagnosis)) <= 20


@pytest.mark.parametrize("width", [40, 80, 100])
def test_no_line_is_wider_than_the_terminal(diagnosis: Diagnosis, width: int) -> None:
    assert max(map(len, lines(diagnosis, width))) <= width


def test_what_is_left_out_can_be_had(diagnosis: Diagnosis) -> None:
    assert "--verbose" in lines(diagnosis)[-1]


def test_one_loss_is_one_number_and_two_times(diagnosis: Diagnosis) -> None:
    finding = diagnosis.findings[0]
    said = verdict(diagnosis.findings, diagnosis.summary)
    mean_ns = diagnosis.summary["step_time"]["mean_ns"]
    assert said.after_ns == pytest.approx(mean_ns * (1 - finding.severity))
    head = " ".join(lines(diagnosis)[:2])
    assert len(re.findall(r"\d %", head)) == 1
    assert said.change in head


def test_where_mending_it_alone_gives_back_something_else_that_is_said(
    diagnosis: Diagnosis,
) -> None:
    finding = replace(diagnosis.findings[0], severity=0.3, effect=Effect(0.1))
    said = verdict([finding], diagnosis.summary)
    assert (said.cost, said.change) == (
        "costs 30 % of step time",
        "150 → 135 ms a step without it alone",
    )
    assert verdict(diagnosis.findings, diagnosis.summary).change.endswith(" without it")


@pytest.mark.parametrize(("culprit", "first"), [(0.2, "straggler"), (0.06, "runtime_jitter")])
def test_what_hosts_do_stands_behind_a_culprit_that_costs_a_third_of_it(
    diagnosis: Diagnosis, culprit: float, first: str
) -> None:
    ranks = diagnosis.findings[0].where
    named = replace(diagnosis.findings[0], mode="straggler", severity=culprit, where=ranks)
    hosts = replace(named, mode="runtime_jitter", severity=0.5, where=Where())
    assert rank_findings([hosts, named])[0].mode == first


@pytest.mark.parametrize("culprit", [0.06, 0.017])
def test_noise_stands_behind_a_cause_worth_naming_only(
    diagnosis: Diagnosis, culprit: float
) -> None:
    named = replace(diagnosis.findings[0], mode="straggler", severity=culprit)
    noise = replace(
        named, mode="synchronization_amplification", severity=culprit + 0.01, where=Where()
    )
    first = named if culprit >= 0.05 else noise
    assert [rank_findings(both)[0] for both in ([noise, named], [named, noise])] == [first, first]


@pytest.mark.parametrize(("late", "first"), [(0.02, "straggler"), (0.005, "input_pipeline")])
def test_what_a_mode_says_of_the_same_ranks_counts_with_its_costlier_finding(
    diagnosis: Diagnosis, late: float, first: str
) -> None:
    slow = replace(diagnosis.findings[0], mode="straggler", severity=0.07, where=Where([7, 5]))
    before = replace(slow, severity=late, where=Where([7]))
    loaders = replace(slow, mode="input_pipeline", severity=0.08, where=Where())
    ranked = rank_findings([loaders, slow, before])
    assert (ranked[0].mode, ranked[-1]) == (first, before)


@pytest.mark.parametrize(
    ("title", "cause", "why"),
    [
        ("Launch-bound", "launch-bound: hosts issue work slowly", "hosts issue work slowly"),
        ("Slow loader on n0", "slow loader: every batch comes late", "every batch comes late"),
        ("Launch-bound", "devices idle: hosts issue work", "devices idle: hosts issue work"),
    ],
)
def test_why_does_not_say_the_title_again(
    diagnosis: Diagnosis, title: str, cause: str, why: str
) -> None:
    finding = replace(diagnosis.findings[0], title=title, cause=cause, where=Where())
    assert verdict([finding], diagnosis.summary).why == why


def test_a_healthy_run_is_one_line(diagnosis: Diagnosis) -> None:
    diagnosis.findings[:] = [replace(diagnosis.findings[0], severity=0.01)]
    assert [line.partition(":")[0] for line in lines(diagnosis)] == ["Healthy"]
    diagnosis.summary["growth"] = {"first_ns": 100_000_000, "last_ns": 200_000_000}
    assert [line.partition(":")[0] for line in lines(diagnosis)] == ["Healthy", "steps grow longer"]


def test_steps_that_grow_longer_are_told_below_what_else_is_found(diagnosis: Diagnosis) -> None:
    diagnosis.summary["growth"] = {"first_ns": 100_000_000, "last_ns": 200_000_000}
    told = "steps grow longer: 100 ms in the first quarter of the run, 200 ms in the last"
    assert lines(diagnosis).count(told) == 1
    assert len(lines(diagnosis)) <= 15


def test_without_the_others_traces_nobody_is_called_healthy(diagnosis: Diagnosis) -> None:
    shares = diagnosis.summary["shares"] | {"exposed_communication": 0.26}
    diagnosis.summary.update(world=16, ranks=8, shares=shares)
    diagnosis.findings[:] = [replace(diagnosis.findings[0], severity=0.01)]
    first, *rest = lines(diagnosis)
    assert "8 of 16 ranks left no trace here" in first
    assert not any(line.lstrip().startswith("sure") for line in rest)
    diagnosis.summary["shares"]["exposed_communication"] = 0.01
    assert lines(diagnosis)[0].startswith("Healthy")


def test_a_run_that_mostly_communicates_is_not_called_healthy(diagnosis: Diagnosis) -> None:
    diagnosis.findings.clear()
    diagnosis.summary["shares"]["exposed_communication"] = 0.71
    first = lines(diagnosis)[0]
    assert first.startswith("Communication takes 71 % of step time")
    assert "how much is latency or bytes, this trace cannot tell" in lines(diagnosis, 200)[1]
    diagnosis.summary["shares"]["wait"] = 0.0  # as where no waits were recorded
    assert "how much is waiting, latency or bytes" in lines(diagnosis, 200)[1]
    assert "Healthy" not in brief.markdown(diagnosis)
    diagnosis.summary["shares"].update(exposed_communication=0.1, wait=0.1)
    assert lines(diagnosis)[0].startswith("Healthy")


def test_steps_that_one_rank_alone_made_are_told(diagnosis: Diagnosis) -> None:
    diagnosis.limits.append(say("limits.uneven", going_on=[1], it=30))
    told = "Only part of the run: rank 1 went on for 30 steps after another had ended its last"
    assert told in " ".join(lines(diagnosis, 200))


def test_steps_that_nothing_marks_are_called_inferred(diagnosis: Diagnosis) -> None:
    diagnosis.limits.append("steps were inferred: 3 collectives that come again 50 times")
    assert any(line.endswith(" inferred steps") for line in lines(diagnosis))


def test_waits_that_no_finding_explains_are_not_called_healthy(diagnosis: Diagnosis) -> None:
    diagnosis.findings.clear()
    diagnosis.summary["shares"]["wait"] = 0.4
    diagnosis.summary["blame"] = {"culprits": [{"rank": 3, "share": 0.6}]}
    head, _, rest = brief.render(diagnosis, width=200).partition("\n")
    assert head.startswith("Ranks wait 40 % of step time for each other")
    assert "rank 3 is waited for most" in rest


def test_a_preempted_attempt_says_so_though_it_was_healthy(diagnosis: Diagnosis) -> None:
    notice = {"attempt": 0, "signal": "SIGUSR1", "at": "2026-01-01T00:00:00.000+00:00"}
    diagnosis = replace(diagnosis, run=dict(diagnosis.run) | {"preempted": notice})
    for findings in (diagnosis.findings, []):
        shown = " ".join(lines(replace(diagnosis, findings=findings)))
        assert "Attempt 0 was preempted (SIGUSR1" in shown


def test_what_ended_the_job_has_no_share_of_a_step(diagnosis: Diagnosis) -> None:
    seen = {"title": "rank 3 never came to send", "observation": "rank 0 hung in send 4"}
    diagnosis.findings[:] = [replace(diagnosis.findings[0], mode="hang", **seen)]
    assert lines(diagnosis)[0] == "Rank 3 never came to send: rank 0 hung in send 4"


def test_who_hung_is_not_said_again_of_those_that_entered_different_calls(
    diagnosis: Diagnosis,
) -> None:
    said = {"title": "ranks 0 and 1 entered different calls", "where": Where([0, 1])}
    finding = replace(diagnosis.findings[0], mode="hang", **said)
    diagnosis.findings[:] = [replace(finding, observation="ranks 0 and 1 hung in barrier 4")]
    assert lines(diagnosis)[0] == "Ranks 0 and 1 entered different calls"


def test_where_the_late_rank_was_stands_below_the_reason(diagnosis: Diagnosis) -> None:
    diagnosis.findings[:] = [worded(diagnosis.findings[0])]
    assert any("loader.py:12 fetch (90 % of samples)" in line for line in lines(diagnosis))
    assert "- In: loader.py:12 fetch (90 % of samples)" in brief.markdown(diagnosis)


def test_ranks_that_made_different_calls_are_told_with_the_place_of_each(
    diagnosis: Diagnosis,
) -> None:
    """One of the places is wrong, and nothing tells which."""
    late = [CallStack(0, 1.0, ["train.py:7 fit"]), CallStack(1, 1.0, ["train.py:9 main"])]
    finding = replace(diagnosis.findings[0], mode="hang", where=Where([0, 1]), stacks=late)
    assert brief.seen_in(finding) == "train.py:7 fit (rank 0), train.py:9 main (rank 1)"
    alike = [replace(each, frames=late[0].frames) for each in late]
    assert brief.seen_in(replace(finding, stacks=alike)) == "train.py:7 fit"
    assert brief.seen_in(replace(finding, stacks=[])) == ""


def test_a_remedy_that_gives_nothing_back_is_not_advised(diagnosis: Diagnosis) -> None:
    useless, useful = Option("a", 0.0, 0.0, 0.0, "", ""), Option("b", 0.1, 0.1, 0.1, "", "")
    diagnosis.findings[:] = [replace(diagnosis.findings[0], options=[useless, useful])]
    assert verdict(diagnosis.findings, diagnosis.summary).action == "b"


def test_markdown_is_a_table_that_names_cannot_break(diagnosis: Diagnosis) -> None:
    diagnosis.findings[:] = [replace(diagnosis.findings[0], title="a | b", cause="*c*")]
    rows = [line for line in brief.markdown(diagnosis).splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}
    assert r"\*c\*" in brief.markdown(diagnosis)


@pytest.mark.parametrize("mode", ["hang", "rank_failed"])
def test_of_what_ended_a_job_the_verdict_is_35_words_too(diagnosis: Diagnosis, mode: str) -> None:
    seen = "ranks 0 and 1 hung in all_reduce 41 for 5 s; called in step (train.py:31); " * 3
    finding = replace(diagnosis.findings[0], mode=mode, observation=seen, cause=seen)
    options = [Option("make every rank call the same " * 5, None, None, None, "", "")]
    finding = replace(finding, options=options, title="rank 2 died")
    said = verdict([finding], diagnosis.summary, "The fabric is not at fault")
    assert 25 <= len(re.findall(r"\S*[A-Za-z]\S*", str(said))) <= 35


@pytest.mark.parametrize("severity", [0.04, 0.4])
def test_a_sentence_on_the_fabric_has_no_room_in_a_long_verdict(
    diagnosis: Diagnosis, severity: float
) -> None:
    title = "messages between two stages that are waited for " + "again and again " * 2
    finding = replace(diagnosis.findings[0], severity=severity, title=title, where=Where())
    said = verdict([finding], diagnosis.summary, "Transfers take all that compute does not hide")
    assert len(re.findall(r"\S*[A-Za-z]\S*", str(said))) <= 35
    assert not said.fabric


@pytest.mark.parametrize("cause", ["rank 3 (node gpu012) enters last: 40 ms more", "a, b: c"])
def test_the_four_parts_of_a_verdict_are_35_words(diagnosis: Diagnosis, cause: str) -> None:
    options = [
        Option("find what (of all) it does, and so on and so on " * 4, 0.2, 0.1, 0.3, "", "")
    ]
    diagnosis.findings[:] = [replace(diagnosis.findings[0], cause=cause * 6, options=options)]
    said = verdict(diagnosis.findings, diagnosis.summary)
    assert len(re.findall(r"\S*[A-Za-z]\S*", str(said))) <= 35
    assert not said.why.startswith("rank 3")  # the head has named it
    assert "(" not in said.action


def test_a_part_of_a_run_is_called_so_also_where_it_is_healthy(diagnosis: Diagnosis) -> None:
    diagnosis.summary.update(world=16, ranks=15)
    diagnosis.limits[:] = [
        "left out: b.json is a second trace of rank 0",
        "left out: c.json is a second trace of rank 0",
        "read in part: /run/rank-00001.spool is cut short: 9 bytes of 99",
        "only 14 steps",
    ]
    files = "2 files left out, rank-00001.spool is cut short"
    whole = "15 of 16 ranks (waits for the others look like transfer)"
    assert f"Only part of the run: {whole}, {files}" in " ".join(lines(diagnosis))
    diagnosis.findings.clear()
    diagnosis.summary["shares"]["wait"] = 0.1
    diagnosis.summary.update(ranks=16)
    assert lines(diagnosis)[1:] == [f"Only part of the run: {files}"]
    diagnosis.limits[:] = ["left out: /run/rank-00001.spool: the header is damaged"]
    assert lines(diagnosis)[1:] == ["Only part of the run: rank-00001.spool left out"]
    assert not partial({"ranks": 0, "world": 16}, [])  # none finished a step: no waits are told of


def test_a_cause_does_not_repeat_the_title_that_heads_it(diagnosis: Diagnosis) -> None:
    nobody = replace(diagnosis.findings[0].where, ranks=[], nodes=[])
    finding = replace(diagnosis.findings[0], title="CPU oversubscription", where=nobody)
    cause = "CPU oversubscription: 4 runnable tasks on 2 cores"
    diagnosis.findings[:] = [replace(finding, cause=cause)]
    assert lines(diagnosis)[0].startswith("CPU oversubscription: 27 % of step time")
    assert lines(diagnosis)[1].endswith("why     4 runnable tasks on 2 cores")


@pytest.mark.parametrize("healthy", [True, False])
def test_that_a_run_was_paced_and_what_that_did_is_said(
    diagnosis: Diagnosis, healthy: bool
) -> None:
    assert "acing" not in brief.render(diagnosis)
    if healthy:
        diagnosis.findings.clear()
    diagnosis.summary["pacing"] = {
        "ranks": [0, 1], "held_ranks": [0], "held_share": 0.4, "held_mean_ns": 2e6,
        "verdicts": {"does not pay": 2},
    }  # fmt: skip
    told = " ".join(lines(diagnosis))
    assert "Pacing delayed rank 0 in 40 % of the paced ranks' steps, by 2 ms" in told
    assert "result of its trials: does not pay" in told
