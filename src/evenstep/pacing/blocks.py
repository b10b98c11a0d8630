"""Which steps of a comparison are paced: blocks in pairs, in an order nobody can foresee or
disagree on. Blocks of steps are one job's own; blocks of the clock are common to all jobs.
"""

from __future__ import annotations

from hashlib import blake2b

BLOCK_STEPS = 8
_WORD = (1 << 64) - 1


def block_is_paced(run_id: str, attempt: int, block: int) -> bool:
    """Whether a block (step // BLOCK_STEPS) is paced: of each pair one is, by a stable hash.

    Every rank computes the same, without talking, on every machine and Python.
    """
    digest = blake2b(f"{run_id}\0{attempt}\0{block // 2}".encode(), digest_size=1).digest()
    return (digest[0] ^ block) & 1 == 0


def clock_block_acts(block: int, span: int) -> bool:
    """Whether a block of the clock is acted in: of each pair one, the same for every job anywhere.

    With a `span` of more blocks than two, all but one of the span: that one is also left out by
    those whose span is a pair.
    """
    left_out = (_mixed(block // 2) ^ block) & 1 == 1
    if not left_out or span <= 2:
        return not left_out
    return _mixed(block // span + span) % (span // 2) != block % span // 2


def _mixed(value: int) -> int:
    """A number that looks drawn by chance (SplitMix64's finaliser, Steele et al. 2014)."""
    value = (value + 1) * 0x9E3779B97F4A7C15 & _WORD
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _WORD
    return value ^ value >> 31
