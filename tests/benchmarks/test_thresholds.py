"""Constants of the diagnosis are found where they stand, and moved wherever they are used."""

from benchmarks.thresholds import Constant, constants, counted, moved, table
from evenstep.diagnose import engine, levels, sentences


def test_a_constant_has_its_value_and_what_is_said_of_it():
    found = {(one.module, one.name): one for one in constants()}
    named = found["diagnose.levels", "NAMED"]
    assert (named.value, named.origin) == (
        levels.NAMED,
        "of the step time: larger findings make the headline",
    )


def test_a_constant_is_moved_where_it_was_imported_and_put_back():
    named = next(one for one in constants() if one.name == "NAMED" and "levels" in one.module)
    before = engine.NAMED
    with moved(named, 1.5):
        assert engine.NAMED == sentences.NAMED == 1.5 * before
    assert engine.NAMED == sentences.NAMED == before


def test_flips_of_an_earlier_run_stay_as_long_as_the_value_does(tmp_path):
    page = tmp_path / "page.md"
    kept, changed = (Constant("diagnose.levels", name, 0.5, "") for name in ("KEPT", "CHANGED"))
    page.write_text(table([kept, changed], {kept: "1 of 8", changed: "2 of 8"}))
    assert counted(page, [kept, changed._replace(value=0.6)]) == {kept: "1 of 8"}
