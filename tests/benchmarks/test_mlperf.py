"""Steps of MLPerf submissions, predicted from those on the fewest machines."""

import pytest

from benchmarks import mlperf

HEAD = "submitter,system,benchmark,gbs,accelerators,step_s_median\n"


def mlperf_table(folder, *rows):
    table = folder / "steps.csv"
    table.write_text(HEAD + "".join(f"{row}\n" for row in rows))
    return table


def test_more_machines_are_predicted_from_the_fewest_of_the_same(tmp_path):
    """Twice the accelerators take half as long but for what nothing hides."""
    (found,) = mlperf.systems(mlperf_table(
        tmp_path, "A,box,stable_diffusion,256,8,0.40", "A,2xbox8,stable_diffusion,256,16,0.3",
        "A,box_n2_v1,stable_diffusion,256,16,0.22", "A,box_v1,stable_diffusion,256,8,0.40",
        "A,lone,unknown,8,8,0.4", "A,2xlone,unknown,8,16,0.4",
    ))  # fmt: skip
    assert found.name.endswith("A box_v1")
    assert [row.fitted for row in found.rows] == [True, False]
    assert found.rows[0].predicted == pytest.approx(0.40)
    assert 0.20 <= found.rows[1].predicted <= 0.21


def test_what_a_step_computes_whatever_the_batch_comes_from_other_machines(tmp_path):
    rows = [f"B,x{ranks}H100-SXM,stable_diffusion,256,{ranks},{step}"
            for ranks, step in ((4, 0.44), (8, 0.24))]  # fmt: skip
    own = ["A,box_v1,stable_diffusion,256,8,0.24", "A,box_n2_v1,stable_diffusion,128,16,0.1"]
    (found,) = mlperf.systems(mlperf_table(tmp_path, *rows, *own))
    _, fixed = found.fitted
    assert 20 < fixed.value < 40  # 2 × 240 - 440 ms, less what of each is not compute
    one, other = (mlperf.Size(16, batch, 0.1) for batch in (128, 256))
    each = found.fitted[0].value
    told = [mlperf._step_ms("stable_diffusion", size, fixed.value + each * size.share)
            for size in (one, other)]  # fmt: skip
    assert found.rows[1].predicted == pytest.approx(told[0] / 1e3)
    assert told[1] - told[0] == pytest.approx(8 * each, rel=0.01)


def test_reduce_scatters_are_not_hidden_where_a_sequence_is_split_over_machines(tmp_path):
    """4 of 80 layers, of 33.6 MB at 360 GB/s ÷ 1.5, or 320 × .14 ms, on top of an eighth."""
    (found,) = mlperf.systems(mlperf_table(
        tmp_path, "A,box_v1,llama2_70b_lora,8,8,3.6", "A,box_n8_v1,llama2_70b_lora,8,64,0.5",
    ))  # fmt: skip
    assert found.rows[1].predicted == pytest.approx(3.6 / 8 + 0.32 * 0.14, rel=0.05)


def test_halves_of_a_sequence_are_joined_in_every_layer():
    """16.9 times 4,096 × 2,048 queries of 16 bits at 3.35 TB/s: .085 ms. A quarter of a sample on a
    GPU is two micro-batches of 80 layers on eight."""
    told = dict(one.split("=", 1) for one in mlperf._adapters(mlperf.Size(32, 8, 1.0)))
    assert float(told["work.optimizer_ms"]) == pytest.approx(2 * 80 * 0.085, rel=0.01)
    alone = dict(one.split("=", 1) for one in mlperf._adapters(mlperf.Size(8, 8, 4.0)))
    assert float(alone["work.optimizer_ms"]) == 0.0
