"""What late ranks were seen in."""

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.trace.spool.layout import Flag, Kind, Op, Phase
from tests.diagnose.programs import Do, Job
from tests.diagnose.synthetic import MS, World, with_rows


def seen(trace, rank, counts, step=30, phase=Phase.BACKWARD):
    """Looks at a rank: {stack: how many}."""
    for stack, looks in counts.items():
        names = (*trace.names, stack)
        trace = with_rows(
            trace, rank=rank, kind=Kind.STACK, step=step, op=phase, payload=looks,
            bytes_in=sum(counts.values()), name=len(names) - 1, enter_ns=1, exit_ns=2,
        )  # fmt: skip
        trace.names = names
    return trace


@pytest.fixture
def late():
    """Rank 2 sleeps 50 ms in backward, beside 40 ms that every rank computes."""
    trace = World().slow(2, Phase.BACKWARD, 50 * MS).trace()
    for rank in range(4):
        own = {"train.py:31 nap < train.py:9 main": 40} if rank == 2 else {"comm.py:1 wait": 40}
        trace = seen(trace, rank, {"graph.py:979 backward < train.py:9 main": 45} | own)
    return trace


def test_the_place_that_others_do_not_spend_as_long_in_is_named(late):
    finding = diagnose(late).findings[0]
    assert finding.where.ranks == [2]
    assert finding.stacks[0].rank == 2
    assert list(finding.stacks[0].frames) == ["train.py:31 nap", "train.py:9 main"]
    assert finding.stacks[0].share == pytest.approx(40 / 85, abs=1e-3)
    assert finding.cause.endswith("47 % of the looks at rank 2 it was in train.py:31 nap")


def test_of_a_wait_in_pythons_own_code_the_line_that_called_it_is_named(late):
    late = seen(late, 2, {"<python3.12/queue.py>:180 get < train.py:25 batch": 90})
    finding = diagnose(late).findings[0]
    assert finding.stacks[0].frames[0] == "<python3.12/queue.py>:180 get"
    assert finding.cause.endswith("it was in train.py:25 batch")


@pytest.mark.parametrize(
    ("frames", "doing"),
    [
        (
            "<queue.py>:180 get < <utils/data/dataloader.py>:1291 _try_get_data",
            ", waiting for its loader",
        ),
        ("<selectors.py>:415 select < <python3.12/subprocess.py>:1209 wait", ", in a subprocess"),
        ("<torch/fx/graph.py>:180 name < <torch/_dynamo/convert_frame.py>:777 call", ", compiling"),
        ("<_inductor/codegen/cpp.py>:9 emit < <torch/_inductor/graph.py>:777 run", ", compiling"),
        ("<nn/modules/linear.py>:1 forward < <torch/fx/graph_module.py>:949 call_wrapped", ""),
    ],
)
def test_what_the_library_was_at_is_said_beside_the_line_that_called_it(late, frames, doing):
    late = seen(late, 2, {f"{frames} < train.py:25 batch": 90})
    assert diagnose(late).findings[0].cause.endswith(f" it was in train.py:25 batch{doing}")


@pytest.mark.parametrize("file", ["train.py", "<stdin>", "<string>"])
def test_a_call_of_a_library_that_is_never_long_in_one_function_is_named_by_its_line(late, file):
    """As a compilation is. The others wait as long in another line of the same function."""
    late = World().slow(2, Phase.FORWARD, 50 * MS).trace()
    for rank in range(4):
        own = {f"<torch/a.py>:{n} f{n} < {file}:12 <module>": 4 for n in range(15)}
        others = {f"<torch/b.py>:9 wait < {file}:14 <module>": 60}
        late = seen(late, rank, {"train.py:9 data": 40} | (own if rank == 2 else others))
    finding = diagnose(late).findings[0]
    assert finding.stacks[0].share == pytest.approx(0.6, abs=1e-3)
    assert finding.cause.endswith(f"60 % of the looks at rank 2 it was in {file}:12 <module>")


