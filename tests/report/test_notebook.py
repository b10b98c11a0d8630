"""What a notebook shows of a diagnosis."""

from dataclasses import replace

import pytest

from tests.report.small_run import HOSTILE


def test_a_diagnosis_shows_its_verdict_numbers_and_findings(diagnosis):
    html = diagnosis._repr_html_()
    assert diagnosis.verdict in html
    assert "step 150 ms mean, 151 ms p99" in html
    assert "<td>27 %</td>" in html


def test_names_of_variables_and_nodes_can_be_copied(diagnosis, finding):
    place = replace(finding.where, ranks=[1, 2], nodes=["node_7"])
    diagnosis.findings[:] = [replace(finding, cause="set NCCL_IB_HCA=mlx5_0", where=place)]
    html = diagnosis._repr_html_()
    for cell in ("set NCCL_IB_HCA=mlx5_0", "node_7", "1, 2"):
        assert f"<td>{cell}</td>" in html


def test_hostile_words_stay_text(diagnosis, finding):
    diagnosis.findings[:] = [replace(finding, cause=HOSTILE)]
    diagnosis.limits.append(HOSTILE)
    html = diagnosis._repr_html_()
    assert "<img" not in html
    assert html.count("&lt;/script&gt;") == 2


def test_an_empty_diagnosis_shows_its_verdict(diagnosis):
    diagnosis.findings.clear()
    diagnosis.summary = {"verdict": "nothing to judge", "step_time": None, "shares": None}
    assert diagnosis._repr_html_().startswith("<div><p><strong>nothing to judge</strong></p>")


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_diagnosis_is_a_table_and_an_empty_one_has_the_same_columns(diagnosis, library):
    pytest.importorskip(library)
    full = getattr(diagnosis, f"to_{library}")()
    assert list(full["severity"]) == [one.severity for one in diagnosis.findings]
    assert [list(ranks) for ranks in full["ranks"]] == [
        list(one.where.ranks) for one in diagnosis.findings
    ]
    empty = getattr(replace(diagnosis, findings=[]), f"to_{library}")()
    assert list(empty.columns) == list(full.columns)
    assert len(empty) == 0
