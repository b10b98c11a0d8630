"""Settings and scenarios: small TOML, whatever somebody put in their place."""

import os

import pytest

from evenstep.agent.settings import config
from evenstep.errors import ConfigError
from evenstep.scenario import scenario, schema
from evenstep.trace.spool.files import MOST_BYTES, parse_toml, read_toml

HOSTILE = {
    "a deep name": "a." * 100_000 + "a = 1",
    "a deep table": "[" + '"a" . ' * 40_000 + "a]",
    "deep lists": "a = " + "[" * 100_000,
    "deep tables": "a = " + "{a = " * 40_000,
    "a long number": "a = " + "9" * 100_000,
    "a nul": "a = \0",
    "no text": "a = \udcff",
    "too much": "# " + "x" * MOST_BYTES,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize(
    "read", [read_toml, scenario.load, lambda path: config.load({}, {}, path.parent)]
)
def test_what_is_no_small_toml_is_one_sentence(tmp_path, text, read):
    path = tmp_path / config.FILE
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=config.FILE):
        read(path)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="not a plain file"):
        read_toml(tmp_path / "pipe")


def test_a_file_that_is_not_there_is_no_settings(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_toml(tmp_path / "none.toml")


def test_what_people_write_is_read(tmp_path):
    text = 'a.b.c = 1\nx = [1.5, 2.5]\ns = "' + "a.b" * 20 + '"\n[t.u]\nv = {w = 2}\n'
    assert parse_toml(text)["t"] == {"u": {"v": {"w": 2}}}


def test_a_list_that_never_ends_is_refused_in_one_line():
    with pytest.raises(ConfigError, match=r"^--set takes TOML, found \[{60}: ") as refused:
        schema.parse("[" * 5_000)
    assert len(str(refused.value)) < 200


def test_a_size_beyond_any_number_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"work\.gradient_bytes must be"):
        scenario.parse({}, [f"work.gradient_bytes='{'9' * 400}GB'"])


def test_what_an_editor_puts_before_a_text_is_not_read(tmp_path):
    (tmp_path / "marked.toml").write_text("\ufeffsteps = 3\n")
    assert read_toml(tmp_path / "marked.toml") == {"steps": 3}
