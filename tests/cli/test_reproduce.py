import contextlib
import csv
import io
import itertools
import json
import xml.etree.ElementTree as ElementTree

import pytest

from evenstep.cli import reproduce
from evenstep.cli.main import main
from evenstep.report.schema import schema
from evenstep.reproduce import table_one
from tests.simulate.table_one_fit import GRID, fit

QUICK = ["reproduce", "table1", "--seeds", "1", "--steps", "200"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """What the command prints and writes, from one run."""
    folder = tmp_path_factory.mktemp("table")
    files = [f"{folder}/t.csv", f"{folder}/t.svg"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*QUICK, "--json", "--csv", files[0], "--svg", files[1]]) == 0
    return json.loads(out.getvalue()), folder


def test_the_papers_table_stands_as_it_was_printed(data):
    # "When Scaling Fails", table 1
    printed = [row["published"] for row in data[0]["families"][0]["rows"]]
    assert [row["baseline"] for row in printed] == [1024, 1980, 3600, 5800, 8200]
    assert [row["coordinated"] for row in printed] == [1018, 1995, 3720, 6250, 9100]
    assert [row["coordinated_cv"] for row in printed] == [0.02, 0.03, 0.05, 0.07, 0.09]


def test_both_families_and_the_error_of_their_fit_are_shown(data):
    families = data[0]["families"]
    assert [family["parameters"]["flows"] > 0 for family in families] == [False, True]
    assert all(family["fit_error"]["throughput_rms"] < 0.1 for family in families)


def test_within_one_rack_nothing_is_predicted_to_change(data):
    first = data[0]["families"][0]["rows"][0]
    assert (first["nodes"], first["token"]["gain"]) == (4, 0.0)


def test_no_arm_gains_more_than_a_job_that_is_alone(data):
    for family in data[0]["families"]:
        for row in family["rows"]:
            assert max(row["paper"]["gain"], row["token"]["gain"]) <= row["alone"]["gain"] + 1e-9


def test_the_rows_are_written_one_per_arm(data):
    with (data[1] / "t.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 5 * 6  # families, sizes, arms
    assert rows[0]["arm"] == "printed baseline"


def test_the_figure_is_svg_with_the_ideal_line(data):
    root = ElementTree.parse(data[1] / "t.svg").getroot()
    titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert "ideal" in titles


def test_the_timeline_shows_each_rank_busy_from_the_first_step_to_the_last(data):
    for family in data[0]["families"]:
        for arm in ("before", "after"):
            ours = [span for span in family["timeline"][arm] if span["job"] == 0]
            until = max(span["end"] for span in ours)
            for rank in range(4):
                spans = sorted((s["begin"], s["end"]) for s in ours if s["rank"] == rank)
                gaps = [later[0] - span[1] for span, later in itertools.pairwise(spans)]
                assert (spans[0][0], spans[-1][1]) == (0.0, until)
                assert max(map(abs, gaps)) < 1e-6


def test_the_figure_draws_the_ranks_before_and_after(data):
    text = (data[1] / "t.svg").read_text()
    assert text.count("rank 3") == 2 * len(data[0]["families"])
    assert "without pacing" in text


def test_the_tables_fit_their_schema(data):
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator(schema("table1")).validate(data[0])


def test_the_tables_fit_eighty_columns(data):
    assert max(map(len, reproduce._table1_lines(data[0]))) <= 80


def test_nothing_is_overwritten_unasked(data, capsys):
    assert main([*QUICK, "--csv", str(data[1] / "t.csv")]) == 2
    assert "--force" in capsys.readouterr().err


def test_a_size_below_the_least_is_refused_by_name(capsys):
    with pytest.raises(SystemExit):
        main(["reproduce", "table1", "--steps", "5"])
    assert "--steps: must be a whole number of at least 200" in capsys.readouterr().err


def test_no_neighbour_on_the_grid_fits_the_baseline_better():
    family, values = table_one.QUIET, GRID["exchange"]
    at = values.index(family.exchange)
    near = {"jobs": (family.jobs,), "exchange": values[at - 1 : at + 2]}
    assert fit(family, near) == family
