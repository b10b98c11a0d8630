from pathlib import Path

import pytest

from evenstep.agent.settings import config
from evenstep.agent.settings.config import Config, describe, load, resolve
from evenstep.errors import ConfigError

# powers: IEC 80000-13 for the binary prefixes, SI for the decimal ones


def test_without_any_source_every_value_is_the_default():
    assert vars(resolve({}, {}, {})) == vars(Config())


def test_an_argument_beats_the_environment_beats_the_file():
    written = {"spool": "mmap", "log_level": "info", "ring_bytes": "1MB"}
    environ = {"EVENSTEP_SPOOL": "buffered", "EVENSTEP_LOG_LEVEL": "error"}
    found = resolve({"spool": "auto"}, environ, written)
    assert (found.spool, found.log_level, found.ring_bytes) == ("auto", "error", 1_000_000)


def test_an_argument_of_none_is_not_given():
    assert resolve({"spool": None}, {"EVENSTEP_SPOOL": "mmap"}, {}).spool == "mmap"


def test_every_value_knows_where_it_comes_from():
    found = resolve({}, {"EVENSTEP_PACE_MODE": "on"}, {}, Path("evenstep.toml"))
    assert found.sources == {"pace.mode": "from EVENSTEP_PACE_MODE"}


@pytest.mark.parametrize("key", ["pace", "pace.mode", "pace_mode"])
def test_the_pacing_mode_can_be_written_in_three_ways(key):
    assert resolve({key: "on"}, {}, {}).pace_mode == "on"


@pytest.mark.parametrize(
    ("asked", "named"),
    [("auto", "gc,token,pace,cores,power"), (" Cores , gc", "gc,cores"), ("OFF", "off")],
)
def test_actions_are_named_in_one_order_however_they_are_asked_for(asked, named):
    assert resolve({"act": asked}, {}, {}).act == named


def test_the_file_is_read_from_the_working_folder(tmp_path):
    (tmp_path / "evenstep.toml").write_text('share = false\n[pace]\nmax_delay = "5%"\n')
    found = load({}, {}, tmp_path)
    assert (found.share, found.pace_max_delay) == (False, 0.05)


def test_the_environment_can_name_another_file(tmp_path):
    file = tmp_path / "other.toml"
    file.write_text('pace = "off"')
    assert load({}, {"EVENSTEP_CONFIG": str(file)}, tmp_path).pace_mode == "off"


def test_a_named_file_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml.*No such file"):
        load({}, {"EVENSTEP_CONFIG": str(tmp_path / "none.toml")})


def test_a_file_that_is_not_toml_is_named(tmp_path):
    (tmp_path / "evenstep.toml").write_text("pace = on")
    with pytest.raises(ConfigError, match=r"evenstep\.toml is not TOML.*line 1"):
        load({}, {}, tmp_path)


def test_an_unknown_key_names_its_place_and_the_nearest_setting():
    with pytest.raises(ConfigError, match=r"'pace\.mod' \(in e\.toml\); did you mean 'pace\.mode'"):
        resolve({}, {}, {"pace": {"mod": "on"}}, Path("e.toml"))


def test_an_unknown_argument_names_the_nearest_setting():
    with pytest.raises(ConfigError, match=r"'ring_byte'.*arguments.*'ring_bytes'"):
        resolve({"ring_byte": 1}, {}, {})


def test_an_unknown_variable_is_a_warning_with_the_nearest_one():
    found = resolve({}, {"EVENSTEP_RING_BYTE": "1", "EVENSTEP_RUN_ID": "a"}, {})
    assert found.warnings == ("EVENSTEP_RING_BYTE sets nothing; did you mean EVENSTEP_RING_BYTES?",)


WRONG = {
    "EVENSTEP_ACT": "gc,sleep",
    "EVENSTEP_LINK_GROUP": "a/b",
    "EVENSTEP": "maybe", "EVENSTEP_OUT": " ", "EVENSTEP_RING_BYTES": "1kB",
    "EVENSTEP_SUMMARY_BYTES": "-1", "EVENSTEP_SPOOL": "disk", "EVENSTEP_SHARE": "2",
    "EVENSTEP_COMPILED": "gcc", "EVENSTEP_STACKS": "deep",
    "EVENSTEP_SAMPLE_PERIOD_S": "nan", "EVENSTEP_SAMPLES_PER_STEP": "0",
    "EVENSTEP_PROBE_EVERY": "0",
    "EVENSTEP_VERDICT": "often", "EVENSTEP_LOG_LEVEL": "loud", "EVENSTEP_PACE_MODE": "true",
    "EVENSTEP_PACE_CONTROLLER": "magic", "EVENSTEP_PACE_OBJECTIVE": "speed",
    "EVENSTEP_PACE_THRESHOLD": "3", "EVENSTEP_PACE_MAX_DELAY": "51%",
    "EVENSTEP_PACE_STABILITY_COST": "inf", "EVENSTEP_PACE_SHARING": "later",
    "EVENSTEP_PACE_RANKS": "7-0", "EVENSTEP_PACE_NODES": "gpu[1-",
    "EVENSTEP_PACE_PARTITIONS": "a,,b",
    "EVENSTEP_PACE_FIRST_NODES": "0", "EVENSTEP_RECORD_RANKS": "x", "EVENSTEP_RECORD_NODES": "a b",
    "EVENSTEP_RECORD_PARTITIONS": ",", "EVENSTEP_RECORD_FIRST_NODES": "few",
}  # fmt: skip


def test_every_setting_has_a_wrong_value_below():
    assert WRONG.keys() == {row.variable for row in config.TABLE.values()}


@pytest.mark.parametrize("row", config.TABLE.values(), ids=lambda row: row.name)
def test_a_wrong_value_names_setting_source_expectation_and_value(row):
    wrong = WRONG[row.variable]
    with pytest.raises(ConfigError) as caught:
        resolve({}, {row.variable: wrong}, {})
    for part in (row.name, row.variable, row.kind.expects, repr(wrong)):
        assert part in str(caught.value)


def test_an_empty_variable_is_not_set():
    assert resolve({}, {"EVENSTEP_VERDICT": ""}, {}).verdict is True


@pytest.mark.parametrize("off", ["0", "false", "OFF", "no"])
def test_the_kill_switch_beats_an_argument(off):
    assert resolve({"enabled": True}, {"EVENSTEP": off}, {}).enabled is False


def test_describing_gives_a_row_for_every_setting_with_its_value():
    rows = {row["name"]: row for row in describe(resolve({"out": "runs/a"}, {}, {}))}
    settings = set(vars(Config())) - {"sources", "warnings"}
    assert len(rows) == len(settings)
    assert (rows["out"]["value"], rows["out"]["source"]) == ("runs/a", "given as an argument")
    assert rows["pace.mode"]["source"] == "default"


@pytest.mark.parametrize("row", config.TABLE.values(), ids=lambda row: row.name)
def test_every_default_is_itself_a_valid_value(row):
    if row.default is not None:
        assert row.kind.parse(row.default) == row.default
