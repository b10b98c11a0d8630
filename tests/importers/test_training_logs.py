"""Logs of trainers, in the words each of them prints."""

import gzip
import json
import random
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.diagnose.engine import diagnose
from evenstep.errors import EvenstepError
from evenstep.importers import compression, content
from evenstep.importers.opening import open_trace
from evenstep.importers.steps import training_logs
from evenstep.trace.spool.layout import Kind, Phase

MEGATRON = """\
[before the start of training step] datetime: 2024-05-01 12:00:00
 [2024-05-01 12:00:10] iteration       10/  500000 | consumed samples:         2560 | \
elapsed time per iteration (ms): 1000.0 | throughput per GPU (TFLOP/s/GPU): 380.2 | lm loss: 9.1 |
 [2024-05-01 12:00:22] iteration       20/  500000 | consumed samples:         5120 | \
elapsed time per iteration (ms): 1200.0 | throughput per GPU (TFLOP/s/GPU): 380.2 | lm loss: 9.0 |
"""
TITAN = "".join(
    f"[rank{rank}]:[titan] 2024-11-05 12:00:{10 * at:02d},{50 * rank:03d} - root - INFO - "
    f"step: {10 * at:2d}  loss:  8.{at}  memory: 33.48GiB(35.2%)  tps: 11,234  mfu: 2.1%\n"
    for at in (1, 2, 3) for rank in (0, 1)
)  # fmt: skip
DEEPSPEED = """\
[2023-05-01 12:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[1e-05]
[2023-05-01 12:00:00,124] [INFO] [timer.py:199:stop] epoch=0/micro_step=10/global_step=10, \
RunningAvgSamplesPerSec=31.2, CurrSamplesPerSec=30.1, MemAllocated=1.0GB, MaxMemAllocated=2.0GB
[2023-05-01 12:00:10,124] [INFO] [timer.py:199:stop] epoch=0/micro_step=20/global_step=20, \
RunningAvgSamplesPerSec=31.2, CurrSamplesPerSec=30.1, MemAllocated=1.0GB, MaxMemAllocated=2.0GB
[2023-05-01 12:00:30,124] [INFO] [timer.py:199:stop] epoch=0/micro_step=30/global_step=30, \
RunningAvgSamplesPerSec=31.2, CurrSamplesPerSec=30.1, MemAllocated=1.0GB, MaxMemAllocated=2.0GB
"""
TRAINER = (
    "  0%|          | 0/100 [00:00<?, ?it/s]\r  1%|          | 1/100 [00:02<03:18,  2.00s/it]\r"
    "  2%|▏         | 2/100 [00:04<03:16,  2.00s/it]\n{'loss': 0.5, 'epoch': 0.02}\n"
    "\r  3%|▏         | 3/100 [00:07<03:16,  2.20s/it]\r  4%|▏         | 4/100 [00:09<03:16]\n"
)
NANO = """\
step 0: train loss 10.9, val loss 10.9
iter 0: loss 10.9886, time 1234.00ms, mfu -100.00%
iter 1: loss 10.5, time 223.00ms, mfu -100.00%
"""
COLOURED = TITAN.replace("step:", "\x1b[31mstep:").replace("loss:", "\x1b[32mloss:")
NEMO = "".join(
    f"\rEpoch 0: :  {at}%|▏   | {at}/500 [00:0{at}<03:50, reduced_train_loss=10.9, "
    f"global_step={at - 1}.0, train_step_timing in s={at / 4}]" for at in (1, 2)
)  # fmt: skip
TORCHVISION = "".join(
    f"[rank{rank}]:Epoch: [1]  [ {at}/5005]  eta: 0:05:12  lr: 0.1  img/s: 512.3  "
    f"loss: 6.9 (6.9)  time: 0.{at + rank}  data: 0.0012  max mem: 5000\n"
    for at in (10, 20) for rank in (0, 1)
)  # fmt: skip
IMAGENET = "".join(
    f"Epoch: [0][ {at}/5005]\tTime  0.{at} ( 0.400)\tData  0.001 ( 0.050)\tLoss 6.9e+00\n"
    for at in (10, 20)
)
TIMM = "".join(
    f"Train: 0 [  {at}/1251 (  4%)]  Loss: 6.95 (6.95)  Time: 0.{at}s,  500.2/s  (0.131s,  510/s)  "
    "LR: 1e-4  Data: 0.010 (0.02)\n" for at in (50, 75)
)  # fmt: skip
MMENGINE = "".join(
    f"2026/11/20 10:00:00 - mmengine - INFO - Epoch(train)  [1][ {at}/7330]  lr: 2e-3  "
    f"eta: 10:12:13  time: 0.{at}  data_time: 0.0100  memory: 3400  loss: 1.9\n"
    for at in (50, 99)
)
DETECTRON = "".join(
    f"[11/20 10:00:00 d2.utils.events]:  eta: 1:12:13  iter: {at}  total_loss: 1.2  "
    f"time: 0.{at}  last_time: 0.131  data_time: 0.0123   lr: 0.01  max_mem: 5000M\n"
    for at in (19, 39)
)
FAIRSEQ = "".join(
    f"2026-11-20 10:00:00 | INFO | train_inner | epoch 001:  {at} / 5000 loss=8.1, ups=7.63, "
    f"num_updates={at}, lr=0.0005, train_wall=13, wall={at // 10}\n"
    for at in (100, 200)
)

PARTS = (Phase.INPUT, Phase.FORWARD, Phase.BACKWARD, Phase.SYNC, Phase.OPTIMIZER)
ITERATION = (
    " [2026-05-08 12:00:{at:02d}] iteration {at:8d}/  40 | consumed samples: 64 | "
    "elapsed time per iteration (ms): 100.0 | learning rate: 1.5E-04 |\n"
)
#: Of 100 ms a step, rank 0 works 60 and rank 1 works 85: 5 of input, which forward-compute holds,
#: then forward, backward and 10 of the optimizer. What is left is communication.
TIMERS = "".join(
    ITERATION.format(at=at) + "times across ranks (ms):\n"
    + "".join(
        f"  {name}:\n     rank  0: {one:.2f}\n     rank  1: {other:.2f}\n"
        for name, one, other in (
            ("forward-backward", 90, 90), ("forward-compute", 20, 30), ("batch-generator", 5, 5),
            ("backward-compute", 30, 45), ("optimizer", 10, 10), ("optimizer-inner-step", 8, 8),
        )
    )
    for at in (1, 2, 3)
)  # fmt: skip
MAXTEXT = "".join(
    f"I0811 21:55:0{at}.1 1383 metric_logger.py:226] completed step: {at}, seconds: 10.{at}, "
    "TFLOP/s/device: 350.8, Tokens/s/device: 1922.1, total_weights: 15728, loss: 12.9\n"
    for at in (1, 2)
)
STAGES = "".join(
    f"steps: {10 * at} loss: 4.6178 iter time (s): 0.99{at} samples/sec: 257.601\n" for at in (1, 2)
)
PADDLE = "".join(
    f"[2026-05-08 12:00:00,341] [    INFO] - global step {at}, epoch: 0, batch: {at}, loss: 10.9, "
    f"avg_reader_cost: 0.00021 sec, avg_batch_cost: 0.12{at} sec, speed: 8.06 step/s\n"
    for at in (1, 2)
)
INTERNLM = "".join(
    f"2024-03-01T23:59:58.{at}00+08:00 INFO [training_internlm.py, line 413, in record_current_"
    f"batch_training_metrics] - pid=12 : tflops=17 step={at} loss=9 tgs (tokens/gpu/second)=40.5"
    f" tgs/last_tgs_1=4000.5 lr=4e-07 micro_num=4 fwd_bwd_time=0.08\n" for at in (1, 2, 4)
)  # fmt: skip
INTERNLM_COMMAS = "".join(
    f"2023-05-01 10:00:0{at},250\tINFO train.py:317 in record_current_batch_training_metrics -- "
    f"tflops=188.0,step={at},loss=5.4,tgs (tokens/gpu/second)=4200.7,lr=7e-06,micro_num=4\n"
    for at in (1, 2)
)  # fmt: skip
VERL = "(TaskRunner pid=7) step:0 - val-core/gsm8k/acc/mean@1:0.5\n" + "".join(
    f"(TaskRunner pid=7) step:{at} - global_seqlen/min:24000 - "
    + "".join(f"critic/score_{n}/mean:0.1234567890123456 - " for n in range(130))
    + f"timing_s/gen:5.5 - timing_s/step:30.{at} - perf/throughput:619.4\n" for at in (1, 2)
)  # fmt: skip
OLMO = "".join(
    f"2026-05-08 12:00:0{at}.500\tnode1:0\tolmo.train:967\tINFO\t[step={at}/1000,epoch=0]\n"
    "    train/CrossEntropyLoss=5.0\n    throughput/device/batches_per_second=1.2\n"
    for at in (1, 2, 4)
)


def mllog(time_s, key, value=None, **metadata):
    """A line of MLPerf's logging."""
    said = {"time_ms": 1000 * time_s, "key": key, "value": value, "metadata": metadata}
    return f":::MLLOG {json.dumps({'namespace': '', 'event_type': 'POINT_IN_TIME', **said})}\n"


MLPERF = (
    mllog(0, "init_start") + mllog(60, "init_stop") + mllog(60, "run_start")
    + mllog(1, "global_batch_size", 48)
    + mllog(70, "tracked_stats", {"throughput": 24.0}, step=10)
    + mllog(80, "tracked_stats", {"throughput": 12.0}, step=20)
    + mllog(80, "eval_start") + mllog(85, "eval_stop") + mllog(90, "run_stop")
)  # fmt: skip


@pytest.fixture
def opened(tmp_path):
    """A log with this text, as a trace."""

    def of(text):
        path = tmp_path / "out.log"
        path.write_text(text)
        return open_trace([path])

    return of


@pytest.mark.parametrize(
    ("text", "kind", "steps"),
    [
        (MEGATRON, "Megatron-LM", {(0, 10): 1.0, (0, 20): 1.2}),
        (TITAN, "stamped lines", {(r, s): 1.0 for r in (0, 1) for s in (20, 30)}),
        (DEEPSPEED, "DeepSpeed", {(0, 20): 1.0, (0, 30): 2.0}),
        (TRAINER, "progress bar", {(0, 3): 2.5}),  # from 1 to 3 in 5 s, by a clock of whole ones
        (NANO, "nanoGPT", {(0, 0): 1.234, (0, 1): 0.223}),
        (COLOURED, "stamped lines", {(r, s): 1.0 for r in (0, 1) for s in (20, 30)}),
        (NEMO, "NeMo", {(0, 1): 0.25, (0, 2): 0.5}),
        (
            TORCHVISION,
            "torchvision",
            {(r, s): t for r in (0, 1) for s, t in ((5015, 0.11), (5025, 0.21))},
        ),
        (IMAGENET, "epochs", {(0, 10): 0.1, (0, 20): 0.2}),
        (TIMM, "epochs", {(0, 50): 0.5, (0, 75): 0.75}),
        (MMENGINE, "MMEngine", {(0, 7380): 0.5, (0, 7429): 0.99}),
        (DETECTRON, "detectron2", {(0, 19): 0.131, (0, 39): 0.131}),
        (FAIRSEQ, "fairseq", {(0, 200): 0.1}),
        (MLPERF, "MLPerf", {(0, 10): 2.0, (0, 20): 4.0}),  # 48 samples at 24, then 12 a second
        (MAXTEXT, "MaxText", {(0, 1): 10.1, (0, 2): 10.2}),
        (STAGES, "DeepSpeed's pipeline", {(0, 10): 0.991, (0, 20): 0.992}),
        (PADDLE, "Paddle", {(0, 1): 0.121, (0, 2): 0.122}),
        (OLMO, "OLMo", {(0, 2): 1.0, (0, 4): 1.0}),
        (INTERNLM, "stamped lines", {(0, 2): 0.1, (0, 4): 0.1}),
        (INTERNLM_COMMAS, "stamped lines", {(0, 2): 1.0}),
        (VERL, "verl", {(0, 1): 30.1, (0, 2): 30.2}),
        (TIMERS, "Megatron-LM", {(r, s): 0.1 for r in (0, 1) for s in (1, 2, 3)}),
    ],
)
def test_a_log_is_read_in_its_own_words(opened, text, kind, steps):
    trace = opened(text)
    rows = trace.of_kind(Kind.STEP)
    seconds = ((rows.exit_ns - rows.enter_ns) / 1e9).round(6).tolist()
    cells = zip(rows["rank"].tolist(), rows.step.tolist(), strict=True)
    assert dict(zip(cells, seconds, strict=True)) == steps
    assert trace.run["source"] == f"training log ({kind})"


