"""Values of options at their limits, and what help tells of defaults."""

import argparse
from pathlib import Path

import pytest

from evenstep.cli import arguments, files
from evenstep.cli.arguments import LOOPBACK, MOST_RANKS, address, seconds, severity, sizes, steps
from evenstep.cli.syntax import COMMANDS
from evenstep.errors import UsageError

WHOLE, TIME = arguments.whole(4096), seconds(0.1, 3600.0)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (address, ":0", (LOOPBACK, 0)),
        (address, "9400", (LOOPBACK, 9400)),
        (address, "h:65535", ("h", 65_535)),
        (address, "[::1]:80", ("[::1]", 80)),
        (steps, "7", (7, 7)),
        (steps, "0-0", (0, 0)),
        (steps, "100-160", (100, 160)),
        (sizes, "8, 1,8,64", [1, 8, 64]),
        (sizes, f"{MOST_RANKS}", [MOST_RANKS]),
        (WHOLE, "1", 1),
        (WHOLE, "4096", 4096),
        (TIME, "0.1", 0.1),
        (TIME, "3600", 3600.0),
        (severity, "0", 0.0),
        (severity, "5%", 0.05),
        (severity, "1", 1.0),
        (arguments.price, "0.5", 0.5),
    ],
)
def test_a_value_is_read_up_to_its_limits(kind, text, value):
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (address, ("", "h", "h:", "h:-1", "h:65536", "h:x")),
        (steps, ("", "-", "x", "3-2", "-1", "1-2-3")),
        (sizes, ("", "0", "4,,8", "4,x", f"{MOST_RANKS + 1}")),
        (WHOLE, ("0", "4097", "1.5", "-1", "")),
        (TIME, ("0.09", "3601", "nan", "inf", "-1", "")),
        (severity, ("-0.1", "1.1", "101%", "nan", "")),
        (arguments.price, ("-1", "nan", "inf", "x")),
    ],
)
def test_a_value_beyond_its_limits_is_refused_with_what_it_must_be(kind, texts):
    for text in texts:
        with pytest.raises(argparse.ArgumentTypeError, match=r"^must be .+, found '"):
            kind(text)


def numbers():
    """Every option of every command whose default is a number."""
    for command in COMMANDS:
        parsers = [command.parser()]
        for parser in parsers:
            for action in parser._actions:
                if isinstance(action, argparse._SubParsersAction):
                    parsers += action.choices.values()
                elif type(action.default) in (int, float):
                    yield pytest.param(action, id=f"{parser.prog} {action.option_strings[0]}")


@pytest.mark.parametrize("action", [*numbers()])
def test_help_tells_the_number_that_is_in_force(action):
    told = "(default: a free one)" if action.dest == "port" else f"({action.default:g})"
    assert told in action.help
    assert action.default == 0 or action.type(str(action.default)) == action.default


@pytest.mark.parametrize(
    ("paths", "piped", "free"),
    [
        ((), False, True),
        ((None, None), False, True),
        (("-",), True, True),
        (("-",), False, False),
        (("-", None), True, True),
        (("-", "-"), True, False),
        (("-", "-"), False, False),
    ],
)
def test_one_file_alone_may_be_the_standard_output_where_nothing_else_is_printed(
    paths, piped, free
):
    given = [each and Path(each) for each in paths]
    if free:
        files.check_free(*given, force=False, piped=piped)
    else:
        with pytest.raises(UsageError, match="- is standard output"):
            files.check_free(*given, force=False, piped=piped)
