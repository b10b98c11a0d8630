"""What hooks of JAX record, by a small JAX that answers at once."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from evenstep.hooks.jax.jax import COMPILATION, GROUP, LIMIT, SHORTEST_NS, JaxHooks, JaxStack
from evenstep.trace.reader import read_spool
from evenstep.trace.spool.folder import RunFolder
from evenstep.trace.spool.layout import NO_PEER, Flag, Kind, Op

COMPILE = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def given_up():
    return []


@pytest.fixture
def agent(recorder, given_up):
    return SimpleNamespace(
        recorder=recorder, spool=recorder.spool, identity=SimpleNamespace(world=3),
        give_up=given_up.append,
    )  # fmt: skip


@pytest.fixture
def listeners():
    return []


@pytest.fixture
def jax(listeners):
    monitoring = SimpleNamespace(
        register_event_duration_secs_listener=listeners.append,
        unregister_event_duration_listener=listeners.remove,
    )
    return SimpleNamespace(monitoring=monitoring, __version__="0.10.2")


@pytest.fixture
def hooks(jax, agent):
    made = JaxHooks(jax, agent)
    made.install()
    yield made
    made.remove()


def told(recorder, kind, *fields):
    found = read_spool(recorder.spool.path).records
    return [tuple(row) for row in found[found["kind"] == kind][list(fields)].tolist()]


def test_a_compilation_is_a_span_that_ends_now(hooks, listeners, recorder):
    for event in COMPILATION:
        listeners[0](event, 0.002, fun_name="f")
    rows = told(recorder, Kind.SPAN, "enter_ns", "exit_ns", "name", "step", "thread", "parent")
    assert [exit_ns - enter_ns for enter_ns, exit_ns, *_ in rows] == [2_000_000] * 3
    names = read_spool(recorder.spool.path).names
    assert [names[row[2]] for row in rows] == list(COMPILATION.values())
    assert {row[3:] for row in rows} == {(0, 0, 0)}


@pytest.mark.parametrize(
    ("event", "seconds", "recorded"),
    [(COMPILE, SHORTEST_NS / 1e9, True), (COMPILE, 0.99 * SHORTEST_NS / 1e9, False),
     ("/jax/of/another", 1.0, False)],
)  # fmt: skip
def test_what_is_short_or_no_compilation_is_left_out(hooks, recorder, event, seconds, recorded):
    hooks._compiled(event, seconds)
    assert len(told(recorder, Kind.SPAN, "name")) == recorded
    hooks.disarm()
    hooks._compiled(event, 1.0)
    assert len(told(recorder, Kind.SPAN, "name")) == recorded


def test_another_thread_compiles_on_its_own(hooks, recorder):
    other = threading.Thread(target=hooks._compiled, args=(COMPILE, 1.0))
    other.start()
    other.join()
    assert told(recorder, Kind.SPAN, "thread") == [(1,)]


def test_a_host_collective_is_one_of_all_processes(hooks, recorder, given_up):
    module = SimpleNamespace(gather=lambda value=None, tiled=False: ("gathered", tiled))
    hooks._wrap(module, "gather", int(Op.ALL_GATHER))
    assert module.gather(np.ones(4), tiled=True) == ("gathered", True)
    assert module.gather() == ("gathered", False)
    fields = ("op", "bytes_in", "bytes_out", "peer_or_root", "group_seq", "flags")
    blocked = int(Flag.HOST_BLOCKED)
    assert told(recorder, Kind.COLLECTIVE, *fields) == [
        (Op.ALL_GATHER, 32, 32, NO_PEER, 0, blocked), (Op.ALL_GATHER, 0, 0, NO_PEER, 1, blocked)
    ]  # fmt: skip
    ends = told(recorder, Kind.COLLECTIVE, "enter_ns", "exit_ns")
    assert all(enter_ns <= exit_ns for enter_ns, exit_ns in ends)
    (group,) = read_spool(recorder.spool.path).groups.values()
    assert (group["name"], group["ranks"], group["backend"]) == (GROUP, "0-2", "jax")
    hooks.disarm()
    module.gather()
    assert len(told(recorder, Kind.COLLECTIVE, "op")) == 2
    assert not given_up


def test_a_host_collective_that_raises_has_failed(hooks, recorder):
    module = SimpleNamespace(sync=lambda name: 1 / 0)
    hooks._wrap(module, "sync", int(Op.BARRIER))
    with pytest.raises(ZeroDivisionError):
        module.sync("all")
    ((flags, exit_ns),) = told(recorder, Kind.COLLECTIVE, "flags", "exit_ns")
    assert flags & Flag.FAILED
    assert exit_ns > 0


def test_an_end_or_a_compilation_that_cannot_be_recorded_is_ours_to_give_up(
    hooks, recorder, given_up, monkeypatch
):
    module = SimpleNamespace(sync=lambda name: name)
    hooks._wrap(module, "sync", int(Op.BARRIER))
    monkeypatch.setattr(recorder, "host_waited", lambda *_, **__: 1 / 0)
    assert module.sync("all") == "all"
    assert [type(error) for error in given_up] == [ZeroDivisionError]
    assert not hooks.armed
    hooks.armed = True
    monkeypatch.setattr(recorder.spool, "put", lambda *_, **__: 1 / 0)
    hooks._compiled(COMPILE, 1.0)
    assert len(given_up) == 2
    assert not hooks.armed


def test_removed_hooks_leave_jax_as_it_was(hooks, listeners, recorder):
    module = SimpleNamespace(sync=lambda name: name)
    original = module.sync
    hooks._wrap(module, "sync", int(Op.BARRIER))
    held = module.sync
    assert listeners
    hooks.remove()
    assert not listeners
    assert module.sync is original
    assert held("all") == "all"
    assert not told(recorder, Kind.COLLECTIVE, "op")
    assert read_spool(recorder.spool.path).facts["framework"] == LIMIT


def test_a_stack_is_ready_once_jax_is_initialized(jax, agent, recorder, monkeypatch):
    ready = []
    module = SimpleNamespace(initialize=lambda: "started")
    original = module.initialize
    monkeypatch.setitem(sys.modules, "jax.distributed", module)
    stack = JaxStack(jax)
    for _ in range(2):
        stack.arm(lambda: ready.append(1))
    assert module.initialize() == "started"
    assert ready == [1]
    stack.disarm()
    assert module.initialize is original
    assert isinstance(stack.hooks(agent), JaxHooks)
    assert read_spool(recorder.spool.path).facts["jax"] == {"jax": "0.10.2"}


def test_a_process_is_marked_as_long_as_it_meets_the_others(jax, tmp_path, monkeypatch):
    run, found = RunFolder(tmp_path), []
    monkeypatch.setenv("EVENSTEP_OUT", str(tmp_path))
    module = SimpleNamespace(initialize=lambda **_: found.append(run.meeting()))
    monkeypatch.setitem(sys.modules, "jax.distributed", module)
    stack = JaxStack(jax)
    stack.arm(lambda: None)
    module.initialize(coordinator_address="10.0.0.1:1", num_processes=3, process_id=1)
    (there,) = found
    assert (there.call, there.waiting, there.absent) == ("jax.distributed.initialize", [1], [0, 2])
    assert there.places == {"10.0.0.1:1": [1]}
    assert run.meeting() is None


@pytest.mark.parametrize(("client", "place"), [(None, None), (object(), (2, 3))])
def test_a_place_is_known_with_a_client(jax, monkeypatch, client, place):
    state = SimpleNamespace(client=client, process_id="2", num_processes="3")
    distributed = SimpleNamespace(global_state=state)
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "jax._src", SimpleNamespace(distributed=distributed))
    assert JaxStack(jax).place() == place
