"""The frames of a thread, whatever the version of Python."""

import copy
import gc
import subprocess
import sys
import threading

import pytest

from evenstep.agent.pulse.frames import DEEPEST, first_outside, frames_of_errors, frames_of_thread


@pytest.mark.parametrize("version", [(3, 11, 8), (3, 11, 9), (3, 12, 0)])
@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_collected_under_the_lock_of_the_list_of_threads(
    monkeypatch, version, collects
):
    """Where Python would collect there; whether the job lets it collect does not change."""
    seen = []
    frames = {7: sys._getframe()}
    monkeypatch.setattr(sys, "version_info", version)
    monkeypatch.setattr(sys, "_current_frames", lambda: seen.append(gc.isenabled()) or frames)
    (gc.enable if collects else gc.disable)()
    try:
        assert "test_no_garbage" in frames_of_thread(7)[0]
        assert gc.isenabled() == collects
    finally:
        gc.enable()
    assert seen == [collects and version >= (3, 12)]


def test_a_list_of_threads_that_cannot_be_had_leaves_the_collector_on(monkeypatch):
    def fails():
        raise MemoryError

    monkeypatch.setattr(sys, "version_info", (3, 11, 8))
    monkeypatch.setattr(sys, "_current_frames", fails)
    with pytest.raises(MemoryError):
        frames_of_thread(7)
    assert gc.isenabled()


def test_the_script_is_named_however_deep_in_a_library_an_exception_was_raised():
    nested = [threading.Lock()]  # which copy.py refuses, two frames further in for each list
    for _ in range(DEEPEST):
        nested = [nested]
    with pytest.raises(TypeError) as raised:
        copy.deepcopy(nested)
    *library, script = frames_of_errors([raised.value], "")
    assert all("copy.py>:" in frame for frame in library)
    assert script.startswith("tests/agent/test_frames.py:")


def test_the_script_is_named_however_deep_in_a_library_a_thread_is():
    """As in a compiler that calls itself hundreds of times."""
    called = {"look": frames_of_thread, "ident": threading.get_ident()}
    text = "def call(depth): return call(depth - 1) if depth else look(ident)"
    exec(compile(text, copy.__file__, "exec"), called)
    *library, script = called["call"](20 * DEEPEST)
    assert len(library) == DEEPEST
    assert all("copy.py>:" in frame for frame in library)
    assert script.startswith("tests/agent/test_frames.py:")


def passed_on():
    try:
        copy.copy(threading.Lock())
    except TypeError as refused:
        came_through = refused.__traceback__
        refused.__traceback__ = came_through and came_through.tb_next  # and no further
        raise ValueError("passed on") from refused


def test_the_script_is_named_where_a_library_raises_one_exception_from_another():
    with pytest.raises(ValueError, match="passed on") as raised:
        passed_on()
    assert raised.value.__cause__ is not None
    frames = frames_of_errors([raised.value.__cause__, raised.value], "")
    assert "copy.py>:" in frames[0]
    script = next(frame for frame in frames if not frame.startswith("<"))
    assert script.startswith("tests/agent/test_frames.py:")
    assert script.endswith(" passed_on")


RACE = """
import gc, sys, threading, time
from evenstep.agent.pulse.frames import frames_of_thread

def make(locals):  # functions with frames of different sizes, so that one is not taken for another
    lines = "".join(f"    v{i} = {i}.5\\n" for i in range(locals))
    last = f"    return fs[(7 * n + {locals}) % len(fs)](n - 1) if n else 0"
    exec(f"def f{locals}(n):\\n{lines}{last}", globals())
    return globals()[f"f{locals}"]

fs = [make(locals) for locals in range(1, 14)]

def work():
    step = 0
    while running:
        fs[step % 13](5 + step % 20)
        step += 1

running = True
thread = threading.Thread(target=work)
thread.start()
gc.callbacks.append(lambda phase, info: time.sleep(1e-5))  # another thread runs meanwhile
gc.set_threshold(1)
sys.setswitchinterval(5e-4)  # after each of them this thread need not wait long for its turn
try:
    for _ in range(100):
        frames_of_thread(thread.ident)
finally:
    running = False
    gc.set_threshold(0)
"""


def test_a_thread_that_runs_on_is_read_while_another_collects_garbage():
    """With the frames read one by one Python 3.11 read freed memory in 3 of 70 looks."""
    subprocess.run([sys.executable, "-c", RACE], check=True, timeout=600)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_torch_wraps_its_functions_in_is_not_the_scripts():
    @pytest.importorskip("typing_extensions").deprecated("as torch 2.13 marks functions")
    def renamed(call):
        return call()

    place = renamed(lambda: first_outside(sys._getframe().f_back.f_back, "/torch"))
    assert place.endswith("test_what_torch_wraps_its_functions_in_is_not_the_scripts")
    with pytest.raises(ZeroDivisionError) as raised:
        renamed(lambda: 1 / 0)
    found = frames_of_errors([raised.value], "")
    [wrapper] = [text for text in found if text.endswith(" wrapper")]
    assert wrapper.startswith("<")


def test_a_script_that_is_no_file_has_its_place():
    scope = {}
    exec("def script(call):\n    return call()", scope)
    place = scope["script"](lambda: first_outside(sys._getframe().f_back, "/torch"))
    assert place == "<string>:2 script"


def test_a_package_has_its_whole_path_and_the_script_that_called_it_however_deep():
    """Of a framework's loop deeper than the frames that are kept."""
    called = {"look": frames_of_thread, "ident": threading.get_ident()}
    text = "def call(depth): return call(depth - 1) if depth else look(ident)"
    file = "/opt/lib/python3/site-packages/peft/tuners/lora/layer.py"
    exec(compile(text, file, "exec"), called)
    *package, script = called["call"](20 * DEEPEST)
    assert set(package) == {"site-packages/peft/tuners/lora/layer.py:1 call"}
    assert script.startswith("tests/agent/test_frames.py:")


WAITS = """
import sys, threading, time
from evenstep.agent.pulse.frames import frames_of_thread

def look(ident):
    while True:
        frame = sys._current_frames()[ident]
        while frame.f_back:
            frame = frame.f_back
        if frame.f_code is threading._shutdown.__code__:
            return print(frames_of_thread(ident))
        time.sleep(0.01)

threading.Thread(target=look, args=(threading.get_ident(),)).start()
"""


def test_a_script_that_has_ended_and_waits_for_its_threads_is_nowhere():
    found = subprocess.run([sys.executable, "-c", WAITS], check=True, timeout=600, stdout=-1)
    assert found.stdout == b"[]\n"


@pytest.mark.parametrize(("last", "line"), [("leave()", 8), ("pass", 9)])
def test_of_a_script_that_is_over_the_last_line_of_its_module_is_known(tmp_path, last, line):
    """As of a bare `raise SystemExit`; while it runs there is none."""
    script = tmp_path / "train.py"
    script.write_text(f"""import atexit
from evenstep.agent.pulse.frames import ScriptEnd
def leave():
    raise SystemExit
end = ScriptEnd()
assert end.frames() == []
atexit.register(lambda: print(*end.frames()))
{last}
assert end.frames() == []
""")
    told = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert told.stdout.strip().endswith(f"/train.py:{line} <module>")
