"""Whole training steps: MegaScale, Llama 3, DDP's overlap, Horovod; and single all-reduces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evenstep.allreduce import Link, ring
from evenstep.reproduce.published.rows import Fitted, PublishedRow, System
from evenstep.scenario import scenario as scenarios
from evenstep.scenario.scenario import Scenario
from evenstep.simulate.formulas import megatron_flops, overlapped_step, pipeline, serial
from evenstep.simulate.result import CollectiveUse
from evenstep.simulate.simulation import set_up, simulate, step_ns
from evenstep.simulate.study.scaling_sizes import resize
from evenstep.trace.spool.files import read_toml

#: Seconds per iteration by GPUs, 175B, batch 768 (Jiang et al. 2024, table 2).
MEGASCALE = {
    "Megatron-LM": {256: 40.0, 512: 21.2, 768: 15.2, 1024: 11.9},
    "MegaScale": {256: 32.0, 512: 16.5, 768: 11.5, 1024: 8.9},
}
#: MFU on 12,288 GPUs with batch 6,144: MegaScale's, and ÷ 1.34 (Jiang et al. 2024, abstract).
MEGASCALE_MFU = {"Megatron-LM": 0.552 / 1.34, "MegaScale": 0.552}


def megascale(framework: str) -> System:
    """175B on A100s with 8-way tensor and 8-way pipeline parallelism, at a fixed batch."""
    measured = MEGASCALE[framework]
    slots = {gpus: _slots(768, gpus) for gpus in measured}
    each = (measured[256] - measured[1024]) / (slots[256] - slots[1024])
    fixed = measured[256] - each * slots[256]
    rows = [
        PublishedRow(f"{gpus:,} GPUs, batch 768", time, fixed + each * slots[gpus],
            "s per iteration", fitted=gpus in (256, 1024))
        for gpus, time in measured.items()
    ]  # fmt: skip
    step = fixed + each * _slots(6144, 12288)
    flops = megatron_flops(6144 * 2048, layers=96, hidden=12288, sequence=2048, vocabulary=64000)
    rows.append(PublishedRow("12,288 GPUs, batch 6,144: MFU", MEGASCALE_MFU[framework],
                    flops / (step * 12288 * 312e12), "share"))  # fmt: skip
    fitted = Fitted("t, one micro-batch", each, "s"), Fitted("c", fixed, "s")
    return System.of("megascale", rows, *fitted, framework=framework)


def _slots(batch: int, gpus: int) -> float:
    """Micro-batch times an iteration takes."""
    micro_batches = batch // (gpus // 64)
    return pipeline(micro_batches, stages=8, interleaved=6, per_micro_batch=1.0)


def llama3() -> System:
    """405B: the same batch on twice the GPUs has half the micro-batches in each pipeline."""
    share = {32: 32 / pipeline(32, stages=16, interleaved=8, per_micro_batch=1.0),
             16: 16 / pipeline(16, stages=16, interleaved=8, per_micro_batch=1.0)}  # fmt: skip
    full = 0.43 / share[32]
    rows = [
        PublishedRow("8,192 GPUs, 32 micro-batches", 0.43, full * share[32], "share", True),
        PublishedRow("16,384 GPUs, 16 micro-batches", 0.41, full * share[16], "share"),
    ]
    return System.of("llama3", rows, Fitted("MFU∞", full, "share"))


#: Speed-up by overlap, and buckets of 25 MB, of 102 MB and 1.34 GB of gradients (Li et al. 2020).
DDP = {
    ("ResNet-50", "NCCL"): 0.380, ("BERT", "NCCL"): 0.352,
    ("ResNet-50", "gloo"): 0.268, ("BERT", "gloo"): 0.215,
}  # fmt: skip
DDP_BUCKETS = {"ResNet-50": 5, "BERT": 51}


def overlap_gain(ratio: float, buckets: int) -> float:
    """Speed-up by overlapping, where communication ÷ backward is `ratio`.

    Backward is twice forward, as for every stack of matrix products.
    """
    with_overlap = overlapped_step(forward=0.5, backward=1.0, transfer=ratio, buckets=buckets)
    return (1.5 + ratio) / with_overlap.time - 1


def overlap_ratio(gain: float, buckets: int) -> float:
    """Communication ÷ backward that gives this speed-up, communication being the longer.

    From (1.5 + ρ)/(.5 + 1/b + ρ) = 1 + g.
    """
    return (1.5 - (1 + gain) * (0.5 + 1 / buckets)) / gain


def ddp() -> System:
    """Each row is predicted from the three others: gloo ÷ NCCL is the same for both models."""
    ratios = {key: overlap_ratio(gain, DDP_BUCKETS[key[0]]) for key, gain in DDP.items()}
    other = {"ResNet-50": "BERT", "BERT": "ResNet-50", "NCCL": "gloo", "gloo": "NCCL"}
    rows = []
    for (model, backend), gain in DDP.items():
        swap = ratios[other[model], backend] / ratios[other[model], other[backend]]
        ratio = ratios[model, other[backend]] * swap
        predicted = overlap_gain(ratio, DDP_BUCKETS[model])
        rows.append(PublishedRow(f"{model}, {backend}", gain, predicted, "share",
                                 note="left out; predicted from the other three"))  # fmt: skip
    fitted = [
        Fitted("m/b of ResNet-50, NCCL", ratios["ResNet-50", "NCCL"], ""),
        Fitted("m/b of BERT, NCCL", ratios["BERT", "NCCL"], ""),
        Fitted("gloo ÷ NCCL", ratios["ResNet-50", "gloo"] / ratios["ResNet-50", "NCCL"], ""),
    ]
    return System.of("ddp", rows, *fitted)


#: Bytes of fp32 gradients and seconds of one step of 64 images on a P100 (TensorFlow benchmarks,
#: 2017: 142, 154, and 219 and 91.8 images/s for ResNet-50 and -152, between which ResNet-101 lies
#: by its arithmetic: 7.6 of 3.8 and 11.3 GFLOP).
HOROVOD = {
    "Inception V3": (95.4e6, 64 / 142.0, 0.90),
    "ResNet-101": (178e6, 64 * (1 / 219 + (1 / 91.8 - 1 / 219) * (7.6 - 3.8) / (11.3 - 3.8)), 0.90),
    "VGG-16": (553e6, 64 / 154.0, 0.68),
}


def horovod() -> System:
    """512 P100 in servers of four, one 25 Gb/s NIC each."""

    def transfer(size_bytes: float) -> float:
        return ring(size_bytes, 512, Link(25 / 8)).time_ns / 1e9

    size, compute, efficiency = HOROVOD["VGG-16"]
    exposed = compute * (1 / efficiency - 1) / transfer(size)
    rows = [
        PublishedRow(name, measured, serial(
            compute=step, transfer=transfer(bytes_), hidden=1 - exposed).efficiency, "share",
            fitted=name == "VGG-16")
        for name, (bytes_, step, measured) in HOROVOD.items()
    ]  # fmt: skip
    return System.of(
        "horovod", rows, Fitted("x, share of the exchange not hidden", exposed, "share")
    )


#: Model, layers, hidden size, GPUs, sequences of a step, TFLOP/s of a GPU (Narayanan et al. 2021,
#: table 2). The rate of compute and the time of a rank's part are fitted to the first two.
ZERO = (
    ("530B", 105, 20480, 640, 2560, 138.0), ("530B", 105, 20480, 1120, 2240, 98.0),
    ("530B", 105, 20480, 2240, 2240, 48.0), ("175B", 96, 12288, 384, 1536, 144.0),
    ("175B", 96, 12288, 768, 1536, 88.0), ("175B", 96, 12288, 1536, 1536, 44.0),
)  # fmt: skip
ZERO_WEIGHTS = 3, 1, 4, 4  # of a layer: parameters over hidden size²


def zero() -> System:
    """ZeRO-3 of that year: each weight is gathered by itself, and nothing computes meanwhile."""
    flops, exchanges_s, parts = np.array([_zero_step(*row[1:5]) for row in ZERO]).T
    left_s = flops / [row[-1] * 1e12 for row in ZERO] - exchanges_s
    flop_s, part_s = np.linalg.solve(np.stack([flops, parts], axis=1)[:2], left_s[:2])
    rates = flops / (flops * flop_s + exchanges_s + parts * part_s) / 1e12
    rows = [
        PublishedRow(f"{row[0]}, {row[3]:,} GPUs", row[-1], float(rate), "TFLOP/s a GPU",
                     fitted=row in ZERO[:2], modelled=False)
        for row, rate in zip(ZERO, rates, strict=True)
    ]  # fmt: skip
    return System.of("zero", rows, Fitted("compute", float(1e-12 / flop_s), "TFLOP/s a GPU"),
                     Fitted("a rank's part of a gather", float(part_s * 1e6), "µs"))  # fmt: skip


def _zero_step(layers: int, hidden: int, gpus: int, batch: int) -> tuple[float, float, int]:
    """FLOPs of a GPU, seconds of all gathers and scatters, and ranks' parts in them."""
    flops = megatron_flops(
        batch * 2048, layers=layers, hidden=hidden, sequence=2048, vocabulary=51200,
        recomputed=True,
    )  # fmt: skip
    times_s = {
        (operation, weight): simulated_collective(
            "dgx-a100", gpus // 8, 2 * weight * hidden**2, (f"work.operation={operation}",)
        ).alone_ns / 1e9
        for operation in ("all_gather", "reduce_scatter") for weight in set(ZERO_WEIGHTS)
    }  # fmt: skip
    each = (3 * times_s["all_gather", w] + times_s["reduce_scatter", w] for w in ZERO_WEIGHTS)
    return flops / gpus, layers * sum(each), 4 * len(ZERO_WEIGHTS) * layers * gpus