def milliseconds(trace, rank):
    rows = trace.of_kind(Kind.PHASE)
    rows = rows.select(rows["rank"] == rank)
    lengths = ((rows.exit_ns - rows.enter_ns) / 1e6).tolist()
    told = dict(zip(rows.op.tolist(), lengths, strict=True))
    return [told.get(int(part), 0) for part in PARTS]


def test_timers_of_all_ranks_are_parts_of_their_steps(opened):
    trace = opened(TIMERS)
    assert milliseconds(trace, 0) == pytest.approx([5, 15, 30, 15, 10])
    assert milliseconds(trace, 1) == pytest.approx([5, 25, 45, 15, 10])
    summary = diagnose(trace).summary
    assert summary["shares"]["wait"] == pytest.approx(0.125)  # 25 of 100 ms on one of two ranks


def test_timers_of_one_rank_are_its_steps_and_their_parts(opened):
    line = (
        "[2023-06-21 07:39:0{at},250] [INFO] [logging.py:96:log_dist] [Rank {rank}] time (ms) | "
        "fwd{more}: 27.00 | bwd{more}: 73.00 | bwd_inner{more}: 51.00 | bwd_allreduce{more}: 22.00 "
        "| step{more}: 72.50\n"
    )
    trace = opened("".join(
        line.format(at=at, rank=rank, more=more)
        for at in (1, 2) for rank in (0, 1) for more in ("_microstep", "")
    ))  # fmt: skip
    assert milliseconds(trace, 1) == pytest.approx([0, 27, 51, 22, 72.5])
    parts_s, since_s = 0.1725, 1.0  # of a step, the second with what no timer of DeepSpeed counts
    assert seconds_of_steps(trace) == {
        (0, 1): parts_s, (1, 1): parts_s, (0, 2): since_s, (1, 2): since_s,
    }  # fmt: skip


def test_timers_slower_than_their_stamps_are_the_steps(opened):
    line = "[2023-06-21 07:39:0{at}{more}] time (ms) | forward: 900.00 | backward: 1100.00\n"
    for more in (",100", ""):  # stamps in whole seconds do not tell
        trace = opened("".join(line.format(at=at, more=more) for at in (1, 2, 3, 9)))
        seconds = [2.0, 2.0, 2.0, 6.0 if more else 2.0]
        assert list(seconds_of_steps(trace).values()) == seconds


@pytest.mark.parametrize("shown", ["(33.00, 43.00)", "43.00"])
def test_timers_that_name_no_rank_say_what_would(opened, shown):
    timer = f"(min, max) time across ranks (ms):\n    forward-compute ............: {shown}\n"
    limits = opened("".join(ITERATION.format(at=at) + timer for at in (1, 2))).limits
    assert any("of all ranks" in one and "--timing-log-option all" in one for one in limits)


def test_timers_that_all_ranks_end_together_say_so(opened):
    text = TIMERS.replace("forward-compute", "forward-recv")
    assert any("parts that all ranks end together" in limit for limit in opened(text).limits)


@pytest.mark.parametrize("unit", ["min", " min", " hours"])
def test_a_time_in_another_unit_is_not_taken_for_seconds(opened, unit):
    lines = (f"iter: {step}  loss: 3.1  time: 123.4{unit}  Epoch: [0][{step}/9] Time 12{unit}\n"
             for step in (1, 2))  # fmt: skip
    with pytest.raises(EvenstepError, match="has no two steps with times that are known"):
        opened("".join(lines))


def test_a_line_for_ten_steps_is_told_to_be_their_mean(opened):
    assert any("mean of about 10 steps" in limit for limit in opened(MEGATRON).limits)


def test_parts_of_a_run_are_known_where_the_log_marks_them(opened):
    run = opened(MLPERF).run
    assert (run["init_s"], run["evaluation_s"], run["run_s"]) == (60.0, 5.0, 30.0)


def test_steps_that_are_run_again_after_a_restart_are_lost_work(opened):
    first = MEGATRON + MEGATRON.splitlines(keepends=True)[-1].replace("20/", "30/")
    trace = opened(first + MEGATRON.replace("12:00", "13:00"))
    assert trace.run["lost_work_s"] == pytest.approx(10 * 2.2)  # steps 1 to 20, ten at a time


def test_what_nccl_says_in_between_is_read_as_well(opened):
    ring = "node-a:1320:1330 [0] NCCL INFO Channel 00/02 :    0   1\n"
    trace = opened(ring * 3_000 + MEGATRON)  # more than the head of a file
    assert len(trace.of_kind(Kind.STEP)) == 2
    assert trace.run["nccl"]["rings"]


@pytest.mark.parametrize(
    "before",
    [
        "INFO Loading checkpoint, layers.0.wq.weight: tensor([[ 0.0118,  ...,  0.0309]])\n",
        "Loading weights:   3%|▎         | 10/398 [00:00<00:00, 421.64it/s, q_norm.weight]\r",
    ],
)
@pytest.mark.parametrize("text", [MEGATRON, TRAINER])
def test_steps_after_the_head_of_a_file_are_found(opened, before, text):
    long = before * (2 * compression.HEAD_BYTES // len(before))
    assert opened(long + "\n" + text).events.step.tolist() == opened(text).events.step.tolist()


def test_a_damaged_text_without_steps_is_no_training_log(tmp_path):
    packed = gzip.compress(random.Random(1).randbytes(150_000).hex().encode())
    (path := tmp_path / "out.log.gz").write_bytes(packed[:-9])
    source = content.SourceFile(path, compression.read_head(path))
    assert not training_logs.recognises(source)


def test_a_text_is_searched_no_further_than_its_beginning(tmp_path, monkeypatch):
    streams = []

    def opening(path, **limit):
        streams.append(compression.Stream(path, **limit))
        return streams[-1]

    monkeypatch.setattr(content, "Stream", opening)
    monkeypatch.setattr(content, "SEARCHED_BYTES", 1_000)
    (path := tmp_path / "out.log").write_text("[" * (3 * compression.PIECE_BYTES) + MEGATRON)
    assert not training_logs.recognises(content.SourceFile(path, b"[" * 1_000))
    assert max(each.read_bytes for each in streams) <= compression.PIECE_BYTES


def test_one_step_between_nccls_lines_makes_no_training_log(tmp_path):
    ring, line = "node-a:1320:1330 [0] NCCL INFO Using network IB\n", MEGATRON.splitlines(True)[-1]
    for steps in (1, 2):
        (path := tmp_path / "out.log").write_text(ring + line * steps + ring)
        source = content.SourceFile(path, path.read_bytes())
        assert training_logs.recognises(source) == (steps == 2)


@given(st.text(max_size=80), st.sampled_from([MEGATRON, TITAN, TRAINER, MLPERF]), st.integers(0))
def test_any_text_among_the_lines_gives_a_trace_or_a_sentence(tmp_path_factory, noise, text, at):
    at %= len(text)
    path = tmp_path_factory.mktemp("any") / "out.log"
    path.write_text(text[:at] + noise + text[at:])
    with suppress(EvenstepError):
        open_trace([path])


def test_losses_of_mlperf_by_samples_are_steps_between_two_lines(opened):
    text = mllog(1, "global_batch_size", 32) + "".join(
        mllog(10 + 33 * at, "train_loss", 9.5, samples_count=1024 * at, lr=3e-6) for at in range(3)
    )
    trace = opened(text)
    assert seconds_of_steps(trace) == {(0, 32): 33 / 32, (0, 64): 33 / 32}
    iterations = MEGATRON.replace("1000.0", "500.0")  # which tell more
    assert seconds_of_steps(opened(text + iterations)) == {(0, 10): 0.5, (0, 20): 1.2}
    assert seconds_of_steps(opened(iterations + text)) == {(0, 10): 0.5, (0, 20): 1.2}


def test_samples_so_far_that_mlperf_calls_a_step_are_samples(opened):
    """Of NVIDIA's and AMD's language models: 384 samples in 200 s, 8 of them a step."""
    text = mllog(1, "global_batch_size", 8) + mllog(2, "run_start") + "".join(
        mllog(2 + 240 * at, "tracked_stats", {"throughput": 1.92}, step=384 * at) for at in (1, 2)
    )  # fmt: skip
    trace = opened(text)
    assert seconds_of_steps(trace) == pytest.approx({(0, 48): 8 / 1.92, (0, 96): 8 / 1.92})
    assert any("mean of about 48 steps" in limit for limit in trace.limits)


def test_a_step_of_mlperf_is_counted_in_samples_where_it_has_no_number(opened):
    text = mllog(1, "global_batch_size", None) + mllog(1, "global_batch_size", 48)
    text += mllog(2, "seed", 7)
    for at, took in ((480, 2.5), (960, 1.5)):
        said = {"train_step_time": took} if at == 480 else {"step_time": took}
        text += mllog(10 + at / 48, "tracked_stats", said, samples_count=at)
    rows = opened(text).of_kind(Kind.STEP)
    assert rows.step.tolist() == [10, 20]
    assert ((rows.exit_ns - rows.enter_ns) / 1e9).tolist() == [2.5, 1.5]
    assert (rows.exit_ns[1] - rows.exit_ns[0]) / 1e9 == 10.0  # logged at 20 and at 30 s


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (1e-300, {"samples_count": 1e300, "step_time": 1.0}),
        (8, {"samples_count": 1e300, "throughput": 1e-300}),
        (8, {"step": 10**30, "step_time": 1.0}),
        (8, {"step": 1.5, "step_time": 1.0}),
        (-8, {"samples_count": 8, "throughput": 2}),
    ],
)
def test_numbers_of_mlperf_beyond_all_bounds_are_no_steps(opened, batch, said):
    text = MLPERF + mllog(90, "global_batch_size", batch) + mllog(95, "tracked_stats", said)
    assert opened(text).of_kind(Kind.STEP).step.tolist() == [10, 20]


# -- as found in issues and repositories -----------------------------------------------------------

