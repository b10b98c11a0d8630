"""Which of a host's GPUs a process may use, from its environment, without asking any driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

NVIDIA = ("CUDA_VISIBLE_DEVICES",)
AMD = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


def visible(environ: Mapping[str, str], variables: Sequence[str]) -> list[str] | None:
    """Ordinals or unique names in the order the process numbers them; None means all of them.

    As CUDA reads it, the list ends at the first entry that names nothing (an empty one, or -1).
    The first of `variables` that is set decides.
    """
    text = next((environ[name] for name in variables if name in environ), None)
    if text is None:
        return None
    tokens: list[str] = []
    for token in (part.strip() for part in text.split(",")):
        if not token or token.startswith("-"):
            break
        tokens.append(token)
    return tokens


def pick(tokens: list[str] | None, names: Sequence[str]) -> list[int]:
    """Positions among the host's GPUs, whose unique names are given, of those that are visible.

    A unique name may be shortened. The list ends at the first token that fits no GPU.
    """
    if tokens is None:
        return list(range(len(names)))
    positions: list[int] = []
    for token in tokens:
        position = int(token) if token.isdigit() else _named(token, names)
        if position is None or position >= len(names):
            break
        positions.append(position)
    return positions


def _named(token: str, names: Sequence[str]) -> int | None:
    fits = [i for i, name in enumerate(names) if name.lower().startswith(token.lower())]
    return fits[0] if len(fits) == 1 else None
