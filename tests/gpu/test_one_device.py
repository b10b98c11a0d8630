"""Everything that one device and one rank can show."""

import statistics
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from evenstep.hooks.torch.stream_delay import CALIBRATIONS, CaptureGate, StreamDelay
from evenstep.host.sources.nvml import NvmlSource
from evenstep.trace.spool.layout import Flag, Kind

STEPS = 10


def model():
    torch.manual_seed(1)
    return torch.nn.Linear(256, 256, device="cuda")


def train(module, steps=STEPS):
    """Losses to the bit."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = module(torch.full((32, 256), step / steps, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses


def collectives(trace):
    rows = trace.of_kind(Kind.COLLECTIVE)
    return rows.select((rows.flags & int(Flag.ON_DEVICE)) != 0)


def test_collectives_have_times_of_the_device(alone):
    train(DistributedDataParallel(model()))
    rows = collectives(alone())
    timed = rows.select(rows.device_exit_ns > 0)
    assert len(timed) >= STEPS
    assert (timed.device_exit_ns >= timed.device_enter_ns).all()


def test_losses_are_the_same_to_the_bit(alone):
    observed = train(DistributedDataParallel(model()))
    alone()
    assert observed == train(DistributedDataParallel(model()))


def test_a_busy_stream_before_a_collective_delays_it_on_the_device_and_not_on_the_host(alone):
    tensor = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    began = time.monotonic()
    torch.cuda._sleep(200_000_000)
    dist.all_reduce(tensor)
    issued_s = time.monotonic() - began
    rows = collectives(alone())
    gap_ns = int(rows.device_enter_ns[-1] - rows.device_exit_ns[-2])
    assert gap_ns > 2 * issued_s * 1e9


def test_a_captured_graph_replays_under_observation(alone):
    module, batch = model(), torch.ones(32, 256, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            module(batch).sum().backward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = module(batch)
    graph.replay()
    assert torch.equal(result, module(batch))
    assert "failure" not in alone().ranks[0].facts


def test_a_captured_collective_replays_under_observation(alone):
    tensor, other = torch.ones(8, device="cuda"), torch.ones(8, device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(tensor.mul_(2))
    for _ in range(3):
        graph.replay()
        dist.all_reduce(other)
    torch.cuda.synchronize()
    assert tensor.tolist() == [8.0] * 8
    trace = alone()
    assert "failure" not in trace.ranks[0].facts
    rows = collectives(trace)
    assert (rows.device_exit_ns > 0).sum() >= 4  # of those outside the graph


def test_a_stream_is_held_for_as_long_as_asked(alone):
    held = {}
    spool = SimpleNamespace(patch=lambda seq, word, value: held.update({seq: value}))
    gate = CaptureGate(torch.cuda.CUDAGraph)
    delay = StreamDelay(torch.cuda, 0, spool, gate)
    for seq in range(1, 2 * CALIBRATIONS):
        delay.hold(5_000_000, seq)
        torch.cuda.synchronize()
        delay.poll()
    gate.remove()
    assert len(held) == CALIBRATIONS - 1
    assert statistics.median(held.values()) == pytest.approx(5_000_000, rel=0.1)


def test_a_compiled_model_is_observed(alone):
    train(torch.compile(DistributedDataParallel(model())))
    trace = alone()
    assert len(trace.of_kind(Kind.STEP)) == STEPS
    assert "failure" not in trace.ranks[0].facts


@pytest.fixture
def measuring(monkeypatch):
    monkeypatch.setenv("EVENSTEP_PROBE_EVERY", "4")


def test_a_rank_measures_its_device_between_steps(measuring, alone):
    train(DistributedDataParallel(model()))
    trace = alone()
    samples = trace.of_kind(Kind.SAMPLE)
    names = {trace.names[name] for name in samples.name}
    assert names >= {"probe.compute_ns", "probe.memory_ns", "probe.host_copy_ns"}


def test_the_driver_tells_power_and_clocks():
    source = NvmlSource(0)
    source.open()
    metrics = {metric for metric, _, _ in source.read()}
    source.close()
    assert any("power" in metric for metric in metrics)


@pytest.mark.parametrize("operation", ["all_reduce", "broadcast", "barrier"])
def test_each_operation_is_recorded(alone, operation):
    tensor = torch.ones(8, device="cuda")
    arguments = {"all_reduce": (tensor,), "broadcast": (tensor, 0), "barrier": ()}[operation]
    getattr(dist, operation)(*arguments)
    assert len(alone().of_kind(Kind.COLLECTIVE)) == 1