def test_a_thread_that_computes_beside_training_on_the_late_rank_alone_is_named(late):
    names = (*late.names, "<json>:2 dumps < train.py:70 export")
    looks = {"kind": Kind.STACK, "step": 30, "payload": 70, "name": len(names) - 1}
    late = with_rows(late, rank=2, bytes_in=0, enter_ns=1, exit_ns=2, **looks)
    late.names = names
    finding = diagnose(late).findings[0]
    first, second, *_ = finding.stacks
    assert finding.options[0].action.startswith("move that thread's work into a process")
    assert finding.options[0].cost == "a change of the program"
    assert first.frames[0] == "train.py:70 export in another thread"
    assert first.share == pytest.approx(70 / 85, abs=1e-3)
    assert second.frames[0] == "train.py:31 nap"


def test_a_thread_that_computes_beside_training_on_both_of_two_ranks_makes_neither_late():
    """In all looks at both; the late one sleeps in fewer than half of them."""
    trace = World(ranks=2).slow(1, Phase.BACKWARD, 50 * MS).trace()
    for rank, own in enumerate(("comm.py:1 wait", "train.py:31 nap < train.py:9 main")):
        trace = seen(trace, rank, {"graph.py:979 backward < train.py:9 main": 45, own: 40})
    names = (*trace.names, "<json>:2 dumps < train.py:70 export")
    looks = {"kind": Kind.STACK, "step": 30, "payload": 85, "name": len(names) - 1}
    for rank in range(2):
        trace = with_rows(trace, rank=rank, bytes_in=0, enter_ns=1, exit_ns=2, **looks)
    trace.names = names
    assert diagnose(trace).findings[0].stacks[0].frames[0] == "train.py:31 nap"


def test_a_place_seen_in_every_burst_is_surer_than_one_that_fills_a_single_burst():
    trace = World().slow(2, Phase.BACKWARD, 50 * MS).trace()
    shared, nap = "train.py:9 main", "train.py:31 nap < train.py:9 main"
    for rank in range(4):
        for mine in (28, 0, 14):
            counts = {shared: mine, nap: 10, "comm.py:1 wait": 30 - mine}
            others = {shared: 3, "comm.py:1 wait": 37}
            trace = seen(trace, rank, counts if rank == 2 else others)
    finding = diagnose(trace).findings[0]
    assert finding.stacks[0].frames[0] == "train.py:31 nap"


def test_a_function_is_one_place_whatever_its_line(late):
    late = seen(late, 2, {"train.py:32 nap < train.py:9 main": 45})
    assert diagnose(late).findings[0].stacks[0].share == pytest.approx(85 / 130, abs=1e-3)


def test_in_a_function_that_all_are_in_the_line_that_takes_longer_is_named():
    """The script's own level: all sleep in line 15, rank 2 in line 13 as well."""
    trace = World().slow(2, Phase.OTHER, 50 * MS).trace()
    for rank in range(4):
        own = {"train.py:13 <module>": 20} if rank == 2 else {"comm.py:1 wait": 40}
        trace = seen(trace, rank, {"train.py:15 <module>": 22} | own)
    assert diagnose(trace).findings[0].stacks[0].frames[0] == "train.py:13 <module>"


def test_of_steps_that_are_slow_on_all_ranks_the_place_they_are_longer_in_is_named():
    """Step 30 of 60 takes 600 ms more; a look at a usual step does not find it in `save`."""
    table = World().everywhere()
    table[30] = 600 * MS
    trace = World().delayed(Phase.OTHER, table).trace()
    for rank in range(4):
        trace = seen(trace, rank, {"train.py:9 main": 30}, step=20)
        trace = seen(trace, rank, {"train.py:9 main": 4, "train.py:44 save < train.py:9 main": 36})
    finding = diagnose(trace).findings[0]
    assert (finding.title, finding.where.ranks) == ("Slow step 30", ())
    assert finding.stacks[0].frames[0] == "train.py:44 save"
    assert finding.cause.endswith("90 % of the looks at rank 0 it was in train.py:44 save")


