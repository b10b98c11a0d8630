"""Ray Train: two workers on this machine; the first one is late.

python examples/frameworks/ray_trainer.py --out run && evenstep diagnose run
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from late import Late, Points, network
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch.nn import functional
from torch.utils.data import DataLoader

from evenstep.frameworks.ray_train import observed

BATCH = 8


def train_loop(config: dict[str, Any]) -> None:
    """An ordinary loop of Ray Train."""
    context = ray.train.get_context()
    torch.set_num_threads(1)
    late = Late(config["pause_ms"] if context.get_world_rank() == 0 else 0)
    model = prepare_model(network(late))
    data = Points(config["steps"] * BATCH * context.get_world_size())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in prepare_data_loader(DataLoader(data, BATCH)):
        loss = functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if late.paused_ns:
        Path(config["said"]).write_text(json.dumps(late.measured()))


def train(out: Path, *, steps: int, pause_ms: float) -> dict[str, float]:
    """Train on the cluster there is; what the first worker said of itself."""
    with tempfile.TemporaryDirectory() as results:
        said = Path(results) / "late.json"
        trainer = TorchTrainer(
            observed(train_loop, out=str(out.absolute())),
            train_loop_config={"steps": steps, "pause_ms": pause_ms, "said": str(said)},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(name="late", storage_path=results),
        )
        trainer.fit()
        found: dict[str, float] = json.loads(said.read_text())
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the run's folder")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--pause-ms", type=float, default=50.0, help="of the first rank a step")
    args = parser.parse_args()
    ray.init(num_cpus=3, include_dashboard=False)
    print(json.dumps(train(args.out, steps=args.steps, pause_ms=args.pause_ms)))


if __name__ == "__main__":
    main()
