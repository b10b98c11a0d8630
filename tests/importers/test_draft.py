"""A trace being assembled: groups are bounded by their members, each counted once."""

import pytest

from evenstep.errors import TraceError
from evenstep.importers.draft import Draft
from evenstep.trace.ranks import MOST_MEMBERS, MOST_RANKS


def test_members_count_once_however_often_their_group_is_named():
    draft = Draft()
    groups = {
        draft.group("world", range(MOST_RANKS)) for _ in range(2 * MOST_MEMBERS // MOST_RANKS)
    }
    assert groups == {0}


def test_groups_of_too_many_members_are_damage():
    draft = Draft()
    for number in range(MOST_MEMBERS // MOST_RANKS):
        draft.group(f"group {number}", range(MOST_RANKS))
    with pytest.raises(TraceError, match="members in all: damage"):
        draft.group("one more", [0])
