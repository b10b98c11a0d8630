import ast
import gc
import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from examples import gpt  # noqa: E402

LENGTH = 32


@pytest.fixture
def model():
    torch.manual_seed(0)
    return gpt.GPT(length=LENGTH, width=32, layers=2)


@pytest.fixture
def windows():
    return torch.stack([gpt.StandardLibrary(LENGTH, size=10_000)[index] for index in range(8)])


def test_the_script_knows_nothing_of_evenstep():
    tree = ast.parse(Path(gpt.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert "evenstep" not in " ".join(map(ast.unparse, imports))


def test_an_untrained_model_knows_nothing_of_256_bytes(model, windows):
    assert model(windows).item() == pytest.approx(math.log(256), rel=0.1)


def test_it_learns(model, windows):
    for _ in range(20):
        loss = model(windows)
        parameters = list(model.parameters())
        for parameter, slope in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.data -= 0.01 * slope.sign()  # an optimizer of torch's imports its compiler
    assert loss.item() < math.log(256) / 2


def test_a_place_sees_nothing_of_what_follows(model):
    block, x = model.blocks[0], torch.randn(1, LENGTH, 32)
    changed = x.clone()
    changed[:, 20:] += 1
    assert torch.equal(block(x)[:, :20], block(changed)[:, :20])


def test_windows_follow_each_other_without_a_gap():
    data = gpt.StandardLibrary(LENGTH, size=1000)
    assert len(data) == 999 // LENGTH  # the last byte is only ever a target
    assert data[0][-1] == data[1][0]


@pytest.fixture
def collected():
    """Objects found by each collection from here on."""
    found = []

    def watch(phase, info):
        if phase == "stop":
            found.append(info["collected"])

    gc.callbacks.append(watch)
    yield found
    gc.callbacks.remove(watch)


def test_the_disturbance_collects_garbage_and_leaves_the_gradient_alone(collected):
    gradient = torch.ones(3)
    assert gpt.make_garbage(gradient) is gradient
    assert sum(collected) >= gpt.GARBAGE_CYCLES - 1  # the last cycle still has a name
