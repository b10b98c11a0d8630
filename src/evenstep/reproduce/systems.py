"""Named presets for `evenstep explain`: a published claim, its inputs, how near we are.

Most claims are those of an article on communication bottlenecks (System Overflow, "Communication
Bottlenecks and Scaling Limits in Distributed Training"), the last ones of papers on reliability.
Each input says where it comes from; none is chosen to meet the claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evenstep.explain.topic import Answer


@dataclass(slots=True, frozen=True, kw_only=True)
class Claim:
    """A number somebody published, and the options of a topic that should give it."""

    name: str
    topic: str
    options: Mapping[str, str]
    result: str  # which number of the answer is claimed
    low: float  # equal to `high` where one number is claimed
    high: float
    says: str
    inputs: str  # where the options come from

    def error(self, answer: Answer) -> float:
        """Relative distance to what is claimed, signed; 0 inside a claimed range."""
        value = answer.value(self.result)
        if self.low <= value <= self.high:
            return 0.0
        nearest = self.low if value < self.low else self.high
        return (value - nearest) / nearest

    def checked(self, answer: Answer) -> dict[str, Any]:
        """The claim beside our number, as plain data."""
        error = self.error(answer)
        if self.low < self.high:
            verdict = f"{100 * error:+.1f} % outside" if error else "within what is claimed"
        else:
            verdict = f"off by {100 * error:+.1f} %"
        return {
            "name": self.name, "topic": self.topic, "says": self.says, "inputs": self.inputs,
            "result": self.result, "predicted": answer.value(self.result), "low": self.low,
            "high": self.high, "error": error,
            "sentence": f"Claimed: {self.says}. Our {self.result} is {verdict}. "
                        f"Inputs: {self.inputs}.",
        }  # fmt: skip


def _claim(name: str, topic: str, result: str, low: float, high: float, says: str, inputs: str,
           **options: str) -> Claim:  # fmt: skip
    given = {key.replace("_", "-"): text for key, text in options.items()}
    return Claim(name=name, topic=topic, options=given, result=result, low=low, high=high,
                 says=says, inputs=inputs)  # fmt: skip


CLAIMS: tuple[Claim, ...] = (
    _claim(
        "gradients-10b", "allreduce", "pass_ns", 400e6, 400e6,
        "20 GB at 50 GB/s take at least 400 ms",
        "10 billion parameters in fp16; a 400 Gb/s link",
        bytes="20GB", gBps="50", ranks="512",
    ),
    _claim(
        "ring-limit-10b", "allreduce", "time_ns", 800e6, 800e6,
        "a ring approaches 2S/B with many ranks",
        "as gradients-10b, on 512 ranks, no latency",
        bytes="20GB", gBps="50", ranks="512",
    ),
    _claim(
        "tensor-parallel-96", "allreduce", "total_ns", 192e6, 384e6,
        "200 MB, twice a layer, in 96 layers: 192 to 384 ms of communication a step",
        "8 ranks on NVSwitch; its 600 GB/s are 300 in each direction (NVIDIA A100 datasheet); 2 µs "
        "a message and 10 µs a launch",
        bytes="200MB", gBps="300", ranks="8", per_layer="2", layers="96", latency="2us",
        launch="10us",
    ),
    _claim(
        "data-parallel-512", "efficiency", "efficiency", 0.0, 0.5,
        "with 512 GPUs and 200 Gb/s links efficiency is below 50 %",
        "10 billion parameters in fp16; 4,096 tokens a GPU (the 2 M token batch GPT-3 6.7B and 13B "
        "were trained with, Brown et al. 2020); A100, 312 TFLOP/s, half of it reached; nothing "
        "hidden",
        parameters="10B", tokens="4096", tflops="312", mfu="50%", gbps="200", ranks="512",
    ),
    _claim(
        "any-straggler-512", "slowest", "chance", 0.99, 1.0,
        "at 512 GPUs the chance that one is slow in a step approaches 100 %",
        "a GPU is beyond its 99th percentile in 1 % of steps, by definition; what it then costs is "
        "taken as a fifth of a step",
        ranks="512", probability="1%", delay_share="20%",
    ),
    _claim(
        "p99-512", "slowest", "lost", 0.10, 0.20,
        "waiting for the 99th percentile costs 10 to 20 % of throughput",
        "as any-straggler-512: the 99th percentile of a GPU's time is 20 % above its usual one; "
        "11 to 25 % give the claimed range",
        ranks="512", probability="1%", delay_share="20%",
    ),
    _claim(
        "opt-175b", "efficiency", "efficiency", 0.5, 0.5,
        "communication limited scaling efficiency to about 50 % on 992 A100s",
        "OPT-175B (Zhang et al. 2022): 2 M tokens a batch, 8-way tensor parallel, fully sharded "
        "over 124 replicas (3 half passes), recomputed activations; arithmetic at its peak of 312 "
        "TFLOP/s, so that this is an upper bound of the share of the peak; 24 of 25 GB/s a link; "
        "576 all-reduces of 416 MB over NVSwitch at 240 GB/s are the other 1.75 s; nothing hidden. "
        "Its own log says 147 TFLOP/s, 47 % of the peak",
        ranks="992", parameters="175B", model_ranks="8", tokens="2114", tflops="312", mfu="100%",
        recompute="yes", gBps="24", passes="1.5", other="1.75s",
    ),
    _claim(
        "superpod-560", "efficiency", "efficiency", 0.9, 1.0,
        "560 A100s with 8 × 200 Gb/s a node scale nearly linearly up to 10^12 parameters",
        "8-way tensor and 35-way pipeline parallel; 3,072 sequences of 2,048 tokens a batch and "
        "half of 312 TFLOP/s reached (Narayanan et al. 2021, 1T on A100s); near linear is read as "
        "at least 90 %; pipeline bubbles are left out",
        ranks="560", parameters="1T", model_ranks="280", tokens="11235", tflops="312", mfu="50%",
        recompute="yes", gbps="200",
    ),
    _claim(
        "tpu-v4-4096", "allreduce", "bus_gBps", 250.0, 250.0,
        "a TPU v4 torus of 4,096 chips has 10 × the bandwidth of InfiniBand",
        "16 × 16 × 16 chips with 6 links of 50 GB/s (Jouppi et al. 2023), 1 µs a hop, against 25 "
        "GB/s (200 Gb/s HDR) a GPU; compared as what a chip's all-reduce reaches",
        bytes="20GB", ranks="4096", gBps="50", latency="1us", algorithm="torus", shape="16x16x16",
    ),
    _claim(
        "nvswitch-a100", "busbw", "share", 0.93, 0.93,
        "NCCL reaches 280 GB/s on 8 A100s with NVSwitch, 93 % of 300",
        "the time of 1 GB at that bus bandwidth",
        bytes="1GB", ranks="8", time="6.25ms", peak_gBps="300",
    ),
    _claim(
        "infiniband-untuned", "busbw", "share", 0.6, 0.8,
        "30 to 40 GB/s on badly tuned InfiniBand",
        "of a 400 Gb/s link; the time of 20 GB on 512 ranks at 35 GB/s",
        bytes="20GB", ranks="512", time="1140.6ms", peak_gBps="50",
    ),
    _claim(
        "rsc-1-16384", "failures", "mttf_hours", 1.8, 1.8,
        "a job on 16,384 GPUs of RSC-1 would fail every 1.8 hours",
        "6.50 failures per 1,000 node-days, 8 GPUs a node (Kokolis et al. 2025)",
        gpus="16384", per_1000_node_days="6.5",
    ),
    _claim(
        "rsc-1-131072", "failures", "mttf_hours", 0.23, 0.23,
        "a job on 131,072 GPUs of RSC-1 would fail every 0.23 hours",
        "6.50 failures per 1,000 node-days, 8 GPUs a node (Kokolis et al. 2025)",
        gpus="131072", per_1000_node_days="6.5",
    ),
    _claim(
        "llama3-failures", "failures", "mttf_hours", 3.1, 3.1,
        "Llama 3 405B was interrupted every 3.1 hours on 16,384 GPUs",
        "419 unexpected interruptions in 54 days (Grattafiori et al. 2024)",
        gpus="16384", interruptions="419", days="54", observed_gpus="16384",
    ),
    _claim(
        "llama3-goodput", "goodput", "useful", 0.9, 1.0,
        "Llama 3 405B spent more than 90 % of its time training",
        "one interruption in 3.1 hours; 14 bytes a parameter at 2 TB/s are 2.8 s a checkpoint "
        "(Grattafiori et al. 2024); 10 minutes to train again are assumed, not published",
        write="2.8s", mtbf="3.1h", restart="10min",
    ),
)  # fmt: skip
