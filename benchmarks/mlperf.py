"""MLPerf Training v4.1: the step time of every number of machines from that of the fewest.

One number is fitted to a machine and benchmark: what a GPU computes for a sample, from the fewest
machines. What a step computes whatever the batch belongs to the benchmark and comes from two sizes
of batch on single machines of others. The rest is simulated, of a job as its published
configurations have it. Results are MLCommons' (https://mlcommons.org/benchmarks/training), read
from a table of them; none is kept here.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from evenstep.errors import UsageError
from evenstep.reproduce.published.rows import Fitted, PublishedRow, System
from evenstep.scenario import scenario as scenarios
from evenstep.simulate.simulation import simulate

PER_NODE = 8
#: Parameters of Stable Diffusion 2's U-Net: its optimizer's file counts them.
DIFFUSION = 865_910_724
#: Bytes that Adam moves for a parameter: gradient and weight of 16 bits, and three numbers of 32
#: read and written; and what HBM3 of an H100 moves in a second (its data sheet).
ADAM_BYTES, HBM_BYTES_PER_S = 2 + 2 + 2 * 3 * 4, 3.35e12
#: Llama 2 70B: sequences of 8,192 tokens of 8,192 numbers of 16 bits; ranks that share a layer.
TOKENS_BYTES, TENSOR = 8192 * 8192 * 2, 4
#: What attention moves in a layer where two ranks share a sequence and one would not, in sizes of a
#: rank's queries; keys and values are a quarter of these (8 of 64 heads). Forward joins keys and
#: values (1/2), clears the output and adds both parts to it (1 + 3 + 3), and copies half of the
#: other rank's keys (1/4). Backward copies halves of query, output and its gradient (3), and copies
#: and adds gradients of queries (3.5), keys and values (2.625). Each is that of the slower rank
#: (Transformer Engine of 2024, pytorch/attention.py, AttnFuncWithCP; 16 bits).
LAYERS, SHARED_SIZES = 80, 7.75 + 9.125


class Size(NamedTuple):
    """Accelerators, global batch, and the median of the runs' median step times in seconds."""

    accelerators: int
    batch: int
    step_s: float

    @property
    def share(self) -> float:
        """Samples of an accelerator."""
        return self.batch / self.accelerators


#: By submitter, machine and benchmark.
Sizes = dict[tuple[str, str, str], list[Size]]