MMCV = "".join(
    f"2020-11-11 18:21:00,468 - mmdet - INFO - Epoch [1][{at}/29317]\tlr: 2.000e-02, "
    f"eta: 1 day, 18:44:28, time: 0.{took}, data_time: 0.009, memory: 3946, loss_rpn_cls: 0.1194\n"
    for at, took in ((1100, 393), (1150, 392))
)  # fmt: skip
YOLOX = "".join(
    "2022-04-02 03:30:33.415 | INFO     | yolox.core.trainer:after_iter:260 - epoch: 2/300, "
    f"iter: {at}/1242, mem: 20174Mb, iter_time: 0.{took}s, data_time: 0.001s, total_loss: 11.8\n"
    for at, took in ((200, 157), (250, 155))
)  # fmt: skip
NANOTRON = "".join(
    f"10/17/2025 16:32:07 [INFO|DP=0|PP=0|TP=0]: iteration: {at} / 378950 | consumed_tokens: 85.8G "
    f"| elapsed_time_per_iteration_ms: {took} | tokens_per_sec: 22.8K | lm_loss: 2.35\n"
    for at, took in ((327282, "11.5K"), (327283, "41.2"))
)  # fmt: skip
EQUALS = "".join(
    f"[2024-09-16 22:59:27.744603][INFO][training_log:661] -  iteration=       {at}/  635782 | "
    f"consumed_samples=        1536 | consumed_tokens=     6291456 | "
    f"elapsed_time_per_iteration_ms={took} | learning_rate=1.88744e-08 | lm loss=11.164009\n"
    for at, took in ((2, 8457.2), (3, 7136.5))
)  # fmt: skip
SPEEDRUN = (
    "step:500/1480 val_loss:3.7067 train_time:130164ms step_avg:265.64ms\n"
    "step:625/1480 val_loss:3.6328 train_time:164680ms step_avg:267.77ms\n"
    "step:750/1480 val_loss:3.5784 train_time:199620ms step_avg:269.76ms\n"
)
LLMC = "".join(
    f"step   {at}/74 | loss 3.402215 (+nanz)| norm 1.3542 (+nanz)| lr 3.00e-04 | {took} ms | "
    "-100.0% bf16 MFU | 91886 tok/s\n" for at, took in ((63, 44.58), (64, 44.57))
)  # fmt: skip
LLAMA2C = (
    "510 | loss 5.2391 | lr 4.999939e-05 | 8175.64ms | mfu 0.19%\n"
    "520 | loss 5.6863 | lr 4.999756e-05 | 7966.06ms | mfu 0.20%\n"
)
PADDLENLP = "".join(
    f"[    INFO] - loss: 1.94342518, learning_rate: 4.1e-06, global_step: {at}, interval_runtime: "
    "18.792, interval_samples_per_second: 8.514269788523704, interval_steps_per_second: "
    f"{rate}, epoch: 0.0028\n"
    for at, rate in ((40, 1.064283723565463), (60, 1.25))
)  # fmt: skip
PADDLESEG = "".join(
    f"2021-03-30 06:56:04 [INFO]\t[TRAIN] epoch: 1, iter: {at}/500, loss: 1.8769, lr: 0.009295, "
    f"batch_cost: {took}, reader_cost: 0.00205, ips: 5.7421 samples/sec | ETA 00:02:40\n"
    for at, took in ((40, 0.3483), (60, 0.3532))
)  # fmt: skip
SWIN = "".join(
    "[2022-03-14 09:05:23 swin] (main.py 226): INFO Train: [14/300]"
    f"[{at}/1251]\teta 0:10:45 lr 0.000711\ttime {took} (0.6510)\tloss 5.8341 (6.3028)\n"
    for at, took in ((260, 0.6290), (270, 0.6464))
)  # fmt: skip
PITH = "".join(
    f"2026-04-01 14:07:05 | INFO | step {at:08d}/00000015 | step-time {took} sec | "
    "cross-entropy-loss 2.5949 | peak-gpu-memory 63.84 GB\n"
    for at, took in ((2, 28.823), (3, 27.786))
)  # fmt: skip
DETECTRON_OLD = "".join(
    f"[11/01 11:23:51 d2.utils.events]: eta: 8:08:14  iter: {at}  total_loss: 1.120  "
    f"time: {took}  data_time: 0.0365  lr: 0.006793  max_mem: 3961M\n"
    for at, took in ((679, 0.3325), (699, 0.3326))
)  # fmt: skip
LIBAI = "".join(
    f"[09/10 10:4{at // 20}:32 lb.utils.events]:  eta: 21:05:47  iteration: {at}/10000  consumed_"
    f"samples: 160  total_loss: 9.0  time: {took} s/iter  data_time: 0.0019 s/iter lr: 1.50e-04\n"
    for at, took in ((39, 7.6572), (59, 7.6549), (79, 7.7127))
)  # fmt: skip
SOCKEYE = "".join(
    f"[2019-03-17:13:57:{at % 60}:INFO:sockeye.training:__call__] Epoch[0] Batch [{at}]\tSpeed: "
    f"71.77 samples/sec 1998.86 tokens/sec {rate} updates/sec\tperplexity=621.0\n"
    for at, rate in ((100, 1.25), (150, 1.28))
)  # fmt: skip
METASEQ = "".join(
    "slurm_procid 0 : 2022-11-11 14:05:29 | INFO | train_inner | "
    f'{{"epoch": 1, "loss": "15.864", "num_updates": "{at}", "lr": "5.6e-07", "wall": "{wall}"}}\n'
    for at, wall in ((2, 75), (32, 120))
)  # fmt: skip


BLOOM = "".join(
    f"[default7]: iteration    {at}/  115311 | consumed samples:      9841584 | elapsed time per "
    f"iteration (s): {took} | learning rate: 5.969E-05 | lm loss: 2.463556E+00 |\n"
    for at, took in ((12695, 105.22), (12696, 105.01))
)  # fmt: skip
DETECTION = "".join(
    f"[02/04 22:46:24] ppdet.engine.callbacks INFO: Epoch: [1] [{at}/100] learning_rate: 0.000029 "
    f"loss: 4.5 eta: 67 days, 10:28:48 batch_cost: {took} data_cost: 0.0034 ips: 96.2 images/s\n"
    for at, took in ((87, 0.1664), (88, 0.1876))
)
DINO = "".join(
    f"I20231111 00:21:00 65566 dinov2 helpers.py:103] Training  [  {at}/164000]  eta: 1 day, 3:45 "
    f" lr: 0.0 (0.0)  time: {took}  data: 0.000141  max mem: 11125\n"
    for at, took in ((3270, 1.168), (3280, 1.158))
)
RETURNN = "".join(
    f"ep 27 train, step {at}, ce 5.456, fer 0.872, mem_usage:cuda:0 6.7GB, {took} sec/step\n"
    for at, took in ((37, 3.169), (38, 3.501))
)
GLUON = "".join(
    f"INFO:root:[step {at}]  mlm_loss=1.41707  throughput=16.2K tks/s  time={1e3 * took}, "
    f"latency={1e3 * took:.1f} ms/batch\n" for at, took in ((999, 13.2296), (1999, 13.1))
)  # fmt: skip
OUTSIDE = "".join(
    f"Training: step {at}/10000, loss 2.31, {rate} it/s, data 0.3 ms\n"
    for at, rate in ((100, 4.0), (110, 5.0))
)
SPEEDOMETER = "".join(
    f"2026-05-04 21:0{at // 500}:18,278 Epoch[0] Batch [{at}]\tSpeed: 12586.55 samples/sec\t"
    f"Train-accuracy=0.837458\n" for at in (500, 1000, 1500)
)  # fmt: skip
OF_RANK = "".join(
    f"[2024-08-12 23:01:{at % 100:02d},941][root][INFO] - train, rank: 0, epoch: 0/500, "
    f"step_in_slice: {at}/81081, total step: {at}, (loss_avg_rank: 0.521), {{'data_load': '0.000', "
    f"'forward_time': '{took}', 'backward_time': '0.323', 'optim_time': '0.148', "
    "'total_time': '0.777'}\n"
    for at, took in ((32750, 0.304), (32800, 0.404))
)  # fmt: skip
MARIAN = "".join(
    f"[2021-03-02 10:2{at}:46] Ep. 1 : Up. {at},000 : Sen. 120,434 : Cost 7.87 * 2,534,123 @ 2,534 "
    f"after 2,534,123 : Time {took}s : 14419.09 words/s : gNorm 1.2\n"
    for at, took in ((1, 172.8), (2, 154.93), (3, 155.3))
)  # fmt: skip
DARKNET = "".join(
    f" {at}: 0.660188, 0.689227 avg loss, 0.000839 rate, {took} seconds, 61248 images\n"
    f"Loaded: 0.000047 seconds\n"
    for at, took in ((957, 3.315456), (958, 3.415456))
)  # fmt: skip
SLIME = "".join(
    f"(MegatronTrainRayActor pid=7) [2025-09-26 16:15:{at}9] train_metric.py:50 - perf {at}: "
    f"{{'perf/train_wait_time': 0.9, 'perf/step_time': {took}, 'perf/wait_time_ratio': 0.96}}\n"
    f"(TrainRayActor pid=7) [2025-09-26 16:15:{at}9] model.py:8 - step {at}: {{'loss': 1}}\n"
    for at, took in ((1, 43.875), (2, 42.875))
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "kind", "steps"),
    [
        (MARIAN, "Marian", {2000: 0.15493, 3000: 0.1553}),  # marian-nmt/marian-dev#36
        (DARKNET, "Darknet", {957: 3.315456, 958: 3.415456}),  # AlexeyAB/darknet#4813
        (SLIME, "slime", {1: 43.875, 2: 42.875}),
        (DETECTION, "Paddle", {187: 0.1664, 188: 0.1876}),  # PaddlePaddle/PaddleX#2884
        (DINO, "torchvision", {3270: 1.168, 3280: 1.158}),  # facebookresearch/dinov2#307
        (RETURNN, "durations by name", {37: 3.169, 38: 3.501}),  # rwth-i6/returnn#1485
        (GLUON, "durations by name", {999: 13.2296, 1999: 13.1}),  # horovod/horovod#1442
        (OUTSIDE, "durations by name", {100: 0.25, 110: 0.2}),
        (SPEEDOMETER, "stamped lines", {1000: 0.12, 1500: 0.12}),  # apache/mxnet#2030
        (OF_RANK, "durations by name", {32750: 0.775, 32800: 0.875}),  # modelscope/FunASR#2006
        (BLOOM, "Megatron-LM", {12695: 105.22, 12696: 105.01}),  # bigscience, tr11-176B-ml
        (MMCV, "mmcv", {30417: 0.393, 30467: 0.392}),  # open-mmlab/mmdetection#4090
        (YOLOX, "YOLOX", {2684: 0.157, 2734: 0.155}),  # open-mmlab/mmdetection#7606
        (NANOTRON, "nanotron", {327282: 11.5, 327283: 0.0412}),  # huggingface/nanotron#390, #23
        (EQUALS, "Megatron-LM", {2: 8.4572, 3: 7.1365}),  # argonne-lcf/Megatron-DeepSpeed
        (SPEEDRUN, "modded-nanogpt", {625: 0.276128, 750: 0.27952}),  # of 125 steps; its #65
        (LLMC, "llm.c", {63: 0.04458, 64: 0.04457}),  # karpathy/llm.c#796
        (LLAMA2C, "llm.c", {510: 8.17564, 520: 7.96606}),  # karpathy/llama2.c#461
        (PADDLENLP, "PaddleNLP", {40: 0.939599, 60: 0.8}),  # PaddlePaddle/Paddle#56363
        (PADDLESEG, "Paddle", {40: 0.3483, 60: 0.3532}),  # PaddlePaddle/PaddleSeg#928
        (SWIN, "epochs", {17774: 0.629, 17784: 0.6464}),  # microsoft/Swin-Transformer#183
        (PITH, "nanoGPT", {2: 28.823, 3: 27.786}),
        (DETECTRON_OLD, "detectron2 without last_time", {679: 0.3325, 699: 0.3326}),
        (LIBAI, "LiBai", {39: 7.6572, 59: 7.6549, 79: 7.7127}),  # Oneflow-Inc/libai#551
        (SOCKEYE, "Sockeye", {100: 0.8, 150: 0.78125}),  # awslabs/sockeye#664
        (METASEQ, "fairseq", {32: 1.5}),  # facebookresearch/metaseq#507, 30 steps on
    ],
)  # fmt: skip
def test_a_log_of_an_issue_is_read_as_by_hand(opened, text, kind, steps):
    trace = opened(text)
    rows = trace.of_kind(Kind.STEP)
    seconds = ((rows.exit_ns - rows.enter_ns) / 1e9).round(6).tolist()
    assert dict(zip(rows.step.tolist(), seconds, strict=True)) == steps
    assert trace.run["source"] == f"training log ({kind})"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (NANO.replace("iter 1:", "iter 10:"), "times one step of about 10"),
        (MMENGINE, "the mean of about 10 steps"),  # window_size=10 of MMEngine's LogProcessor
        (TORCHVISION, "the mean of about 20 steps"),  # window_size=20 of its SmoothedValue
        (TORCHVISION.replace("[1]", "[1/100]"), "the mean of about 20 steps"),  # DINO's copy of it
        (DETECTRON_OLD.replace("  data_time", " (0.41)  data_time"), "the mean of about 20 steps"),
        (DETECTRON_OLD, "means since its beginning"),  # history("time").global_avg()
        (LIBAI, "means since its beginning"),  # as well
    ],
)
def test_what_a_time_is_the_mean_of_is_said(opened, text, said):
    assert any(said in limit for limit in opened(text).limits)