@cache
def systems() -> list[System]:
    """Published systems of whole training steps."""
    return [*map(megascale, MEGASCALE), llama3(), ddp(), horovod(), zero()]


@cache
def simulated_rows() -> tuple[PublishedRow, ...]:
    """The rows of whole steps that have a preset, simulated; fitted ones stay marked."""
    return (*_simulated_megascale(), *_simulated_overlap(), *_simulated_horovod())


def _simulated_megascale() -> Iterator[PublishedRow]:
    for framework in MEGASCALE:
        base = _preset(f"{framework.split('-')[0].lower()}-175b")
        rows = megascale(framework).rows
        for gpus, row in zip(MEGASCALE[framework], rows, strict=False):
            found = step_ns(set_up(resize(base, gpus, strong=True))) / 1e9
            yield row._replace(what=f"{framework}, {row.what}", predicted=found)


def _simulated_overlap() -> Iterator[PublishedRow]:
    for model, backend in DDP:
        name = f"ddp-{model}-{backend}".lower()
        step, serial_step = (
            step_ns(set_up(_preset(name, f"work.overlap={flag}"))) for flag in ("true", "false")
        )
        what, gain = f"gain of overlap, {model}, {backend}", serial_step / step - 1
        yield PublishedRow(what, DDP[model, backend], gain, "share")