@pytest.mark.parametrize(
    ("every", "phase", "told"),
    [
        (15, Phase.CHECKPOINT, True), (1, Phase.CHECKPOINT, True),
        (15, Phase.OTHER, True), (1, Phase.OTHER, False),
    ],
)  # fmt: skip
def test_of_checkpoints_of_all_ranks_the_place_is_named_without_looks_at_other_steps(
    every, phase, told
):
    """In a short job every look is at an overdue step. What each step has needs a comparison, or
    looks that were taken in a checkpoint."""
    table = World().everywhere()
    table[14::every] = 300 * MS
    trace = World().delayed(Phase.CHECKPOINT, table).trace()
    for rank in range(4):
        for step in (29, 60):  # as at the end of the job, which no step has
            looks = {"train.py:44 save < train.py:9 main": 30}
            trace = seen(trace, rank, looks, step=step, phase=phase)
    found = diagnose(trace).findings[0]
    assert (found.mode, found.where.ranks) == ("checkpoint_stall", ())
    assert [stack.frames[0] for stack in found.stacks] == ["train.py:44 save"] * 4 * told


def test_of_checkpoints_of_a_rank_what_it_does_after_them_is_not_the_place():
    """Beside the others it is longer in both; the finding is of the checkpoints alone."""
    table = World().everywhere()
    table[9::10, 2] = 300 * MS
    trace = World().delayed(Phase.CHECKPOINT, table).trace()
    for rank in range(4):
        trace = seen(trace, rank, {"train.py:9 main": 30})
    save, log = {"<torch/save.py>:9 write < train.py:44 save": 20}, {"train.py:48 log": 60}
    trace = seen(seen(trace, 2, save, step=29, phase=Phase.CHECKPOINT), 2, log, step=29)
    found = diagnose(trace).findings[0]
    assert (found.mode, found.where.ranks) == ("checkpoint_stall", [2])
    assert [stack.frames[-1] for stack in found.stacks] == ["train.py:44 save"]


def test_of_a_rank_late_in_two_phases_each_has_the_place_seen_in_it():
    """Slow batches and a slow forward: what loads is no reason for the forward."""
    world = World(style="blocking", noise=0.01).slow(2, Phase.INPUT, 40 * MS)
    trace = world.slow(2, Phase.FORWARD, 30 * MS).trace()
    for rank in range(4):
        trace = seen(trace, rank, {"train.py:9 main": 60})
    trace = seen(trace, 2, {"train.py:5 load": 60}, phase=Phase.INPUT)
    trace = seen(trace, 2, {"net.py:7 mix": 40}, phase=Phase.FORWARD)
    found = {one.mode: one.stacks[0].frames for one in diagnose(trace).findings[:2]}
    assert found == {"input_pipeline": ["train.py:5 load"], "straggler": ["net.py:7 mix"]}


def test_of_periodic_slow_steps_the_place_they_are_longer_in_is_named():
    """Every tenth of 60 steps takes 300 ms more on all ranks; the bursts saw two of them."""
    table = World().everywhere()
    table[9::10] = 300 * MS
    trace = World().delayed(Phase.OTHER, table).trace()
    for rank in range(4):
        trace = seen(trace, rank, {"train.py:9 main": 30}, step=20)
        for step in (29, 49):
            trace = seen(trace, rank, {"train.py:44 rebuild < train.py:9 main": 30}, step=step)
    finding = diagnose(trace).findings[0]
    assert (finding.mode, finding.where.ranks) == ("synchronization_oscillation", ())
    assert [stack.frames[0] for stack in finding.stacks] == ["train.py:44 rebuild"] * 4


def test_what_a_collection_happens_to_interrupt_is_not_its_cause():
    trace = World().slow(2, Phase.FORWARD, 30 * MS, collector=True).trace()
    finding = diagnose(seen(trace, 2, {"train.py:31 batch": 40})).findings[0]
    assert finding.mode == "runtime_jitter"
    assert not finding.stacks
    assert "train.py" not in finding.cause


