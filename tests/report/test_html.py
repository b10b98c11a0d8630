import json
import re
import sys
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from evenstep.diagnose.finding import Diagnosis, Option, Where
from evenstep.diagnose.lateness.case import open_case
from evenstep.diagnose.predict.what_if import WhatIfGain
from evenstep.diagnose.sentences import verdict
from evenstep.errors import MissingExtra, UsageError
from evenstep.report.page import html, sheet
from evenstep.report.terminal.sentences import describe_actions
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind
from evenstep.trace.trace import Trace
from tests.report.conftest import Page
from tests.report.small_run import HOSTILE
from tests.report.test_scaling import CURVE


@pytest.fixture
def page(diagnosis: Diagnosis, trace: Trace, steps: Columns) -> Page:
    return Page(html.render(diagnosis, trace, steps=steps))


def test_the_page_carries_the_json_that_diagnose_prints(page: Page, diagnosis: Diagnosis) -> None:
    assert page.diagnosis == json.loads(json.dumps(diagnosis.to_json()))


def test_the_numbers_in_words_are_those_of_the_json(page: Page, diagnosis: Diagnosis) -> None:
    body = page.text[page.text.index("<body>") :]
    said = verdict(diagnosis.findings, diagnosis.summary)
    assert f'<h1 id="verdict">{said.head}</h1>' in body
    assert f"<b>{said.change}</b>" in body
    for shown in ("151 ms", "0.4 %", "213 samples/s", "wait <b>20 %</b>", "1.64 µs"):
        assert shown in body


def test_no_line_of_what_a_finding_costs_ends_before_a_percent_sign(page: Page) -> None:
    assert "31\u00a0% at 16 ranks (28 to 36\u00a0%)" in page.text


def test_the_head_says_the_two_step_times_as_the_terminal_does(
    diagnosis: Diagnosis, trace: Trace, steps: Columns
) -> None:
    told = re.search(r'class="change">(.*?)</p>', html.render(diagnosis, trace, steps=steps))
    said = verdict(diagnosis.findings, diagnosis.summary)
    assert told
    assert re.sub("<[^>]+>", "", told[1]) == said.change


def test_the_head_advises_what_mends_its_own_finding(
    diagnosis: Diagnosis, trace: Trace, steps: Columns
) -> None:
    ask = Option("look at rank 3", None, None, None, "a look", "")
    costly = diagnosis.findings[0]
    hang = replace(costly, mode="hang", severity=0.0, options=[ask])
    stopped = replace(diagnosis, findings=[hang, costly])
    advice = re.search(r'class="best">(.*?)</p>', html.render(stopped, trace, steps=steps), re.S)
    assert advice
    words = re.sub("<[^>]+>", "", advice[1]).split()
    assert " ".join(words) == "Do look at rank 3. Cost: a look."


def test_the_head_says_what_the_gain_is_a_share_of(
    diagnosis: Diagnosis, trace: Trace, steps: Columns
) -> None:
    lost = replace(diagnosis.findings[0], mode="restart_amplification")
    text = html.render(replace(diagnosis, findings=[lost]), trace, steps=steps)
    best = re.search(r'class="best">(.*?)</p>', text, re.S)
    assert best
    assert "of the job's time" in unescape(best[1])


def test_every_cell_of_the_heat_map_is_the_tables_number(page: Page, steps: Columns) -> None:
    for metric in ("wait", "lateness"):
        cells = page.column("grid", f"{metric}_us")
        assert cells.tolist() == (steps[f"{metric}_ns"] / 1e3).tolist()
    assert (page.facts["grid"]["rows"], page.facts["grid"]["columns"]) == (4, 60)


def test_the_table_of_steps_is_made_from_the_trace_when_not_given(
    page: Page, diagnosis: Diagnosis, trace: Trace
) -> None:
    made = Page(html.render(diagnosis, trace))
    assert made.facts["grid"] == page.facts["grid"]
    for name in ("wait_us", "lateness_us", "step_us"):
        assert made.column("grid", name).tolist() == page.column("grid", name).tolist()


