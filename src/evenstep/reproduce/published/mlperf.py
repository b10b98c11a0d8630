"""MLPerf Training v4.1: the step time of every size of a system from that of its smallest.

One number is fitted to a system and benchmark: what a GPU computes for a sample, from the smallest
size. The rest is simulated: data parallel steps of the batch's share, gradients behind backward, on
the DGX preset of the accelerator. Results are MLCommons' (https://mlcommons.org/benchmarks/training),
read from a table of them; none is kept here.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

from evenstep.errors import UsageError
from evenstep.reproduce.published.rows import Fitted, PublishedRow, System
from evenstep.scenario import scenario as scenarios
from evenstep.simulate.simulation import simulate

#: Bytes of gradients in 16 bits: BERT-large 335 M parameters, Llama 2 70B with adapters of rank 16
#: on its attention (MLPerf training reference: 44.8 M), Stable Diffusion 2's U-Net 866 M.
GRADIENTS = {"bert": 670e6, "llama2_70b_lora": 89.6e6, "stable_diffusion": 1.73e9}
PER_NODE = 8


class Size(NamedTuple):
    """Accelerators, global batch, and the median of the runs' median step times in seconds."""

    accelerators: int
    batch: int
    step_s: float


def sizes(path: Path) -> dict[tuple[str, str, str], list[Size]]:
    """By submitter, family of systems and benchmark; those with several sizes and known gradients.

    Raises `UsageError` for a file that cannot be read.
    """
    try:
        with path.open(newline="") as file:
            return _grouped(csv.DictReader(file))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _grouped(rows: Iterable[Mapping[str, str]]) -> dict[tuple[str, str, str], list[Size]]:
    found: dict[tuple[str, str, str], dict[tuple[int, int], list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in rows:
        if row["benchmark"] in GRADIENTS:
            family = re.sub(r"\d+", "", row["system"])
            key = (row["submitter"], family, row["benchmark"])
            size = (int(row["accelerators"]), int(row["gbs"]))
            found[key][size].append(float(row["step_s_median"]))
    return {
        key: [Size(*size, median(times)) for size, times in sorted(each.items())]
        for key, each in found.items()
        if len({size[0] for size in each}) > 1
    }


def system(key: tuple[str, str, str], measured: list[Size]) -> System:
    """The smallest size fitted, the others simulated."""
    submitter, family, benchmark = key
    first = measured[0]
    each = _fitted_ms(benchmark, first)
    rows = [
        PublishedRow(
            f"{size.accelerators:,} accelerators, batch {size.batch:,}", size.step_s,
            _step_s(benchmark, size, each), "s", fitted=size is first,
        )
        for size in measured
    ]  # fmt: skip
    return System(
        name=f"MLPerf v4.1 {benchmark}, {submitter} {family}",
        source="MLCommons, training v4.1 results",
        model="data parallel: compute of the batch's share, gradients behind backward on DGX H100",
        inputs=[f"gradients {GRADIENTS[benchmark] / 1e6:.0f} MB in 16 bits, in 8 buckets"],
        fitted=[Fitted("compute of a sample on one GPU", each, "ms")],
        rows=rows,
        limits="What does not shrink with a rank's share of the batch is not told from what does.",
    )


def _fitted_ms(benchmark: str, first: Size) -> float:
    """Compute of a sample such that the simulated step is the measured one."""
    share = first.batch / first.accelerators
    each = first.step_s * 1e3 / share
    for _ in range(8):  # what is exposed of the exchange hardly changes with it
        each += (first.step_s - _step_s(benchmark, first, each)) * 1e3 / share
    return each


def _step_s(benchmark: str, size: Size, sample_ms: float) -> float:
    nodes = -(-size.accelerators // PER_NODE)
    compute = sample_ms * size.batch / size.accelerators
    sets = [
        "preset=dgx-h100", f"cluster.nodes={nodes}", f"job.ranks={size.accelerators}",
        f"cluster.gpus_per_node={min(PER_NODE, size.accelerators)}",
        f"cluster.nics_per_node={min(PER_NODE, size.accelerators)}",
        f"work.forward_ms={compute / 3}", f"work.backward_ms={compute * 2 / 3}",
        f"work.gradient_bytes={round(GRADIENTS[benchmark])}", "work.buckets=8", "run.steps=1",
    ]  # fmt: skip
    return simulate(scenarios.parse({}, sets)).step_time.mean_ns / 1e9


def systems(path: Path) -> list[System]:
    """Every system of the table that says something of another size."""
    return [system(key, measured) for key, measured in sorted(sizes(path).items())]
