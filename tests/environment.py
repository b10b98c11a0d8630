"""What processes that tests start see of this one's environment."""

import os

#: A spool is allocated whole: the default, 33 MB a rank, would fill a disk with those of a session.
SPOOLS = {"EVENSTEP_RING_BYTES": "2MB", "EVENSTEP_SUMMARY_BYTES": "1MB"}


def plain(**more):
    """Nobody's settings but small spools, and what is given besides."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("EVENSTEP")}
    return ours | SPOOLS | more
