"""What these tests need: a device that this torch can use. Elsewhere they skip and say so."""

import pytest
import torch
import torch.distributed as dist

import evenstep


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        reason = f"torch {torch.__version__} sees no CUDA device here"
        for item in items:
            if "tests/gpu/" in str(item.path):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def alone(tmp_path):
    """One rank on NCCL; what it recorded once the test calls `ended`."""
    dist.init_process_group("nccl", f"file://{tmp_path}/store", rank=0, world_size=1)
    evenstep.attach(out=tmp_path / "run", sample_period_s=0.1)

    def ended():
        torch.cuda.synchronize()
        evenstep.detach()
        return evenstep.load(tmp_path / "run")

    yield ended
    evenstep.detach()
    dist.destroy_process_group()
