"""Failures of large jobs: Llama 3's interruptions, Meta's research clusters."""

from __future__ import annotations

from evenstep import checkpoints
from evenstep.reproduce.published.rows import PublishedRow, System
from evenstep.simulate.formulas import reliability
from evenstep.simulate.formulas.reliability import HOUR_NS

#: Unexpected interruptions of Llama 3 405B in 54 days on 16,384 GPUs (Grattafiori et al. 2024).
LLAMA3_CAUSES = {
    "GPU": 148, "HBM": 72, "software": 54, "network": 35, "host maintenance": 32, "other": 78,
}  # fmt: skip
LLAMA3_NODES, LLAMA3_DAYS = 2048, 54.0
#: Bytes a parameter of a checkpoint takes: bf16 weights, fp32 weights and two fp32 moments.
CHECKPOINT_BYTES = 2 + 4 + 4 + 4
#: Sustained throughput of Llama 3's checkpoint storage (Grattafiori et al. 2024, section 3.3.1).
STORAGE_BYTES_PER_S = 2e12
#: From a failure to training again. Not published; ten minutes to find, replace and load.
RESTART_NS = 600e9


def llama3() -> System:
    """From interruptions to the share of the time that is effective."""
    parts = reliability.observed_parts(  # 8 GPUs and their memory a node, one of the others
        LLAMA3_CAUSES, nodes=LLAMA3_NODES, days=LLAMA3_DAYS, per_node={"GPU": 8, "HBM": 8},
        software=("software",),
    )  # fmt: skip
    mtbf = reliability.mtbf_ns(parts, LLAMA3_NODES)
    write = 405e9 * CHECKPOINT_BYTES / STORAGE_BYTES_PER_S * 1e9
    interval = checkpoints.daly(write, mtbf)
    useful = checkpoints.shares(write, mtbf, interval=interval, restart=RESTART_NS).useful
    slack = checkpoints.longest_restart(write, mtbf, goal=0.9)
    rows = [
        PublishedRow("hours between interruptions", 3.1, mtbf / HOUR_NS, "h"),
        PublishedRow("effective training time, more than", 0.90, useful, "share", bound=True,
                     note=f"holds up to {slack / 60e9:.0f} minutes of restart"),
    ]  # fmt: skip
    return System.of("interruptions", rows, write_s=write / 1e9)


def rsc() -> System:
    """What one measured rate says about jobs far larger than any that ran."""
    rows = [
        PublishedRow(f"mean time to failure, {gpus:,} GPUs", hours,
                     reliability.mttf_ns(6.50, gpus=gpus) / HOUR_NS, "h")
        for gpus, hours in ((16384, 1.8), (131072, 0.23))
    ]  # fmt: skip
    return System.of("rsc", rows)