def sizes(path: Path) -> Sizes:
    """Of benchmarks that are known here. Raises `UsageError` for a file that cannot be read."""
    try:
        with path.open(newline="") as file:
            return _grouped(csv.DictReader(file))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _grouped(rows: Iterable[Mapping[str, str]]) -> Sizes:
    found: dict[tuple[str, str, str], dict[tuple[int, int], list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in rows:
        if row["benchmark"] in SETS:
            key = (row["submitter"], _machine(row["system"]), row["benchmark"])
            size = (int(row["accelerators"]), int(row["gbs"]))
            found[key][size].append(float(row["step_s_median"]))
    return {
        key: [Size(*size, median(times)) for size, times in sorted(each.items())]
        for key, each in found.items()
    }


def _machine(system: str) -> str:
    """A system's name without how many of it there are: `4xXE9680x8H100`, `512xBM.GPU.H100.8`,
    `eos_n64_ngc24.09`."""
    return re.sub(r"^\d+x(?=.*\d)|_n\d+(?=_)", "", system)


# -- what a step is --------------------------------------------------------------------------------


def _diffusion(size: Size) -> list[str]:
    """Stable Diffusion (NVIDIA's `distributed_fused_adam.yaml`): gradients of 16 bits in buckets of
    288 MiB behind backward; each rank of a machine updates its part of the parameters, which are
    gathered again."""
    ranks = min(PER_NODE, size.accelerators)
    adam_ms = DIFFUSION / ranks * ADAM_BYTES / HBM_BYTES_PER_S * 1e3
    return [
        "work.kind=ddp", f"work.gradient_bytes={2 * DIFFUSION}", "work.buckets=6",
        f"work.optimizer_ms={adam_ms + _gathered_ms(ranks)}",
    ]  # fmt: skip


@cache
def _gathered_ms(ranks: int) -> float:
    """All parameters of 16 bits, within a machine."""
    sets = [
        "work.kind=collective", "work.operation=all_gather",
        f"work.gradient_bytes={2 * DIFFUSION}",
    ]  # fmt: skip
    return _simulated_ms(ranks, sets)


def _adapters(size: Size) -> list[str]:
    """Adapters of Llama 2 70B (NVIDIA's `config_DGXH100_*.sh`): tensor parallel; on one machine all
    its collectives are hidden, on several its reduce-scatters are not, since there context is
    parallel, too (`h100tp4cp2mbs1.yaml`). Each takes as long as an all-reduce of half as much.
    Context parallel attention copies and adds its parts."""
    several = size.accelerators > PER_NODE
    context = 2 if several else 1
    micro_batches = round(size.share * TENSOR * context)
    moved = several * SHARED_SIZES * TOKENS_BYTES / TENSOR / context
    joined_ms = micro_batches * LAYERS * moved / HBM_BYTES_PER_S * 1e3
    return [
        "work.kind=pipeline", f"work.tensor_parallel={TENSOR}", f"work.context_parallel={context}",
        f"work.layers={LAYERS * several}", f"work.message_bytes={TOKENS_BYTES // 2}",
        "work.key_share=0", f"work.gradient_bytes={round(89.6e6 / TENSOR)}",
        f"work.micro_batches={micro_batches}", f"work.optimizer_ms={joined_ms}",
        "collectives.nccl_algo=ring",
    ]  # fmt: skip


#: What a step of each benchmark is; adapters of rank 16 on attention have 44.8 M parameters.
SETS = {"stable_diffusion": _diffusion, "llama2_70b_lora": _adapters}

#: What the model assumes and lacks.
LIMITS = {
    "stable_diffusion": "Other submitters' configurations are taken to be NVIDIA's.",
    "llama2_70b_lora": "Other submitters' configurations are taken to be NVIDIA's. What a step "
    "takes besides its micro-batches is left out, since single machines do not tell it; so is what "
    "half a sequence makes of a GPU's kernels.",
}


def _simulated_ms(ranks: int, sets: Sequence[str]) -> float:
    """A step of so many ranks on DGX H100, or on machines of four such GPUs."""
    each = min(PER_NODE, ranks)
    machines = [
        "preset=dgx-h100", f"cluster.nodes={-(-ranks // PER_NODE)}", f"job.ranks={ranks}",
        f"cluster.gpus_per_node={each}", f"cluster.nics_per_node={each}", "run.steps=1",
    ]  # fmt: skip
    return simulate(scenarios.parse({}, [*machines, *sets])).step_time.mean_ns / 1e6


def _step_ms(benchmark: str, size: Size, compute_ms: float) -> float:
    compute = [f"work.forward_ms={compute_ms / 3}", f"work.backward_ms={compute_ms * 2 / 3}"]
    return _simulated_ms(size.accelerators, [*SETS[benchmark](size), *compute])


def _compute_ms(benchmark: str, size: Size) -> float:
    """What a rank computes in a step, such that the simulated step is the measured one."""
    found = size.step_s * 1e3
    for _ in range(8):  # what is exposed of the exchange hardly changes with it
        found += size.step_s * 1e3 - _step_ms(benchmark, size, found)
    return found


# -- what is fitted, and what is predicted ---------------------------------------------------------


def fixed_ms(benchmark: str, table: Sizes) -> float:
    """What a rank computes in a step whatever its share of the batch, from single machines with
    H100 of which there is no other number to predict; 0 where all have the same share."""
    points = [
        (found[0].share, _compute_ms(benchmark, found[0]))
        for (_, machine, name), found in table.items()
        if name == benchmark and len(found) == 1 and found[0].accelerators <= PER_NODE
        and "H100" in machine and "SXM" in machine
    ]  # fmt: skip
    shares, computes = np.array(points, float).reshape(-1, 2).T
    if len(set(shares)) < 2:
        return 0.0
    return max(float(np.polyfit(shares, computes, 1)[1]), 0.0)


def system(key: tuple[str, str, str], measured: list[Size], fixed: float) -> System:
    """The fewest machines fitted, more of them simulated."""
    submitter, machine, benchmark = key
    first = measured[0]
    each = (_compute_ms(benchmark, first) - fixed) / first.share
    rows = [
        PublishedRow(
            f"{size.accelerators:,} accelerators, batch {size.batch:,}", size.step_s,
            _step_ms(benchmark, size, fixed + each * size.share) / 1e3, "s", fitted=size is first,
        )
        for size in measured
    ]  # fmt: skip
    fitted = [Fitted("compute of a sample on one GPU", each, "ms")]
    if fixed:
        fitted.append(Fitted("compute whatever the batch, from other machines", fixed, "ms"))
    return System(
        name=f"MLPerf v4.1 {benchmark}, {submitter} {machine}",
        source="MLCommons, training v4.1 results",
        model="simulated on DGX H100",
        inputs=[" ".join((SETS[benchmark].__doc__ or "").split())],
        fitted=fitted,
        rows=rows,
        limits=LIMITS[benchmark],
    )


def systems(path: Path) -> list[System]:
    """Every machine of the table that says something of more of them."""
    table = sizes(path)
    fixed = {benchmark: fixed_ms(benchmark, table) for benchmark in SETS}
    return [
        system(key, measured, fixed[key[2]])
        for key, measured in sorted(table.items())
        if len({size.accelerators for size in measured}) > 1
    ]