def bar(number, total, elapsed_s):
    minutes, seconds = divmod(int(elapsed_s), 60)
    done = f"{100 * number // total:3d}%|##  | {number}/{total}"
    return f"{done} [{minutes:02d}:{seconds:02d}<1:00, 1it/s]\n"


def seconds_of(trace):
    rows = trace.of_kind(Kind.STEP)
    took = ((rows.exit_ns - rows.enter_ns) / 1e9).tolist()
    return dict(zip(rows.step.tolist(), took, strict=True))


@pytest.mark.parametrize("step_s", [0.25, 0.8, 1.5, 45.0])
def test_a_bar_of_even_steps_shows_no_uneven_ones(opened, step_s):
    """Its clock shows whole seconds: 1, 2, 1, 2 of 1.5 were an oscillation that cost 33 %."""
    trace = opened("".join(bar(at, 200, at * step_s) for at in range(1, 201)))
    assert list(seconds_of(trace).values()) == pytest.approx(
        [step_s] * len(seconds_of(trace)), 0.04
    )
    assert diagnose(trace).findings == []


def test_a_bar_of_evaluation_is_none_of_training_nor_are_its_steps_lost(opened):
    text, clock_s = "", 0.0
    for at in range(1, 101):
        clock_s += 2.0
        text += bar(at, 100, clock_s)
        if at % 20 == 0:
            text += "".join(bar(one, 25, one / 5) for one in range(1, 26))
            clock_s += 5.0
    trace = opened(text)
    assert list(seconds_of(trace).values()) == pytest.approx([2.0] * len(seconds_of(trace)), 0.04)
    assert "lost_work_s" not in trace.run


def test_a_bar_that_ended_is_followed_by_the_next_epoch(opened):
    """The bars of ultralytics/yolov5#13492, whose 15 steps of 1.04, 1.02 and 1.02 s show 15 s."""
    trace = opened((bar(15, 15, 15) + bar(2, 2, 2)) * 3)
    assert seconds_of(trace) == pytest.approx(dict.fromkeys((15, 30, 45), 1.0333), abs=1e-4)
    assert "lost_work_s" not in trace.run


def test_bars_without_an_end_are_epochs(opened):
    shown = "\r{name}: |          | {at}/? [{clock}<00:00,  0.50it/s, v_num=0, val_acc=0.5]"
    bars = [("Epoch 0", 61), ("Validation DataLoader 0", 30), ("Epoch 1", 61)]
    trace = opened("".join(
        shown.format(name=name, at=at, clock=f"{2 * at // 60:02d}:{2 * at % 60:02d}")
        for name, steps in bars for at in range(steps)
    ))  # fmt: skip
    assert set(seconds_of(trace).values()) == {2.0}
    assert max(seconds_of(trace)) == 120
    assert "lost_work_s" not in trace.run


@pytest.mark.parametrize("ends", [False, True])
def test_bars_are_read_as_syslog_keeps_them_and_beside_few_stamped_lines(opened, ends):
    """A terminal's carriage return is `#015` there; the lines with stamps time one step of 120."""
    shown = "Epoch 0: 9%|=   | {at}/{total} [{clock}<00:00,  0.50it/s]"
    bars = [
        shown.format(
            at=at, total=60 if ends else "?", clock=f"{2 * at // 60:02d}:{2 * at % 60:02d}"
        )
        for at in range(61)
    ]
    if not ends:
        bars = [bar.replace("9%|", " |") for bar in bars]
    stamped = "2026-05-08 12:0{minute}:00,250 step={step} loss=2.5\n"
    beside = (stamped.format(minute=0, step=1), *bars, stamped.format(minute=2, step=60))
    for text in ("#015".join(bars), "\n".join(beside)):
        assert set(seconds_of(opened(text + "\n")).values()) == {2.0}


def test_a_bar_that_begins_again_before_its_end_loses_its_steps(opened):
    """Lightning-AI/pytorch-lightning#4225: two jobs in a log, the first of 4 more steps at 3 s."""
    first = bar(4, 18, 17) + bar(5, 18, 20)
    second = "".join(bar(at, 18, 5 + 3 * at) for at in range(1, 6))
    assert opened(first + second).run["lost_work_s"] == 4 * 3.0


def test_bars_of_several_processes_say_that_they_cannot_be_told_apart(opened):
    """facebookresearch/fairseq#247: eight ranks write one terminal."""
    shown = [(50, 145), (48, 146), (50, 148), (49, 148), (51, 149), (50, 150), (51, 151), (49, 152)]
    trace = opened("".join(bar(at, 11265, clock_s) for at, clock_s in shown))
    assert any("several processes write the same steps" in limit for limit in trace.limits)


@pytest.mark.parametrize("between", ["", bar(5, 5, 9)])  # Lightning: after its validation
def test_a_bar_shown_again_at_its_end_is_no_further_epoch(opened, between):
    text = "".join(bar(at, 20, 2 * at) for at in range(1, 21)) + between + bar(20, 20, 70)
    assert max(seconds_of(opened(text))) == 20


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # hiyouga/LLaMA-Factory#7396
        ("[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught "
         "collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE)\n",
         "give its flight recorder's dumps"),
        # ROCm/rccl#2078
        (" 17179869184 4294967296 float sum -1 89235 192.52 360.98 0 89189 192.62 361.17 0\n"
         "# Avg bus bandwidth    : 142.652 \n", "give it from its beginning"),
        # linux-rdma/perftest#234
        (" #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n",
         "measure with nccl-tests"),
        # Lightning-AI/pytorch-lightning#4937, ourownstory/neural_prophet#972
        ("Action  |  Mean duration (s)  |  Total time (s)\nget_train_batch  |  0.0396  |  1.07\n",
         "export_chrome_trace"),
        ("   Name    Self CPU %   Self CPU   # of Calls\n   aten::to   1.64%   110.1ms   17\n",
         "export_chrome_trace"),
        ("Self CPU time total: 47.866ms\nSelf CUDA time total: 16.912ms\n", "export_chrome_trace"),
        ("Time (%),Total Time (ns),Instances,Avg (ns),Name\n50.1,99385786,32,3105805.8,gemm\n",
         "nsys export --type sqlite"),
        ("CUDA GPU Kernel Summary:\n Time (%)  Total Time (ns)  Instances  Name\n  51.9  62 1 k\n",
         "nsys export --type sqlite"),
        ('Thread 42 (idle): "MainThread"\n    backward (torch/_tensor.py:522)\n',
         "a dump of a process's stacks.*give its flight recorder's dumps"),
        ('# TYPE DCGM_FI_DEV_GPU_UTIL gauge\nDCGM_FI_DEV_GPU_UTIL{gpu="0"} 93\n',
         "a monitor of devices.*give the job's log"),
        ('nccl_exec_time_microseconds{version="v5.1",gpu="GPU0",collective="AllReduce"} 1154.87\n',
         "of the NCCL Inspector for Prometheus.*let it write JSON"),
        ("# gpu   pwr gtemp    sm\n# Idx     W     C     %\n    0    93    41    98\n",
         "a monitor of devices"),
        ('[{"name": "process_name", "pid": 5, "ph": "M", "args": {"name": "Ascend Hardware"}}]\n',
         "a trace of the Ascend profiler.*give the step_trace_time.csv"),
        # NVIDIA/nccl#1973; a pointer in it is no JSON
        ('[\n{"name": "Group API", "cat": "GROUP_API", "ph": "b", "id": 0, "ts": 59338.3},\n'
         '{"name": "AllReduce", "cat": "COLL_API", "ph": "b", "args": {"Stream": 0x565e}},\n{}]\n',
         "a dump of NCCL's example of a profiler.*NCCL Inspector"),
        ("Not all ranks joining collective: sequence number: 31\nmissing ranks: {3}\n",
         "an analysis of flight recorders"),
        # apache/mxnet#5422
        (2 * "INFO:root:Epoch[0] Batch [100]\tSpeed: 40726.16 samples/sec\tTrain-ce=1.05\n",
         "a log of speeds without times of steps: log with time stamps"),
        # this repository's README
        ("prints\nstep 209 ms mean, 260 ms p99 · 153 samples/s · 4 ranks, 247 steps\nof a run\n",
         "has no two steps with times"),
        ("Map: 100%|##| 5/5 [00:00<00:00, 1379.34 examples/s]\n{'loss': 0.5, 'epoch': 0.02}\n",
         "has no two steps with times"),
        # open-mpi/ompi#12318
        ("# OSU MPI-CUDA Reduce Latency Test v7.3\n# Datatype: MPI_CHAR.\n1  53.34  24.80\n",
         "measure with nccl-tests"),
    ],
)  # fmt: skip
def test_what_is_known_but_not_read_says_what_to_give(opened, text, said):
    with pytest.raises(EvenstepError, match=said):
        opened(text)


def test_lines_of_ranks_that_name_none_are_no_steps_done_again(opened):
    """pytorch/examples#1032: two ranks print the same step, 3.895 and 3.892 s."""
    text = "".join(
        f"Epoch: [0][{at}/626]\tTime  {took} ( 3.075)\tData  2.053 ( 2.954)\tLoss 4.44e+00\n"
        for at, took in ((625, 3.1), (625, 3.2), (626, 3.895), (626, 3.892))
    )
    trace = opened(text)
    assert seconds_of(trace) == {625: 3.2, 626: 3.892}
    assert "lost_work_s" not in trace.run
    assert any("without their rank" in limit for limit in trace.limits)