def test_a_collection_that_the_script_calls_is_told_with_the_line_that_calls_it():
    trace = World().slow(2, Phase.FORWARD, 30 * MS, collector=True).trace()
    called = int(Flag.CALLED) * (trace.events.kind == int(Kind.PAUSE))
    trace.events = trace.events.with_column("flags", trace.events.flags | called)
    finding = diagnose(seen(trace, 2, {"train.py:31 tidy": 40})).findings[0]
    assert (finding.mode, finding.layer) == ("runtime_jitter", "model")
    assert finding.stacks[0].frames == ["train.py:31 tidy"]
    assert finding.options[0].action.startswith("call gc.collect() less often")


@pytest.mark.parametrize("together", [False, True])
def test_the_line_that_calls_collections_is_told_though_ranks_were_seen_to_wait_elsewhere(together):
    """Ranks collect in turns or together; where they wait for each other, most looks find them."""
    table = World().everywhere()
    table[np.arange(60), slice(None) if together else np.arange(60) % 4] = 30 * MS
    trace = World().delayed(Phase.FORWARD, table, collector=True).trace()
    trace.names = (*trace.names, "train.py:31 tidy")
    ours = (trace.events.kind == int(Kind.PAUSE)) & (trace.events.step > 10)  # before, by itself
    for column, value in (("flags", int(Flag.CALLED)), ("name", len(trace.names) - 1)):
        of = np.where(ours, value, trace.events[column])
        trace.events = trace.events.with_column(column, of)
    for rank in range(4):
        trace = seen(trace, rank, {"train.py:50 backward": 40})
    finding = diagnose(trace).findings[0]
    assert finding.mode == "runtime_jitter"
    assert {(each.share, *each.frames) for each in finding.stacks} == {(1.0, "train.py:31 tidy")}
    assert finding.cause.endswith("; gc.collect() is called in train.py:31 tidy")


@pytest.mark.parametrize("behind", [0, 1])
def test_of_a_hang_every_rank_is_told_where_it_was(behind):
    """Also who stands before the end of a step that the others have ended."""
    trace = World(steps=60).trace()
    last = (trace.events.kind == Kind.STEP) & (trace.events.step == 59)
    if behind:
        trace.events = trace.events.select(~last | (trace.events["rank"] != 2))
    end = int(trace.events.exit_ns.max())
    for rank in (0, 1, 3):
        trace = with_rows(
            trace, rank=rank, kind=Kind.COLLECTIVE, op=Op.ALL_REDUCE, group=0, group_seq=10**6,
            step=60, enter_ns=end + MS,
        )  # fmt: skip
        trace = seen(trace, rank, {"train.py:12 step": 1}, step=60)
    trace = seen(trace, 2, {"data.py:7 read": 1}, step=60 - behind)
    for info in trace.ranks.values():
        info.closed, info.facts["heartbeat_ns"] = False, end + 30_000 * MS
    finding = diagnose(trace).findings[0]
    assert finding.mode == "hang"
    assert [(each.rank, each.frames[0]) for each in finding.stacks] == [
        (0, "train.py:12 step"), (1, "train.py:12 step"), (2, "data.py:7 read"),
        (3, "train.py:12 step"),
    ]  # fmt: skip
    assert finding.cause.endswith("it was in data.py:7 read")


def test_of_late_steps_only_looks_in_these_count():
    """Looks take longer than a late step: most see the steps after it."""
    world = World()
    table = world.everywhere()
    table[[20, 40, 55], 2] = 300 * MS
    trace = world.delayed(Phase.BACKWARD, table, computing=True).trace()
    trace = seen(trace, 2, {"disk.py:5 save": 8, "data.py:7 read": 4}, step=40)
    trace = seen(trace, 2, {"data.py:7 read": 28}, step=41)
    (finding,) = [one for one in diagnose(trace).findings if one.mode == "straggler"]
    assert [(each.frames, each.share) for each in finding.stacks] == [
        (["disk.py:5 save"], pytest.approx(8 / 12, abs=1e-3)),
        (["data.py:7 read"], pytest.approx(4 / 12, abs=1e-3)),
    ]