def test_the_timeline_has_every_record_of_the_last_step(page: Page, trace: Trace) -> None:
    last = int(trace.events.step.max())
    expected = np.sum((trace.events.step == last) & (trace.events.kind != int(Kind.STEP)))
    assert np.sum(page.column("records", "step") == last) == expected


def test_numbers_in_the_columns_have_their_names_beside_them(page: Page) -> None:
    assert page.facts["kinds"]["collective"] == Kind.COLLECTIVE
    assert page.facts["groups"] == [{"name": "default_pg", "ranks": "0-3"}]
    assert page.facts["culprits"] == [3]
    assert "slack above the threshold" in page.facts["names"].values()


def test_nothing_is_fetched_from_anywhere(page: Page) -> None:
    assert not re.findall(r'\b(?:src|href)\s*=\s*["\']?(?!["\'#])', page.text)
    assert not re.findall(r"https?://|@import|url\(|fetch\(|XMLHttpRequest", page.text)
    assert "default-src 'none'" in page.text


def test_names_that_contain_markup_stay_text(
    diagnosis: Diagnosis, trace: Trace, steps: Columns
) -> None:
    finding = diagnosis.findings[0]
    hostile = replace(
        finding, cause=HOSTILE, mode=HOSTILE, options=(Option(HOSTILE, 0.1, None, None, "", ""),)
    )
    trace.ranks[3].identity["hostname"] = HOSTILE
    trace.names = ("", HOSTILE)
    summary = {**diagnosis.summary, "verdict": HOSTILE}
    text = html.render(
        Diagnosis({"run_id": HOSTILE}, summary, [hostile], [HOSTILE]), trace, steps=steps
    )
    assert "<img" not in text
    assert text.count("</script>") == 4  # three blocks of data and the script
    assert Page(text).facts["nodes"]["3"] == HOSTILE


def test_a_name_that_is_not_utf8_can_be_written(
    diagnosis: Diagnosis, trace: Trace, steps: Columns, tmp_path: Path
) -> None:
    trace.ranks[3].identity["hostname"] = "gpu\udc80"
    diagnosis.limits.append("gpu\udc80 is strange")
    sheet.write(tmp_path / "page.html", html.render(diagnosis, trace, steps=steps))
    assert "is strange" in (tmp_path / "page.html").read_text("utf-8")


def test_what_is_unknown_is_null_in_the_data_and_unknown_in_words(
    diagnosis: Diagnosis, trace: Trace, steps: Columns
) -> None:
    diagnosis.summary["throughput"] = {"value": float("nan"), "unit": None}
    diagnosis.summary["shares"] = None
    page = Page(html.render(diagnosis, trace, steps=steps))
    assert page.diagnosis["summary"]["throughput"]["value"] is None
    assert "<dt>throughput</dt><dd>unknown</dd>" in page.text


def test_a_run_killed_in_its_first_step_still_has_a_page(
    diagnosis: Diagnosis, trace: Trace, steps: Columns
) -> None:
    page = Page(html.render(diagnosis, trace, steps=steps.select(slice(0, 0))))
    assert page.facts["grid"] is None
    assert "No step was completed." in page.text


def test_the_same_run_gives_the_same_page(
    diagnosis: Diagnosis, trace: Trace, steps: Columns, page: Page
) -> None:
    assert html.render(diagnosis, trace, steps=steps) == page.text


