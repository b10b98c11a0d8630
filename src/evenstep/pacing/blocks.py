"""Which steps of a comparison are paced: blocks in pairs, in an order nobody on any rank can
foresee or disagree on.
"""

from __future__ import annotations

from hashlib import blake2b

BLOCK_STEPS = 8


def block_is_paced(run_id: str, attempt: int, block: int) -> bool:
    """Whether a block (step // BLOCK_STEPS) is paced: of each pair one is, by a stable hash.

    Every rank computes the same, without talking, on every machine and Python.
    """
    digest = blake2b(f"{run_id}\0{attempt}\0{block // 2}".encode(), digest_size=1).digest()
    return (digest[0] ^ block) & 1 == 0