def test_a_trace_without_looks_has_no_stacks():
    trace = World().slow(2, Phase.BACKWARD, 50 * MS).trace()
    assert not any(finding.stacks for finding in diagnose(trace).findings)


def test_of_a_death_the_stack_is_that_of_its_exception():
    trace = seen(World().trace(), 1, {"threading.py:1139 join": 1}, step=60)
    facts = {"type": "ValueError", "message": "", "frames": ["data.py:31 batch", "train.py:9 main"]}
    trace.ranks[1].facts["raised"] = facts | {"monotonic_ns": int(trace.events.exit_ns.max()) + 1}
    finding = diagnose(trace).findings[0]
    assert finding.mode == "rank_failed"
    assert [list(each.frames) for each in finding.stacks] == [
        ["data.py:31 batch", "train.py:9 main"]
    ]
    assert "threading" not in finding.cause


def test_of_input_that_all_ranks_wait_for_the_place_in_the_loader_is_named():
    """Looks outside the input are more, and as long on all ranks."""
    trace = World(input_ns=20 * MS).trace()
    for rank in range(4):
        trace = seen(trace, rank, {"train.py:9 main": 60})
        trace = seen(trace, rank, {"data.py:7 decode < train.py:8 main": 20}, phase=Phase.INPUT)
    finding = diagnose(trace).findings[0]
    assert (finding.mode, finding.where.ranks) == ("input_pipeline", ())
    assert [stack.frames[0] for stack in finding.stacks] == ["data.py:7 decode"] * 4
    assert finding.cause.endswith("25 % of the looks at rank 0 it was in data.py:7 decode")


@pytest.mark.parametrize("line", ["train.py:31 fit", "<torch/nn.py>:9 forward < train.py:31 fit"])
def test_of_devices_that_wait_for_all_hosts_the_scripts_own_line_is_named(line):
    """As of `.item()` in each step; what torch is in is the work that hosts issue."""
    layer = [Do("work", 10 * MS), Do("call", group=0)]
    trace = Job(
        ranks=4, groups=[("default_pg", (0, 1, 2, 3))], program=lambda _: 6 * layer, steps=60,
        device=True, transfer=lambda *_: 3 * MS, noise=0.01, issue_ns=lambda *_: 16 * MS,
    ).run().trace()  # fmt: skip
    for rank in range(4):
        trace = seen(trace, rank, {"<torch/graph.py>:979 backward < train.py:30 fit": 60, line: 40})
    finding = diagnose(trace).findings[0]
    assert (finding.title, finding.where.ranks) == ("Launch-bound", ())
    named = [stack.frames[0] for stack in finding.stacks]
    assert named == ["train.py:31 fit"] * 4 * line.startswith("train")


def test_of_ranks_that_take_turns_the_place_of_whoever_is_late_is_named():
    """In every step one of four ranks naps; the others wait for it in backward meanwhile."""
    world = World(noise=0.005)
    table = world.everywhere()
    turn = [step % world.ranks for step in range(len(table))]
    table = 50 * MS * (np.arange(world.ranks) == np.array(turn)[:, None])
    trace = world.delayed(Phase.OTHER, table).trace()
    for step in range(20, 32):
        for rank in range(world.ranks):
            own = {"train.py:20 nap < train.py:9 main": 40, "graph.py:979 backward": 40}
            waits = {"graph.py:979 backward": 80}
            trace = seen(trace, rank, own if rank == turn[step] else waits, step, Phase.OTHER)
    finding = diagnose(trace).findings[0]
    assert finding.when.pattern == "rotating"
    assert finding.stacks[0].frames[0] == "train.py:20 nap"