@pytest.mark.parametrize(
    "tag",
    [
        "[trainer{}]:",  # torchrun with the role "trainer": f"[{role}{rank}]:"
        "Sun Mar  2 12:00:01 2025[1,{}]<stdout>:",  # mpirun --timestamp-output --tag-output
        "[prterun-node7-99@1,{}]<stdout>: ",  # mpirun of Open MPI 5
        "[{}]<stderr>:",  # horovodrun
        "2025-03-02T12:00:01.123Z [rank{}]: ",  # kubectl logs --timestamps
    ],
)
def test_tags_of_launchers_are_ranks_also_behind_a_time(opened, tag):
    lines = (f"{tag.format(rank)}step {at} | loss 3.4 | {4 + rank} ms |\n"
             for at in range(1, 4) for rank in (2, 0, 1))  # fmt: skip
    trace = opened("".join(lines))
    assert sorted(trace.ranks) == [0, 1, 2]
    assert trace.of_kind(Kind.COLLECTIVE)["rank"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_hole_in_a_log_hides_no_line(opened):
    """What a crash of the host or a rotation by copying leaves: bytes that are 0."""
    first, second = BLOOM.splitlines(keepends=True)
    assert seconds_of(opened(first + "\0" * 5_000 + second)) == {12695: 105.22, 12696: 105.01}


@pytest.mark.parametrize("filler", ["x", "\0"])
def test_no_line_is_lost_behind_a_long_one_or_a_long_hole(tmp_path, monkeypatch, filler):
    """Wherever the pieces in which a file is read end."""
    monkeypatch.setattr(content, "LONGEST_LINE", 64)
    monkeypatch.setattr(compression, "PIECE_BYTES", 7)
    for length in range(60, 90):
        (path := tmp_path / "out.log").write_text(
            "first\n" + filler * length + "\n" * (filler == "x") + "second\nthird\n"
        )
        assert [line.text for line in content.lines(path)][-2:] == ["second", "third"]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_line_without_an_end_takes_no_memory_beyond_its_limit(tmp_path, monkeypatch, end):
    monkeypatch.setattr(content, "LONGEST_LINE", 64 << 10)
    monkeypatch.setattr(compression, "PIECE_BYTES", 64 << 10)
    (path := tmp_path / "out.log").write_text("x" * (8 << 20) + end + "second\n", newline="")
    tracemalloc.start()
    try:
        found = [(line.number, line.start, line.text[:6]) for line in content.lines(path)]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert found == [(1, 0, "xxxxxx"), (2, (8 << 20) + len(end), "second")]


def test_a_bar_of_more_than_a_mebibyte_in_one_line_is_read_to_its_end(opened):
    """A file without a terminal has a bar in one line: 20,000 steps of 1 s, then as many of 2 s."""
    shown = []
    for at in range(1, 40_001):
        minutes, seconds = divmod(at + max(at - 20_000, 0), 60)
        clock = f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
        shown.append(f"\r  1%|##  | {at}/40000 [{clock}<1:00:00, 1it/s]")
    assert sum(map(len, shown)) > 1 << 20
    found = seconds_of(opened("".join(shown)))
    assert max(found) == 40_000
    assert sum(found.values()) / len(found) == pytest.approx(1.5, rel=0.01)


# -- lines of any loop that have a time stamp, a step and a loss -----------------------------------


def seconds_of_steps(trace):
    """Seconds of each rank's steps, by their numbers."""
    rows = trace.of_kind(Kind.STEP)
    cells = zip(rows["rank"].tolist(), rows.step.tolist(), strict=True)
    return dict(zip(cells, ((rows.exit_ns - rows.enter_ns) / 1e9).round(6).tolist(), strict=True))


@pytest.mark.parametrize(
    "line",
    [
        "2026-05-08T12:00:{at:02d}.250+02:00 INFO train.py:7 step={step} lr=1e-4 loss=2.{at}",
        "2026/05/08 12:00:{at:02d},250 | Epoch 1, batch {step}, avg loss 2.{at}, batch size: 9",
        "I0508 12:00:{at:02d}.250000 1383 loop.py:31] Iteration [{step}/900], Loss: 2.{at}",
        "2026-05-08 12:00:{at:02d},250 INFO Epoch:[0/20]({step}/900) loss:2.{at} epoch_Time:44min:",
        "[12:00:{at:02d}.250] global_step: {step} | eta 1:02:03 | train/loss 2.{at}",
        "05-08 12:00:{at:02d}.250 {{'loss': 2.{at}, 'step': {step}, 'step_time': 'unknown'}}",
        '{{"name": "loss", "step": {step}, "value": 2.{at}, "at": "2026-05-08T12:00:{at:02d}.25"}}',
    ],
)
def test_a_loop_of_ones_own_is_timed_by_its_stamps(opened, line):
    rows = [line.format(at=at, step=5 * at) for at in (10, 12, 17)]
    assert seconds_of_steps(opened("\n".join(rows))) == {(0, 60): 0.2, (0, 85): 0.2}


def test_lines_that_name_their_rank_are_of_that_rank(opened):
    text = "".join(
        f"2026-05-08 12:00:{at + rank * late:02d},100 [Rank {rank}] step {at} loss 2.5\n"
        for at in (10, 20, 30) for rank, late in ((0, 0), (3, 2))
    )  # fmt: skip
    assert set(seconds_of_steps(opened(text))) == {(0, 20), (0, 30), (3, 20), (3, 30)}


def test_a_programs_own_word_for_its_rank_goes_before_that_of_its_launcher(opened):
    text = "".join(
        f"[default1]:[12:00:{at},100] [INFO] (rank=9) step {at} loss 2.5\n" for at in (10, 20)
    )
    assert opened(text.replace("[12:00", "2026-05-08 12:00")).ranks.keys() == {9}


def test_evaluations_and_other_lines_with_a_step_are_no_steps_of_training(opened):
    text = "".join(
        f"2026-05-08 12:0{at}:00.500 step {100 * at} loss 2.5\n"
        f"2026-05-08 12:0{at}:20.500 eval step 7 loss 2.4\n"
        f"2026-05-08 12:0{at}:25.500 validation: batch 9, loss 2.4\n"
        f"2026-05-08 12:0{at}:26.500 saved checkpoint of step 3\n"
        for at in (1, 2, 3)
    )
    trace = opened(text)
    assert seconds_of_steps(trace) == {(0, 200): 0.6, (0, 300): 0.6}
    assert not trace.run.get("lost_work_s")


def test_steps_that_begin_anew_with_an_epoch_are_counted_over_all(opened):
    text = "".join(
        f"2026-05-08 12:{2 * epoch + at // 50:02d}:00.500 Epoch {epoch}, batch {at}, loss 2.5\n"
        for epoch in (1, 2, 3) for at in (0, 50)
    )  # fmt: skip
    trace = opened(text)
    assert seconds_of_steps(trace) == {(0, 50): 1.2, (0, 100): 1.2, (0, 150): 1.2}
    assert not trace.run.get("lost_work_s")


def test_whole_seconds_tell_the_mean_of_half_a_minute(opened):
    text = "".join(
        f"2026-05-08 12:{at // 60:02d}:{at % 60:02d} step {at} loss 2.5\n"
        for at in range(1, 200) if at % 3
    )  # fmt: skip
    assert set(seconds_of_steps(opened(text)).values()) == {1.0}
    with pytest.raises(EvenstepError, match="at least 30 s where it is in whole seconds"):
        opened(text[:400])


def test_a_trainers_own_words_go_before_stamps_and_these_before_a_progress_bar(opened):
    stamped = "".join(f"2026-05-08 12:00:{at}.5 step {at} loss 2.5\n" for at in range(10, 60))
    assert opened(TRAINER + stamped).run["source"] == "training log (stamped lines)"
    assert opened(stamped + TRAINER).run["source"] == "training log (stamped lines)"
    assert opened(stamped + MEGATRON).run["source"] == "training log (Megatron-LM)"
    assert opened(MEGATRON + stamped).run["source"] == "training log (Megatron-LM)"


@pytest.mark.parametrize("where", [0, 30, 60])
def test_a_stamped_line_beside_a_bar_leaves_the_bars_steps(opened, where):
    lines = [bar(at, 200, at * 1.5) for at in range(1, 61)]
    lines.insert(where, "2026-05-08 12:00:00 INFO best loss 2.31 at step 40\n")
    trace = opened("".join(lines))
    assert trace.run["source"] == "training log (progress bar)"
    assert list(seconds_of(trace).values()) == pytest.approx([1.5] * len(seconds_of(trace)), 0.04)


def test_the_clock_of_ms_swift_is_in_whole_seconds(opened):
    text = "".join(
        f"{{'loss': 0.5, 'epoch': 0.2, 'global_step/max_steps': '{at}/9', 'percentage': '6 %', "
        f"'elapsed_time': '{took}', 'remaining_time': '5h 59m 14s'}}\n"
        for at, took in ((1, "59s"), (2, "1m 59s"), (3, "1h 2m 59s"), (4, "1d 0h 2m 59s"))
    )
    assert seconds_of_steps(opened(text)) == {(0, 2): 60.0, (0, 3): 3660.0, (0, 4): 82800.0}


@pytest.mark.parametrize(
    "line",
    [
        "[rank: {rank}] iter 9 step {at}: iter time: {ms}ms (optimizer.step)\n",
        "INFO:tensorflow:(rank {rank}) Step {at} per-step time {ms} ms loss=0.3\n",
    ],
)
def test_a_timed_line_needs_no_loss(opened, line):
    line = line.replace("iter 9 step", "step")
    text = "".join(line.format(rank=rank, at=at, ms=100 * at) for at in (1, 2) for rank in (0, 1))
    assert seconds_of_steps(opened(text)) == {(r, at): at / 10 for r in (0, 1) for at in (1, 2)}


def test_the_time_of_a_validation_is_no_steps(opened):
    text = "".join(
        f"iter {at}: loss 2.5, iter time: 100.0ms\niter {at}: val loss 2.4, val time: 9000.0ms\n"
        for at in (1, 2)
    )
    assert set(seconds_of_steps(opened(text)).values()) == {0.1}


def test_timers_of_megatron_without_its_iterations_are_steps(opened):
    text = "time (ms) | model-and-optimizer-setup: 1736.32 | iterators-setup: 2674.95\n" + "".join(
        f"time (ms) | forward-compute: {at}00 | backward-compute: 700 | optimizer: 200.0\n"
        for at in (3, 4)
    )
    assert seconds_of_steps(opened(text)) == {(0, 1): 1.2, (0, 2): 1.3}


def test_a_time_of_loading_before_that_of_the_step_is_not_the_steps(opened):
    text = "".join(
        f"2026-05-08 16:34:37,748   INFO  Train:    1/3 ( 33%) [ {at}/323 ( 15%)]  Loss: 3 (81)  "
        "Time cost: 00:15/01:25 [00:15/04:48]  Data time: 0.90(0.92)  Forward time: 0.71(0.79)  "
        f"Batch time: 0.{at}(0.31)\n"
        for at in (49, 99)
    )
    assert list(seconds_of_steps(opened(text)).values()) == [0.49, 0.99]


MICRO = "".join(
    f"[2023-06-03 00:10:{at},345] [INFO] [logging.py:96:log_dist] [Rank 0] rank=0 time (ms) | "
    f"forward_microstep: {at}00.0 | backward_microstep: 5000.0 | backward_inner_microstep: 4400.0 "
    "| backward_allreduce_microstep: 600.0 | step_microstep: 0.05\n"
    for at in (12, 13)
)


def test_timers_of_micro_batches_alone_are_taken_for_steps(opened):
    trace = opened(MICRO)
    assert seconds_of_steps(trace) == {(0, 1): 6.20005, (0, 2): 6.30005}
    assert milliseconds(trace, 0) == pytest.approx([0, 1300, 4400, 600, 0.05])
    assert any("are of micro-batches" in limit for limit in trace.limits)


def test_timers_of_each_step_are_no_means_of_the_steps_between_lines(opened):
    timers = "".join(
        f"time (ms) | forward: 207.0 | backward: 350{at}.0 | step: 3000.0\n" for at in range(9)
    )
    trace = opened(timers + DEEPSPEED)
    assert len(seconds_of_steps(trace)) == 9
    assert not any("is the mean of" in limit for limit in trace.limits)


def test_timers_of_micro_batches_give_way_to_times_of_steps(opened):
    trace = opened(MICRO + DEEPSPEED + MICRO)
    assert seconds_of_steps(trace) == {(0, 20): 1.0, (0, 30): 2.0}
    assert not any("micro-batches" in limit for limit in trace.limits)


def test_a_clock_in_whole_seconds_without_a_day_goes_on_after_midnight(opened):
    text = "".join(
        f"[{(23 + at // 60) % 24:02d}:{at % 60:02d}:07] step {at} loss 2.5\n" for at in range(120)
    )
    found = seconds_of_steps(opened(text))
    assert set(found.values()) == {60.0}
    assert {59, 61, 119} <= {step for _, step in found}


def grown(epoch, at, seconds):
    return f"Epoch: [{epoch}][{at}/400]\tGPU 0\tTime: {seconds}\tLoss 6.0\tAcc@1 3.1\n"


def test_times_that_grow_with_the_steps_are_a_clock(opened):
    text = "".join(
        grown(epoch, at, 1.5 * at + 4.5) for epoch in (1, 2) for at in (100, 200, 300, 400)
    )
    trace = opened(text)
    steps = (500, 600, 700, 800 - 400, 900, 1000, 1100, 1200)
    found = seconds_of(trace)
    assert set(found.values()) == {1.5}
    assert found.keys() <= {at + 400 * more for at in steps for more in (0, 1)}
    assert any("since the first" in limit for limit in trace.limits)
    assert any("mean of about 100 steps" in limit for limit in trace.limits)


def test_of_ranks_in_turn_each_has_a_clock(opened):
    lines = [f"[rank{rank}]: {grown(1, at, 1.5 * at + 4.5 + rank)}"
             for at in (100, 200, 300, 400) for rank in (0, 1)]  # fmt: skip
    assert set(seconds_of(opened("".join(lines))).values()) == {1.5}


@pytest.mark.parametrize("seconds", [[0.30, 0.31, 0.33, 0.36], [2.0, 2.5, 3.0, 3.5]])
def test_steps_that_last_ever_longer_are_no_clock(opened, seconds):
    text = "".join(
        grown(1, at, took) for at, took in zip((10, 110, 210, 310), seconds, strict=True)
    )
    assert sorted(seconds_of(opened(text)).values()) == seconds


def test_bars_in_what_syslog_keeps_of_a_terminal_are_lines(opened):
    bars = [bar(at, 200, at * 1.5).strip() for at in range(1, 61)]
    found = seconds_of(opened("".join("#015" + each for each in bars)))
    assert list(found.values()) == pytest.approx([1.5] * len(found), 0.04)


def test_the_number_of_a_step_is_no_carriage_return(opened):
    text = "".join(
        f"2026-05-08 12:00:{at - 140:02d},000 step #{at:04d} loss 2.3\n" for at in range(145, 165)
    )
    assert list(seconds_of(opened(text))) == [*range(146, 165)]


def test_times_since_a_line_of_the_same_second_are_of_the_steps_since_it(opened):
    text = "".join(
        f"2018-04-13 07:12:{10 + at * 4 // 10} loss = 2.3, step = {100 * at + 100} (0.400 sec)\n"
        for at in range(14)
    )
    assert set(seconds_of(opened(text)).values()) == {0.004}


def test_a_bar_after_a_word_of_loading_is_of_the_training(opened):
    text = "".join(f"Loading done, Epoch 1: {bar(at, 60, at * 1.5)}" for at in range(1, 61))
    assert list(seconds_of(opened(text)).values()) == pytest.approx([1.5] * 2, 0.04)
    with pytest.raises(EvenstepError, match="in no format"):
        opened(text.replace("Epoch 1", "Loading weights"))


def test_the_unit_of_a_step_goes_before_a_bare_number(opened):
    text = "".join(f"step {at}: step_time: 35{at}.0 ms/it, more\n" for at in (1, 2))
    assert seconds_of(opened(text)) == {1: 0.351, 2: 0.352}


@pytest.mark.parametrize("tag", ["", "(WorkerDict pid=7) "])
def test_a_bar_of_another_work_than_training_is_no_step(opened, tag):
    prompts = "".join(f"{tag}Processed prompts: {bar(at, 128, at * 4)}" for at in range(1, 120))
    with pytest.raises(EvenstepError, match="in no format"):
        opened(prompts)
    training = "".join(f"{tag}train: {bar(at, 60, at * 1.5)}" for at in range(1, 61))
    found = seconds_of(opened(prompts + training))
    assert list(found.values()) == pytest.approx([1.5] * len(found), 0.04)


@pytest.mark.parametrize(
    "line",
    [
        "{at}/500 [===>...] - ETA: 9s - loss: 2\r{at}/500 [===>...] - {s}s {ms}ms/step - loss: 2",
        "{at}/500 ━━━━━━━━━━━━━━━━━━━━ {s}s {ms}ms/step - accuracy: 0.5 - loss: 1.1",
        "{at}/500 - {s}s - loss: 1.5 - val_loss: 1.2 - {s}s/epoch - {ms}ms/step",
    ],
)
def test_bars_of_keras_show_the_mean_of_their_steps(opened, line):
    text = "".join(
        f"Epoch {epoch}/2\n"
        + "".join(line.format(at=at, s=at // 5, ms=ms) + "\n" for at in (250, 500))
        for epoch, ms in ((1, 200), (2, 400))
    )
    trace = opened(text)
    assert seconds_of(trace) == {500: 0.2, 1000: 0.4}
    assert trace.run["source"] == "training log (Keras)"


@pytest.mark.parametrize("more", [0, 1])
def test_the_only_line_of_an_epoch_in_keras_has_the_mean_that_it_shows(opened, more):
    line = "Epoch {}/3\n100/100 - 3s - loss: 1.5 - 3s/epoch - {}ms/step\n"
    found = seconds_of(opened("".join(line.format(at, 32 + more * at) for at in (1, 2, 3))))
    assert found == {100 * at: pytest.approx(0.032 + more * at / 1e3) for at in (1, 2, 3)}


@pytest.mark.parametrize(
    "line",
    [
        "INFO:tensorflow:global step {at}: loss = 5.2428 ({s:.3f} sec/step)",
        "INFO:tensorflow:loss = 2.30251, step = {at} ({ten:.3f} sec)",
        "2018-04-13 07:12:15 INFO  Optimizer - [Epoch 4 9/12][Iteration {at}][Wall Clock 26.7s] "
        "Trained 3072 records in {s} seconds. Throughput is 2091 records/second. Loss is 1.7",
    ],
)
def test_older_trainers_time_a_step_in_their_own_words(opened, line):
    rows = [(10, 9.0), (20, 1.25), (30, 1.5)]
    text = "\n".join(line.format(at=at, s=s, ten=10 * s) for at, s in rows)
    found = seconds_of(opened(text))
    assert {at: found.get(at) for at in (20, 30)} == {20: 1.25, 30: 1.5}


def test_a_time_of_day_in_the_words_of_a_line_is_its_stamp(opened):
    text = "".join(
        f"| Training Device=xla:0/1 Epoch=1 Step={20 * at} Loss=0.001 Time=01:{at:02d}:51\n"
        for at in (1, 2, 3)
    )
    assert seconds_of(opened(text)) == {40: 3.0, 60: 3.0}


@pytest.mark.parametrize("tag", ["0: [default{rank}]:", "0: 12:00:00 [1,{rank}]<stdout>:"])
def test_a_launchers_tag_goes_before_the_task_that_started_it(opened, tag):
    line = "{tag} iteration {at:8d}/ 9999 | elapsed time per iteration (ms): 9.5 |"
    ranks, steps = (0, 1, 2), range(3)
    rows = [line.format(tag=tag.format(rank=rank), at=at) for at in steps for rank in ranks]
    assert set(opened("\n".join(rows)).ranks) == set(ranks)


@pytest.mark.parametrize("parted", [": {}ms | ", "={}ms, ", "_ms: {} "])
def test_parts_of_steps_in_any_loops_lines_tell_which_rank_is_slow(opened, parted):
    """All ranks' steps are equally long; rank 2 is slow in forward, others wait in optimizer."""
    lines = []
    for at in range(12):
        for rank in range(4):
            forward = 300 + 90 * (rank == 2) + (at + rank) % 3
            parts = {"data": 2, "forward": forward, "backward": 500, "optimizer": 900 - forward}
            told = "".join(name + parted.format(f"{ms}.0") for name, ms in parts.items())
            lines.append(f"{rank}: [Epoch 0, Batch {at}] {told}{'Total' + parted.format(1402.0)}\n")
    trace = opened("".join(lines))
    assert set(trace.ranks) == {0, 1, 2, 3}
    assert set(seconds_of_steps(trace).values()) == {1.402}
    first = diagnose(trace).findings[0]
    assert first.where.ranks == [2]
    assert "forward" in first.cause


def test_a_line_with_one_part_alone_is_no_step(opened):
    text = "".join(f"0: batch {at} Forward: 2.0ms Total: 9.0ms, backward next\n" for at in range(9))
    with pytest.raises(EvenstepError, match="nothing to read"):
        opened(text)


@pytest.mark.parametrize(
    "line",
    [
        "[e 0, iter: {at}] lr: 0.1, loss: 1, avg_reader_cost: {load} sec, avg_batch_cost: 1.0 sec",
        "epoch: 0, batch_id: {at}, auc:0.6, avg_reader_cost: {load} sec, avg_batch_cost: 1.0 sec",
        "Train [ Epoch 1/9 iter {at} ] lr: 0.1, avg_reader_cost: {load} sec, avg_batch_cost: 1.0 s",
        "[step_profile] step={at} data_ms={load}e3 step_total_ms=1000.0 other_ms=3",
        "| step {at} | step_time: 1.0s | data_time: {load}s |",
        "Epoch: [0][ {at}/500]\tTime  1.0 ( 1.0)\tData {load} ( 0.2)\tLoss 6.9e+00 (7.0e+00)",
        "Train: 1/3 ( 33%) [{at}/500 ( 15%)]  Data time: {load}(0.92)  Batch time: 1.0(0.31)",
    ],
)
def test_the_wait_for_data_in_the_line_of_a_step_is_its_input(opened, line):
    """Two steps of five wait for data for most of the step."""
    loads = (0.0001, 0.6, 0.0002, 0.0001, 0.7)
    trace = opened("".join(line.format(at=at + 1, load=s) + "\n" for at, s in enumerate(loads)))
    assert set(seconds_of_steps(trace).values()) == {1.0}
    found = diagnose(trace).findings[0]
    assert found.mode == "input_pipeline"
    assert found.severity == pytest.approx(1.3004 / 5, rel=0.1)


def test_a_step_told_again_as_the_next_epoch_begins_is_the_same_step(opened):
    text = "".join(
        f"2024-01-01 10:00:{at:02d},{500 * (epoch > at // 11)} epoch {epoch} step {at} loss 2.5\n"
        for at in range(1, 31) for epoch in sorted({(at - 1) // 10, at // 10})
    )  # fmt: skip
    assert {at for _, at in seconds_of_steps(opened(text))} == set(range(2, 31))


def test_the_steps_of_espnet_are_numbered_by_their_epochs(opened):
    told = "iter_time=1.9e-04, forward_time=0.04, backward_time=0.05, loss=9.1, train_time=0.{}"
    text = "".join(
        f"[host] 2023-10-27 13:{at:02d}:46,484 (trainer:753) INFO: {epoch}epoch:train:{of}batch: "
        f"{told.format(ms)}\n"
        for at, (epoch, of, ms) in enumerate(
            [(1, "1-50", 127), (1, "51-100", 124), (2, "1-50", 118), (2, "51-100", 119)]
        )
    )
    seconds = seconds_of_steps(opened(text))
    assert seconds == {(0, 50): 0.127, (0, 100): 0.124, (0, 150): 0.118, (0, 200): 0.119}


@pytest.mark.parametrize(
    "line", ["Step {at}/ 1000; acc: 7.5;", "Epoch  1, {at:5d}/ 1000; acc:   7.52; ppl: 8832.29;"]
)
def test_the_clock_of_opennmt_is_in_whole_seconds(opened, line):
    text = "".join(
        f"[2020-09-25 15:28:{at % 60:02d},140 INFO] {line.format(at=50 * at)} 18916/18871 tok/s; "
        f"     {20 * at} sec\n"
        for at in range(1, 9)
    )
    assert set(seconds_of_steps(opened(text)).values()) == {0.4}


def test_a_loss_of_validation_beside_that_of_training_makes_no_evaluation(opened):
    text = "".join(
        f"[2024-07-17 07:43:{at:02d}.573][INFO] - step={10 * at} loss=3.1 val_loss=4.1\n"
        for at in range(1, 5)
    )
    assert set(seconds_of_steps(opened(text)).values()) == {0.1}
    with pytest.raises(EvenstepError, match="nothing to read"):
        opened(text.replace("loss=3.1 val", "eval"))


@pytest.mark.parametrize("said", ["images/sec: 546.0", "Duration: 1 sec", "overhead 0.1 ms/step"])
def test_a_rate_or_a_time_of_several_steps_is_none_of_a_step(opened, said):
    with pytest.raises(EvenstepError, match="nothing to read"):
        opened("".join(f"INFO 35 step {at} batch 128 {said} more\n" for at in range(1, 9)))


def test_parts_in_lines_beside_a_bar_make_no_steps(opened):
    """A step takes 5 s; a line every ten tells the wait for data of one."""
    text = ""
    for at in range(1, 41):
        clock = f"{at * 5 // 60:02d}:{at * 5 % 60:02d}"
        text += f" {at}%|##   | {at}/100 [{clock}<08:00,  5.00s/it]\n"
        if at % 10 == 0:
            text += f"[2024-01-01 10:{clock}] step {at} loss: 2.0 data_time: 0.5\n"
    assert set(seconds_of_steps(opened(text)).values()) == {5.0}


def test_the_first_step_of_an_epoch_stands_for_itself_among_lines_of_one_in_ten(opened):
    text = "".join(
        f"Epoch: [{epoch}][{at}/100]\tTime {took} (0.2)\tData {took - 0.1:.3f} (0.1)\tLoss 7 (7)\n"
        for epoch in (0, 1) for at in range(0, 100, 10) for took in [0.1 if at else 9.1]
    )  # fmt: skip
    trace = opened(text)
    assert set(seconds_of_steps(trace).values()) == {0.1}
    assert not diagnose(trace).findings


def test_samples_so_far_number_the_steps_of_a_batch_each(opened):
    """mertyg/vision-language-models-are-bows#27: a first step of 18 s, and a line in a hundred."""
    text = "".join(
        f"2023-06-29,15:44:40 | INFO | Train Epoch: {epoch} [{at:6d}/109468 (0%)] Loss: 1.0 (1.0) "
        f"Data (t): {load} Batch (t): {took}, 1.75/s LR: 0.0 Logit Scale: 100.000 - V4\n"
        for epoch in (0, 1)
        for at, load, took in ((64, 14.2, 18.2), (6464, 0.1, 0.5), (12864, 0.2, 0.6))
    )
    trace = opened(text)
    assert seconds_of_steps(trace) == {(0, 101): 0.5, (0, 201): 0.6, (0, 302): 0.5, (0, 402): 0.6}
    assert milliseconds(trace, 0)[0] == pytest.approx(200.0)  # of the last
    assert any("times one step of about 100" in limit for limit in trace.limits)


def test_lines_of_no_samples_number_no_step(opened):
    text = "".join(
        f"INFO | Train Epoch: {epoch} [ 0/109468 (0%)] Data (t): 0.1 Batch (t): {{took}}, LR: 0.0\n"
        for epoch in range(4)
    )
    assert set(seconds_of_steps(opened(text.format(took=0.5))).values()) == {0.5}
    with pytest.raises(EvenstepError, match="no two steps with the time"):
        opened(text.format(took=0.0))


@pytest.mark.parametrize(
    "tag",
    ["- train, rank: {}, epoch: 0,", "Node[{}]", "INFO [train.py:529] ({}/4) Epoch 11,"],  # icefall
)
def test_a_rank_in_the_words_of_a_line_is_whose_it_is(opened, tag):
    text = "".join(
        f"2024-08-12 23:01:{at:02d},941 {tag.format(rank)} step: {at}, loss: 0.5\n"
        for at in range(1, 5) for rank in (1, 3)
    )  # fmt: skip
    assert set(opened(text).ranks) == {1, 3}


def test_ranks_of_dlrm_have_steps_of_their_own(opened):
    """intel/e2eAIOK: Intel MPI prints the rank before each line, docker compose the container."""
    text = "".join(
        f"training  | [{rank}] Finished training it {at}/150 of epoch {epoch}, {took}.5 ms/it, "
        "loss 0.5, accuracy 75.560 %\n"
        for epoch in (0, 1) for at in (16, 32) for rank, took in ((1, 440), (0, 460))
    )  # fmt: skip
    stops = mllog(9, "eval_start") + mllog(11, "eval_stop")  # of MLPerf, which tell no steps here
    trace = opened(text + stops)
    ends = {(rank, at): 0.4605 for rank in (0, 1) for at in (16, 32, 166, 182)}  # of the slowest
    assert seconds_of_steps(trace) == ends
    assert trace.run["evaluation_s"] == 2.0
    assert any("mean of about 16 steps" in limit for limit in trace.limits)


def test_timers_of_the_first_megatron_are_parts_of_a_rank(opened):
    text = "".join(
        f"time (ms) | forward: 207.0 | backward: 350{at}.0 | optimizer: 3000.0 | data loader: 0.1\n"
        for at in range(3)
    )
    assert list(seconds_of_steps(opened(text)).values()) == [6.707, 6.708, 6.709]


def test_sections_in_a_report_of_stragglers_are_parts_of_ranks(opened):
    """Rank 1 of 3 takes 30 ms more forward: of 100 ms, the others wait."""
    parts = {"forward": (20, 50, 20), "backward": (40, 40, 40), "optimizer": (10, 10, 10)}
    report = "[default0]:=== Straggler Report at Step {} ===\n[default0]:Section Timings (ms):\n"
    for name, took in parts.items():
        report += (
            f"[default0]:\n[default0]:  {name}:\n[default0]:    Min: 9ms, Max: 50ms, Avg: 3ms\n"
        )
        report += "".join(f"[default0]:    Rank {at}: {ms}.00ms\n" for at, ms in enumerate(took))
    trace = opened("".join(report.format(10 * at) for at in range(1, 9)))
    assert seconds_of_steps(trace) == {(rank, at): 0.1 for rank in range(3) for at in range(1, 9)}
    assert diagnose(trace).findings[0].where.ranks == [1]


@pytest.mark.parametrize(
    ("step", "then", "at"),
    [
        ("epoch: {at} step: 40, loss is 0.02", "epoch time: 9.8 ms, per step time: {ms} ms", 40),
        ("INFO:loss = 1.7, step = {at}", "INFO:tensorflow:global_step/sec: {rate:.5f}", 1),
        ("step: {at}", "loss: 3.2\ntokens seen: 2621\ncurrent step time: {s}", 1),
        ("[batch={at}/100]:", "\t Train loss: 6.5\n\t Train speed/batches_per_sec: {rate:.2f}", 1),
    ],
)
def test_a_line_that_only_tells_how_long_steps_took_is_of_the_step_before(opened, step, then, at):
    text = "".join(
        f"{step.format(at=epoch)}\n{then.format(ms=500 * epoch, s=epoch / 2, rate=2 / epoch)}\n"
        for epoch in (1, 2, 4)
    )
    numbers = (1, 2, 3) if at > 1 else (1, 2, 4)
    assert seconds_of_steps(opened(text)) == {
        (0, at * number): epoch / 2 for number, epoch in zip(numbers, (1, 2, 4), strict=True)
    }


@pytest.mark.parametrize("of", ["validation ", "Eval: ", "test "])
def test_how_long_a_step_of_an_evaluation_took_is_not_of_the_step_before(opened, of):
    text = "".join(f"step {at} loss 2.5\n{{}}step time: 0.{at} s\n" for at in range(1, 9))
    assert seconds_of(opened(text.format(*[""] * 8))) == {at: at / 10 for at in range(1, 9)}
    with pytest.raises(EvenstepError, match="nothing to read"):
        opened(text.format(*[of] * 8))


def test_the_mean_at_the_end_of_a_run_is_not_of_its_last_step(opened):
    text = "".join(f" {at}%|##  | {at}/99 [00:{at:02d}<01:00,  1.0s/it]\n" for at in range(1, 50))
    more = "{'loss': 2.3, 'step': 49}\n{'train_runtime': 49, 'train_steps_per_second': 0.25}\n"
    assert seconds_of_steps(opened(text + more)) == seconds_of_steps(opened(text))


def test_no_wait_for_data_is_no_row_left_out(opened):
    text = "".join(f"step: {at} step_time: 1.0s data_time: {at % 2}.0s\n" for at in range(1, 9))
    assert opened(text).limits == opened(text.replace("data_time", "took")).limits


@pytest.mark.parametrize("unit", ["min", "minutes", "milliseconds", "h"])
def test_a_duration_in_units_that_are_not_known_is_none(opened, unit):
    with pytest.raises(EvenstepError, match="nothing to read"):
        opened("".join(f"step {at} step_time: 1.{at} {unit}\n" for at in range(1, 9)))


@pytest.mark.parametrize("name", ["data_cost: {}", "reader_cost: {}", "reader_cost: {} s"])
@pytest.mark.parametrize(
    "line",
    [
        "INFO: Epoch: [0] [{at}/200] loss: 5 eta: 27 days batch_cost: 1.0 {load} ips: 1.7 images/s",
        "INFO: epoch:0  , train step:{at} , top1: 0.3, batch_cost: 1.00000 s, {load}, ips: 64",
        "INFO: [Train][Epoch  9/10][Iter  {at}/100] lr: 0.002, batch_cost: 1.0s, {load}, ips: 9",
    ],
)
def test_what_loading_and_a_batch_cost_is_a_step_and_its_input(opened, line, name):
    text = "".join(
        f"[07/21 14:40:{at}] {line.format(at=at, load=name.format(0.75))}\n" for at in range(10, 20)
    )
    trace = opened(text)
    assert seconds_of(trace) == dict.fromkeys(range(10, 20), 1.0)
    assert diagnose(trace).findings[0].severity == pytest.approx(0.75, rel=0.1)


def test_tabs_as_syslog_writes_them_part_words(opened):
    text = MMCV.replace("\t", "#011")
    assert seconds_of(opened(text)) == {30417: 0.393, 30467: 0.392}


def test_the_number_of_all_steps_goes_before_that_of_samples_in_an_epoch(opened):
    text = "".join(
        f"2023-05-28,11:44:30 | INFO | Rank {rank} | Global Steps: {at}/626 | Train Epoch: 1 "
        f"[{400 * at}/250400 (14%)] | Loss: 1.3 | Data Time: 0.07s | Batch Time: 3.{at}s | LR: 1\n"
        for at in (90, 91) for rank in (0, 1)
    )  # fmt: skip
    assert seconds_of_steps(opened(text)) == {
        (rank, at): 3 + at / 100 for rank in (0, 1) for at in (90, 91)
    }


@pytest.mark.parametrize(
    "line",
    [
        "2025-09-23 01:53:44, 2 Epoch, {at} Iter, Loss: 0.07, Data time: 0.1, Batch time: 0.{s}",
        "Iteration:  {at} , Loss:  4.152383327484131 , Time:  0.{s}",
        "iter: {at}  total_loss: 1.2  time: {s}.0ms  lr: 0.01",
        "train | step: {at} | steps/sec:   {rate:.4f} | output:",
    ],
)
def test_a_loop_is_read_by_its_number_and_its_time_wherever_they_stand(opened, line):
    rows = [line.format(at=at, s=took, rate=1e3 / took) for at, took in ((10, 250), (11, 251))]
    assert seconds_of(opened("\n".join(rows))) == {
        at: pytest.approx(took / 1e3, rel=1e-3) for at, took in ((10, 250), (11, 251))
    }


@pytest.mark.parametrize("line", ["eval step: {}, loss 2.3, time: 9.5 s", "Test iter {}: time 9 s"])
def test_the_steps_of_an_evaluation_are_none_of_the_training(opened, line):
    rows = (f"step: {at} loss 2.3 step_time: 0.5 s\n{line.format(at)}\n" for at in range(1, 9))
    assert seconds_of(opened("".join(rows))) == dict.fromkeys(range(1, 9), 0.5)


def test_a_rounded_rate_of_one_digit_is_no_time(opened):
    text = "".join(f"train | step: {at} | steps/sec:    0.1 | loss: 3\n" for at in (140, 160, 180))
    with pytest.raises(EvenstepError, match="nothing to read"):
        opened(text)


@pytest.mark.parametrize("name", ["step_time: {} s", "per step time: {} s"])
@pytest.mark.parametrize("even", [True, False])
def test_stamps_tell_whether_a_line_is_the_mean_of_all_steps_since_the_last(opened, name, even):
    """Of 40 steps a line: 60, 80 and 60 s, or 200 s of which each line times a step of the same."""
    text, clock_s = "", 0
    for at in range(1, 9):
        took = 1.5 if at % 2 else 2.0
        clock_s += int(40 * took) if even else 200
        stamp = f"2026-05-08 12:{clock_s // 60:02d}:{clock_s % 60:02d}"
        text += f"{stamp} iter[{40 * at}], loss:2.5, {name.format(took)}\n"
    limits = opened(text).limits
    said = "is the mean of about 40 steps" if even else "times one step of about 40"
    assert any(said in limit for limit in limits)


def test_the_first_step_stands_for_itself_where_lines_are_of_one_in_many(opened):
    text = "".join(
        f"step {at}: step_time: {took} s, data_time: {took - 0.1:.1f} s\n"
        for at in range(0, 100, 10) for took in [0.1 if at else 9.1]
    )  # fmt: skip
    trace = opened(text)
    assert set(seconds_of_steps(trace).values()) == {0.1}
    assert not diagnose(trace).findings


def test_a_rate_of_something_else_is_none_of_steps(opened):
    text = "".join(f"step {at} | loss 2.3 | 20 it/s {{}}\n" for at in range(1, 9))
    assert set(seconds_of(opened(text.format(*[""] * 8))).values()) == {0.05}
    with pytest.raises(EvenstepError, match="no two steps with times"):
        opened(text.format(*["dataloader"] * 8))


@pytest.mark.parametrize(
    ("text", "seconds", "whole"),
    [
        ("2024-05-01 12:00:10,250 step 3", 10.25, False),
        ("2024/05/01T12:00:10 step 3", 10.0, True),
        ("I0501 12:00:10.123456 7 train.py] step 3", 10.123456, False),
        ("[12:00:10] step 3", 10.0, True),
        ("[2019-03-17:12:00:10:INFO:sockeye.training:__call__] step 3", 10.0, True),
        ("May 18 12:00:10 node1 python[123]: step 3", 10.0, True),
        ("running May  8, 2020, 12:00:10.5: step 3", 10.5, False),
        ("May 18 11:11:11 node1 python[123]: 2024-05-01 12:00:10,250 step 3", 10.25, False),
        ("2024-13-01 12:00:10 step 3", None, False),  # a month that is none
        ("2024-05-01 12:61:10 step 3", None, False),
        ("step 3 of 12", None, False),
    ],
)
def test_a_stamp_is_a_time_of_a_day_that_there_is(text, seconds, whole):
    at, coarse = training_logs._stamp(text)
    assert coarse is whole
    if seconds is None:
        assert at != at  # nan
    else:
        assert at % 60 == pytest.approx(seconds)
        assert at % 86_400 == pytest.approx(12 * 3600 + seconds)


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("Epoch 4 | iter {0} step {0} | loss train: 1.06, val: 1.05 | iter time: 500.0 ms", 0.5),
        ("(epoch: 1, iters: {0}, time: 0.250, data: 0.002) D_A: 0.508 G_A: 0.182", 0.25),
        ("| epoch   0 | {0:5d}/ 1106 batches | lr 20.00 | ms/batch 112.5 | loss  3.57", 0.1125),
        ("| epoch   2 step {0:8d} |   530 batches | ms/batch 600.0 | loss  7.34", 0.6),
        ("tick {0:<5d} kimg 4.0      time 4m 21s       sec/tick 236.5   sec/kimg 59.0", 236.5),
        ("Step {0}/50000 | loss 3.21 | lr 3.0e-04 | 1.21s/it", 1.21),
        ("[epoch: 2, iter:{0:8,d}, lr:(1.0e-04,)] [eta: 1 day, time (data): 0.386 (0.002)]", 0.386),
    ],
)
def test_a_line_tells_its_step_and_how_long_it_took(opened, line, seconds):
    """As LitGPT, pix2pix, language models, StyleGAN, BasicSR and others print them."""
    steps = range(1_003, 1_009) if ",d" in line else range(3, 9)
    trace = opened("".join(line.format(at) + "\n" for at in steps))
    assert seconds_of(trace) == pytest.approx(dict.fromkeys(steps, seconds))


def test_what_a_line_names_behind_its_loss_makes_it_no_evaluation(opened):
    line = "step {}: loss 2.5, {}, time 250.0ms\n"
    text = "".join(line.format(at, "val: 2.4") + line.format(at, "val pass") for at in range(9))
    assert seconds_of(opened(text)) == dict.fromkeys(range(9), 0.25)
    with pytest.raises(EvenstepError):
        opened(text.replace("val:", "val pass of"))


def test_numbers_of_steps_may_have_separators_of_thousands(opened):
    text = "".join(f"step {at:,}: loss 3.12, time 250.00ms\n" for at in range(999, 1_003))
    assert seconds_of(opened(text)) == dict.fromkeys(range(999, 1_003), 0.25)
    text = "".join(f"step {at},125,0.5 loss 3.12, time 250.00ms\n" for at in range(7, 12))
    assert seconds_of(opened(text)) == dict.fromkeys(range(7, 12), 0.25)  # a list has other commas


def test_a_number_of_milliseconds_is_no_step(opened):
    """`batch 112.5` is neither the batch 112 nor, without its last digits, the 11."""
    line = "2026-05-08 12:00:0{0},0 loss 2.5, ms/batch 1{0}2.5\n"
    text = "".join(line.format(at) for at in range(9))
    with pytest.raises(EvenstepError):
        opened(text)


@pytest.mark.parametrize(("before", "after"), [("epoch {}: ", ""), ("", ", loss=2.5")])
def test_a_counter_without_an_end_counts_steps(opened, before, after):
    """As `tqdm(enumerate(loader))` shows them; another epoch begins anew."""
    text = "".join(
        f"{before.format(epoch)}{at}it [00:{at // 2:02d},  2.00it/s{after}]\r"
        for epoch in range(2) for at in range(1, 101)
    )  # fmt: skip
    assert list(seconds_of(opened(text)).values()) == pytest.approx([0.5] * 2, rel=0.02)
    with pytest.raises(EvenstepError):
        opened(text.replace("epoch", "chunk").replace("loss", "file"))


@pytest.mark.parametrize("word", ["Tokenizing", "Generating", "Preprocessing", "Loading"])
def test_a_counter_of_what_goes_before_the_training_counts_no_steps(opened, word):
    line = "{} train split: {}it [00:{:02d},  2.00it/s]\r"
    assert seconds_of(opened("".join(line.format("My", at, at // 2) for at in range(1, 101))))
    with pytest.raises(EvenstepError):
        opened("".join(line.format(word, at, at // 2) for at in range(1, 101)))


def test_the_first_step_of_an_epoch_weighs_as_one_where_lines_are_means(opened):
    """Of lines every ten steps, that of the first is of it alone: half a second in 75."""
    text = "".join(
        f"Epoch: [{epoch}]  [{at:4d}/160]  eta: 0:12:03  loss: 2.5 (2.6)  time: {took:.4f}  "
        f"data: {took - 0.47:.4f}  max mem: 9082\n"
        for epoch in range(2) for at in range(0, 160, 10) for took in [0.471 if at else 8.47]
    )  # fmt: skip
    trace = opened(text)
    assert max(seconds_of(trace).values()) == 0.471
    assert not diagnose(trace).findings


def test_a_log_that_counts_samples_has_steps_of_as_many(opened):
    """The examples of PyTorch print the samples so far."""
    text = "".join(
        f"2025-08-14T23:41:{at:02d}.000Z INFO Train Epoch: 1 [{640 * at}/60000 ({at}%)] loss=2.2\n"
        for at in range(1, 9)
    )
    trace = opened(text)
    assert seconds_of(trace) == pytest.approx(dict.fromkeys(range(2, 9), 1.0))
    assert "this log counts samples: 640 are taken to be a step" in trace.limits


def test_a_shorter_last_batch_counts_no_samples_of_those_before(opened):
    """As the examples of PyTorch count: number of the batch times its own size."""
    sizes = [*(100 for _ in range(10)), 50]
    text = "".join(
        f"2025-08-14 23:0{epoch}:{at:02d}.000 Train Epoch: {epoch} [{size * at}/1050 (9%)] loss=2\n"
        for epoch in (1, 2) for at, size in enumerate(sizes)
    )  # fmt: skip
    trace = opened(text)
    assert list(seconds_of(trace).values())[:9] == pytest.approx([1.0] * 9)
    assert any("100 are taken to be a step" in limit for limit in trace.limits)
    assert "lost_work_s" not in trace.run


def test_an_epoch_of_fairseq_is_as_many_updates(opened):
    text = "".join(
        f"| epoch {at:03d} | loss 5.6 | num_updates {200 * at} | lr 5e-05 | wall {400 * at} | x 1\n"
        for at in range(1, 5)
    )
    assert set(seconds_of(opened(text)).values()) == {2.0}


@pytest.mark.parametrize(("junk", "read"), [(b"a-host\0\0", True), (b"\1\2\3\0" * 9, False)])
def test_a_text_with_few_bytes_that_are_none_is_a_text(tmp_path, junk, read):
    """As of fields of a fixed length that C prints; a file of such bytes is a binary one."""
    lines = [b"step %d loss 2.5 time: 250.0 ms\n" % at for at in range(99)]
    path = tmp_path / "out.log"
    path.write_bytes(
        b"".join(line + junk * (at % 20 == 0 or not read) for at, line in enumerate(lines))
    )
    if read:
        assert len(seconds_of(open_trace([path]))) == 99
    else:
        with pytest.raises(EvenstepError, match="in no format"):
            open_trace([path])
