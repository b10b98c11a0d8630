import re
import subprocess
import sys
from dataclasses import replace

import pytest

from evenstep.diagnose.finding import Diagnosis, Effect, When, Where
from evenstep.report.terminal import terminal
from evenstep.report.terminal.style import Style, wants_color
from evenstep.words import percent
from tests.report.test_movement import BLAME
from tests.report.test_scaling import CURVE

ESCAPE = re.compile(r"\x1b\[\d+m")


def empty() -> Diagnosis:
    summary = {"verdict": "The parts are healthy.", "steps": 0, "ranks": 1}
    return Diagnosis(run={}, summary=summary, findings=[])


def test_the_verdict_is_the_first_thing_said(diagnosis: Diagnosis) -> None:
    text = terminal.render(diagnosis, width=80, color=False)
    first = text.split("\n\n")[0]
    assert " ".join(first.split()) == diagnosis.verdict


@pytest.mark.parametrize("width", [40, 80, 100])
def test_no_line_is_wider_than_the_terminal(diagnosis: Diagnosis, width: int) -> None:
    lines = terminal.render(diagnosis, width=width, color=True).splitlines()
    assert max(len(ESCAPE.sub("", line)) for line in lines) <= width


def test_without_a_terminal_it_is_80_columns_wide(
    diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert terminal.render(diagnosis) == terminal.render(diagnosis, width=80, color=False)


def test_colour_changes_no_word(diagnosis: Diagnosis) -> None:
    plain = terminal.render(diagnosis, width=80, color=False)
    assert "\x1b" not in plain
    assert ESCAPE.sub("", terminal.render(diagnosis, width=80, color=True)) == plain


class Terminal:
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variable", "value", "colored"), [("TERM", "xterm", True), ("TERM", "dumb", False),
                                       ("NO_COLOR", "1", False), ("NO_COLOR", "", True)]
)  # fmt: skip
def test_a_terminal_gets_colour_unless_asked_not_to(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, colored: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(variable, value)
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert wants_color() is colored


def test_a_finding_answers_its_four_questions_in_order(diagnosis: Diagnosis) -> None:
    text = terminal.render(diagnosis, width=80, color=False)
    labels = [text.index(f"\n   {label} ") for label in ("seen", "cause", "costs", "do")]
    assert labels == sorted(labels)


def test_the_numbers_are_those_of_the_summary(diagnosis: Diagnosis) -> None:
    text = " ".join(terminal.render(diagnosis, width=80, color=False).split())
    assert "compute 67 %" in text  # shares.compute is 0.667
    assert "151 ms p99 · CV 0.4 % · 213 samples/s" in text
    assert "31 % at 16 ranks (28 to 36 %)" in text
    assert "Overhead of evenstep: 1.64 µs a collective, 0.04 % of step time" in text


def test_what_is_unknown_reads_unknown_and_nothing_is_invented() -> None:
    text = terminal.render(empty(), width=80, color=False)
    assert "step unknown mean" in text
    assert "█" not in text


def test_where_names_culprits_and_steps(diagnosis: Diagnosis) -> None:
    finding = diagnosis.findings[0]
    assert terminal.where(finding) == "rank 3, node gpu012, steps 100-130, 140-159 (chronic)"
    many = replace(finding, where=Where(ranks=(7, 4, 5, 6), links=("a", "b")))
    assert terminal.where(many).startswith("ranks 4-7, links a, b, ")


def test_an_effect_without_a_projection_is_about_now(diagnosis: Diagnosis) -> None:
    finding = replace(diagnosis.findings[0], effect=Effect(0.11))
    assert terminal.effect(finding, "step time") == "11 % of step time now"


def test_a_host_name_cannot_carry_escape_codes(diagnosis: Diagnosis) -> None:
    diagnosis.findings[0] = replace(diagnosis.findings[0], cause="node \x1b]0;owned\x07 is late")
    assert "\x1b" not in terminal.render(diagnosis, width=80, color=False)


def test_several_runs_show_how_throughput_scales() -> None:
    summary = {"verdict": "It scales.", "steps": 9, "ranks": 16, "scaling": CURVE}
    text = terminal.render(Diagnosis({}, summary, []), width=80, color=False)
    assert re.search(r"weak scaling\n +ranks +throughput +efficiency +law\n +8 +800 ", text)
    assert " - ranks worth using: 12" in text
    assert max(map(len, text.splitlines())) <= 80


def test_how_the_run_moves_comes_after_the_findings(diagnosis: Diagnosis) -> None:
    diagnosis.summary["blame"] = BLAME
    text = terminal.render(diagnosis, width=80, color=False)
    places = [text.index(part) for part in ("(straggler, ", "Changes over the run", "cannot tell")]
    assert places == sorted(places)
    assert " - of 85.8 s of waiting, most is for rank 19 (90 %)" in text


def test_a_source_without_an_agent_has_no_line_on_its_cost(diagnosis: Diagnosis) -> None:
    diagnosis.summary["agent"] = {"ns_per_collective": None, "share_of_step": 0.0}
    assert "evenstep itself" not in terminal.render(diagnosis, width=80, color=False)


def test_it_needs_nothing_beyond_the_standard_library() -> None:
    code = (
        "import sys\n"
        "for name in ('rich', 'jinja2', 'numpy'): sys.modules[name] = None\n"
        "import evenstep.report.terminal.terminal\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_one_step_is_no_steps(finding):
    once = replace(finding, when=When(((80, 80),), "transient"))
    assert terminal.where(once) == "rank 3, node gpu012, step 80 (transient)"


@pytest.mark.parametrize(
    ("mode", "of"),
    [("hang", "the job's time"), ("rank_failed", "the job's time"), ("straggler", "step time")],
)
def test_what_ended_a_job_costs_a_share_of_its_time_and_of_no_step(
    diagnosis: Diagnosis, mode: str, of: str
) -> None:
    diagnosis.findings[:] = [replace(diagnosis.findings[0], mode=mode)]
    text = " ".join(terminal.render(diagnosis, width=80, color=False).split())
    shares = percent(diagnosis.findings[0].severity), percent(diagnosis.findings[0].effect.now)
    assert f": {shares[0]} of {of} recoverable" in text
    assert f"costs {shares[1]} of {of} now" in text


@pytest.mark.parametrize("value", ["59.7 steps/s", "2,830 samples/s", "41.2 ms", "8 %"])
def test_no_line_ends_between_a_number_and_its_unit(value):
    width = len(f"it runs at {value}") - 1
    assert Style(width, color=False).wrap(f"it runs at {value}") == ["it runs at", value]
