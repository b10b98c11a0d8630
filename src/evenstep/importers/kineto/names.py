"""The meaning of names: collectives, communication kernels, phases, element types."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from evenstep.trace.spool.files import read_toml
from evenstep.trace.spool.layout import DType, Op, Phase

NAMES: dict[str, Any] = read_toml(Path(__file__).with_suffix(".toml"))
_OPS = {word: Op[op.upper()] for word, op in NAMES["operations"].items()}
MESSAGES = frozenset({Op.SEND, Op.RECV})
ROOTED = frozenset({Op.BROADCAST, Op.REDUCE, Op.GATHER, Op.SCATTER})

_KERNEL = re.compile(
    r"^(?:void )?(?:nccl|rccl|mscclpp|msccl)\w*kernel|^(?:void )?[\w:]*(?:cross_device_reduce|"
    r"(?:one|two)_shot_all_reduce|multimem_all_reduce|multimem_one_shot|multimem_all_gather|"
    r"symmetric_memory::(?:\(anonymous namespace\)::)?barrier_kernel)",
    re.IGNORECASE,
)
_SEND_AND_RECEIVE = re.compile(r"send_?recv", re.IGNORECASE)
_ANNOTATION = re.compile(
    r"^(nccl|rccl|gloo|mpi|ucc|xccl|hccl|mccl):\s*(\w+)(?:\s+\d+\s*(?:->|<-)\s*(\d+))?"
)
ON_DEVICE = frozenset({"nccl", "rccl", "xccl", "hccl", "mccl"})  # backends that run on a device
ON_HOST = frozenset({"gloo", "mpi", "ucc"})  # backends that run on the host

MOST_NAMES = 1 << 16  # whose meaning is cached: ranks share their names
COMMS = "record_param_comms"
CALL = "c10d::"
EVALUATE = "autograd::engine::evaluate_function"

STEP = re.compile(r"^ProfilerStep\*?#(\d{1,9})$")
OPTIMIZER_STEP = "Optimizer.step#"


class Annotation(NamedTuple):
    """A process group's annotation of a collective: `nccl:all_reduce`, `nccl:send 0->1`."""

    backend: str
    op: Op
    peer: int  # -1 unknown


def operation(name: str) -> Op | None:
    """The operation of a collective's name (`_allgather_base`, `allreduce_coalesced`)."""
    letters = re.sub(r"[^a-z]", "", name.lower())
    return next((op for word, op in _OPS.items() if word in letters), None)


@lru_cache(MOST_NAMES)
def communicates(kernel: str) -> bool:
    """Whether a kernel moves data between ranks: NCCL, RCCL, MSCCL, symmetric memory."""
    return _KERNEL.search(kernel) is not None


@lru_cache(MOST_NAMES)
def kernel_operation(kernel: str) -> Op:
    """The operation of a communication kernel, from its name.

    OTHER for `SendRecv`, which serves all-to-all and point-to-point alike.
    """
    head = kernel.replace("(anonymous namespace)::", "").partition("(")[0]
    if _SEND_AND_RECEIVE.search(head):
        return Op.OTHER
    return operation(head) or Op.OTHER


@lru_cache(MOST_NAMES)
def annotation(name: str) -> Annotation | None:
    """Parse a process group's annotation; None for any other name."""
    found = _ANNOTATION.match(name)
    op = operation(found[2]) if found else None
    if found is None or op is None:
        return None
    return Annotation(found[1], op, int(found[3] or -1))


def step_number(name: str, mark: re.Pattern[str] = STEP) -> int:
    """The number in `ProfilerStep#7`, or another mark of a step; -1 of any other name."""
    found = mark.match(name.strip())
    return int(found[1]) if found else -1


# -- phases ----------------------------------------------------------------------------------------

_EMITTED = re.compile(r", (?:seq|op_id|sizes) = .*")  # suffix that torch's emit_nvtx adds to a name
_MARK = re.compile(NAMES["of_phases"])


def patterns_of(kind: str) -> dict[Phase, re.Pattern[str]]:
    """The patterns of a table in `names.toml`, by phase, in the order in which they are tried."""
    return {Phase[name.upper()]: re.compile(words) for name, words in NAMES[kind].items()}


_PHASES = patterns_of("phases")


@lru_cache(MOST_NAMES)
def phase(name: str) -> Phase | None:
    """The phase that a host annotation marks; None if it marks none."""
    if not _MARK.search(name.lower()):
        return None
    words = re.sub(r"[^a-z]+", " ", _EMITTED.sub("", name).lower()).strip()
    return next((phase for phase, pattern in _PHASES.items() if pattern.search(words)), None)


# -- element types ---------------------------------------------------------------------------------

_TYPES = {
    name: (DType[kind.upper()], int(size)) for name, (kind, size) in NAMES["elements"].items()
}


def element_type(name: str) -> tuple[DType, int]:
    """Type and bytes of an element, from the name in c10 (`BFloat16`) or C++ (`c10::BFloat16`).

    Zero bytes for an unknown type.
    """
    plain = name.lower().removeprefix("c10::").strip().replace(" ", "_")
    if plain.startswith("float8"):
        return DType.FLOAT8, 1
    return _TYPES.get(plain, (DType.OTHER, 0))