def test_a_page_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=r"cannot write .*folder"):
        sheet.write(tmp_path / "folder", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_without_jinja2_it_says_what_to_install(
    diagnosis: Diagnosis, trace: Trace, steps: Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    sheet.template.cache_clear()
    with pytest.raises(MissingExtra, match=r"evenstep\[report\]"):
        html.render(diagnosis, trace, steps=steps)


def test_runs_of_several_sizes_have_a_page_with_their_curve(trace: Trace, steps: Columns) -> None:
    summary = {"verdict": "It scales.", "steps": 9, "ranks": 16, "scaling": CURVE}
    run = {"runs": [{"run_id": "a", "world": 8}, {"run_id": "b", "world": 16}]}
    page = Page(html.render(Diagnosis(run, summary, []), trace, steps=steps))
    assert "2 runs together; charts are of the largest" in page.text
    assert "<title>8 ranks: 800 samples/s</title>" in page.text
    assert page.diagnosis["summary"]["scaling"] == CURVE


def test_a_trace_that_tells_no_waits_says_so_instead_of_none(
    diagnosis: Diagnosis, trace: Trace, steps: Columns
) -> None:
    page = Page(html.render(diagnosis, replace(trace, world=5), steps=steps))
    assert "<dt>rank-hours lost waiting</dt><dd>unknown" in page.text
    assert page.facts["waiting"] is None
    assert page.facts["sizes"] is None


def test_answers_to_what_if_are_in_the_page_and_its_json(
    diagnosis: Diagnosis, trace: Trace, steps: Columns
) -> None:
    refused = WhatIfGain(
        "gc=off", None, None, None, 150_000_000, None, None, "no pause was recorded"
    )
    page = Page(html.render(diagnosis, trace, steps=steps, answers=[refused]))
    assert page.diagnosis["what_if"] == [refused.to_json()]
    assert "cannot be told" in page.text
    assert "no pause was recorded" in page.text


def test_a_foreign_trace_has_no_invented_cost_of_the_agent(
    diagnosis: Diagnosis, trace: Trace, steps: Columns
) -> None:
    diagnosis.summary["agent"] = {"ns_per_collective": None, "share_of_step": 0.0}
    assert "Not measured: the trace was simulated" in html.render(diagnosis, trace, steps=steps)


def test_a_run_of_which_only_some_steps_were_compared_says_which(
    diagnosis: Diagnosis, trace: Trace, steps: Columns
) -> None:
    case = open_case(trace)
    assert "sampled step" not in html.render(diagnosis, trace, steps=steps, case=case)
    case.grid.sampled[10:] = False
    page = Page(html.render(diagnosis, trace, steps=steps, case=case))
    assert page.facts["compared"] == 10
    assert page.text.count("10 sampled steps") == 4  # lateness, blame, path, hosts


PACED = {
    "ranks": [0, 1, 2, 3],
    "held_ranks": [0, 1, 3],
    "held_share": 0.4,
    "held_mean_ns": 2e6,
    "lost_at_most": 0.004,
    "verdicts": {"gains": 4},
    "effect": {"pairs": 9, "gain": 0.02, "low": 0.01, "high": 0.03},
}


GC = {"action": "gc", "rank": 0, "word": "pays", "acted_steps": 1200, "pairs": 9, "gain": 0.14,
      "low": 0.02, "high": 0.3, "reason": "the collector pauses 30 % of the time"}  # fmt: skip


def test_what_pacing_and_actions_did_is_said_as_on_the_terminal_and_drawn(
    diagnosis: Diagnosis, trace: Trace, steps: Columns
) -> None:
    assert "What actions did" not in html.render(diagnosis, trace, steps=steps)
    diagnosis.summary |= {"pacing": PACED, "acted": [GC]}
    text = html.render(diagnosis, trace, steps=steps)
    said = list(describe_actions(diagnosis.summary))
    assert said[-1] == (
        "gc: pays; active in 1,200 steps; a step is shorter by 14 % (2 to 30 %), from 9 pairs of "
        "blocks; the collector pauses 30 % of the time"
    )
    for sentence in said:
        assert f"<li>{sentence}</li>" in unescape(text)
    assert 'aria-label="Gain with its interval"' in text


def test_an_effect_without_an_interval_is_not_drawn(
    diagnosis: Diagnosis, trace: Trace, steps: Columns
) -> None:
    effect = {"pairs": 2, "gain": 0.02, "low": None, "high": None}
    diagnosis.summary["pacing"] = PACED | {"effect": effect}
    text = html.render(diagnosis, trace, steps=steps)
    assert "too few for an interval" in text
    assert 'aria-label="Gain with its interval"' not in text


def test_a_culprit_that_rotates_over_many_ranks_is_shortened(
    diagnosis: Diagnosis, trace: Trace, steps: Columns
) -> None:
    place = Where(ranks=tuple(range(0, 2048, 2)), nodes=tuple(f"n{at}" for at in range(128)))
    many = replace(diagnosis, findings=[replace(diagnosis.findings[0], where=place)])
    text = html.render(many, trace, steps=steps)
    assert (
        "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 1,016 more, nodes n0, n1, n2, n3 and 124 more" in text
    )