def _simulated_horovod() -> Iterator[PublishedRow]:
    for name, (_, _, measured) in HOROVOD.items():
        found = simulate(_preset(f"horovod-{name.lower().replace(' ', '-')}")).efficiency
        fitted = name == "VGG-16"
        yield PublishedRow(f"efficiency, {name}", measured, found, "share", fitted=fitted)


def _preset(name: str, *sets: str) -> Scenario:
    return scenarios.parse({}, [f"preset={name}", "run.steps=1", *sets])


# -- all-reduces measured with nccl-tests, simulated without a fit ---------------------------------

MIB = 2**20
_MEASURED: Mapping[str, Any] = read_toml(Path(__file__).with_name("measured.toml"))
NVLS_US = {int(mib) * MIB: us for mib, us in _MEASURED["nvls"].items()}


class Pair(NamedTuple):
    """A measured bus bandwidth in GB/s, and the machines: a preset with some settings changed."""

    what: str
    measured: float
    preset: str
    nodes: int
    mib: int
    sets: Sequence[str] = ()
    note: str = ""
    modelled: bool = True  # as `PublishedRow`


SEVERAL = [Pair(**row) for row in _MEASURED["several"]]
P5 = [
    Pair(f"{8 * int(nodes)} H100, {nodes} p5 nodes, {int(mib):,} MiB", measured, "p5", int(nodes),
         int(mib), modelled=False)
    for nodes, row in _MEASURED["p5"].items() for mib, measured in row.items()
]  # fmt: skip


@cache
def one_node() -> System:
    """8 H100 on NVSwitch."""
    rows = [
        PublishedRow(
            f"all-reduce of {size // MIB:,} MiB", measured,
            simulated_collective("dgx-h100", 1, size).alone_ns / 1e3, "µs",
        )
        for size, measured in NVLS_US.items()
    ]  # fmt: skip
    return System.of("nvls", rows)


@cache
def across_nodes(key: str) -> System:
    """Bandwidths between nodes: "several" of A100 and H100, or two to 32 "p5" of 8 H100."""
    rows = []
    for pair in {"several": SEVERAL, "p5": P5}[key]:
        found = simulated_collective(pair.preset, pair.nodes, pair.mib * MIB, pair.sets)
        reached = found.busbw_gBps or 0.0
        rows.append(PublishedRow(pair.what, pair.measured, reached, "GB/s",
                                 modelled=pair.modelled, note=pair.note))  # fmt: skip
    return System.of(key, rows)


def simulated_collective(
    preset: str, nodes: int, size_bytes: int, more: Sequence[str] = ()
) -> CollectiveUse:
    """An all-reduce over all GPUs of so many machines of a preset, or what `more` says."""
    sets = [f"preset={preset}", f"cluster.nodes={nodes}", "work.kind=collective",
            f"work.gradient_bytes={size_bytes}", "run.steps=1", *more]  # fmt: skip
    return simulate(scenarios.parse({}, sets)).collectives[0]
