"""Versions of a stack that an integration was tested with."""

import pytest

from evenstep.agent import stacks

TESTED = stacks.Tested("stack", "2.4", "2.10")


@pytest.mark.parametrize("found", ["2.4", "2.4.0", "2.9", "2.10", "2.10.3", "2.10.0rc1"])
def test_a_patch_of_a_tested_version_is_tested(found: str) -> None:
    assert TESTED.outside(found) == ""


@pytest.mark.parametrize("found", ["2.3.9", "2.11", "3.0", "2", "main", "1.10"])
def test_another_minor_version_is_said_with_those_that_were_tested(found: str) -> None:
    assert f"found stack {found}, but its callback was tested with 2.4 to 2.10" in (
        TESTED.outside(found)
    )
