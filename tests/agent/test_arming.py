"""The post-import hook and the bootstrap, on a fake `torch.distributed` and a fake agent."""

import gc
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from evenstep.agent import arming

SOURCE = Path(arming.__file__).parent
TRAIN = "import torch.distributed, sys; print('trains', torch.distributed.ready)"


def write(path, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def place(tmp_path):
    """A package with the real bootstrap and a fake agent, beside a fake torch."""
    agent = tmp_path / "package/evenstep/agent"
    agent.mkdir(parents=True)
    write(
        agent.parent / "__init__.py",
        "from evenstep.agent import arming\n"
        "def arm(stack):\n    from evenstep.attachment import agent\n    agent.arm(stack)\n"
        "arming.arm_when_asked(arm)",
    )
    write(agent.parent / "attachment/agent.py", "def arm(stack):\n    print('armed')\n")
    shutil.copy(SOURCE / "arming.py", agent)
    (agent / "bootstrap").mkdir()
    shutil.copy(SOURCE / "bootstrap/sitecustomize.py", agent / "bootstrap")
    write(tmp_path / "lib/torch/__init__.py")
    write(tmp_path / "lib/torch/distributed/__init__.py", "print('executed')\nready = True\n")
    return tmp_path


def python(place, *arguments, path=("lib",), enabled="1"):
    """Run Python under the bootstrap as `evenstep run` does; (standard output's lines, error)."""
    entries = ["package/evenstep/agent/bootstrap", *path]
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(place / entry) for entry in entries),
        "EVENSTEP": enabled,
    }
    done = subprocess.run(
        [sys.executable, *arguments], env=environ, capture_output=True, text=True, check=False
    )
    return done.stdout.split("\n")[:-1], done.stderr


def test_the_agent_is_called_once_right_after_the_import(place):
    assert python(place, "-c", TRAIN) == (["executed", "armed", "trains True"], "")


def test_a_process_that_never_imports_it_stays_as_it_was(place):
    script = "import sys; print([name for name in sys.modules if 'evenstep' in name])"
    assert python(place, "-c", script) == (["[]"], "")


def test_nothing_is_armed_without_being_asked(place):
    assert python(place, "-c", TRAIN, enabled="0") == (["executed", "trains True"], "")


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_isolating_options_keep_the_bootstrap_out(place, option):
    script = f"import sys; sys.path.insert(0, {str(place / 'lib')!r}); {TRAIN}"
    assert python(place, option, "-c", script) == (["executed", "trains True"], "")


def test_the_hook_takes_itself_out_and_leaves_the_module_untouched(place):
    script = (
        "import sys, torch.distributed as d\n"
        "print([f for f in sys.meta_path if getattr(f, 'awaited', '') == 'torch.distributed'])\n"
        "print(type(d.__loader__).__name__, d.__spec__.loader is d.__loader__)"
    )
    assert python(place, "-c", script)[0][2:] == ["[]", "SourceFileLoader True"]


def test_an_import_that_failed_may_be_tried_again(place):
    write(
        place / "lib/torch/distributed/__init__.py",
        "import builtins\nif not hasattr(builtins, 'again'):\n"
        "    builtins.again = 1\n    raise ImportError('no')\nready = True\n",
    )
    script = f"try:\n    import torch.distributed\nexcept ImportError: print('no')\n{TRAIN}"
    assert python(place, "-c", script) == (["no", "armed", "trains True"], "")


def test_an_agent_that_fails_costs_one_line_and_not_the_job(place):
    agent = place / "package/evenstep/attachment/agent.py"
    write(agent, "def arm(stack): raise OSError('no disk')")
    lines, error = python(place, "-c", TRAIN)
    assert lines == ["executed", "trains True"]
    assert error == "evenstep: not attached: OSError: no disk\n"


def test_our_package_is_loaded_without_becoming_importable_by_path(place):
    script = f"{TRAIN}\nprint(any(p.endswith('/package') for p in sys.path))"
    assert python(place, "-c", script)[0][-1] == "False"


def test_importing_evenstep_first_does_not_arm_twice(place):
    lines, _ = python(place, "-c", f"import evenstep\n{TRAIN}", path=("lib", "package"))
    assert lines == ["executed", "armed", "trains True"]


def test_importing_evenstep_after_torch_arms_at_once_without_the_bootstrap(place):
    environ = os.environ | {"EVENSTEP": "1", "PYTHONPATH": f"{place}/lib:{place}/package"}
    script = "import torch.distributed, evenstep; print('trains')"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["executed", "armed", "trains"]


def test_children_of_a_rank_are_reached_too(place):
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {TRAIN!r}])"
    assert python(place, "-c", script)[0] == ["executed", "armed", "trains True"]


def test_the_next_sitecustomize_runs_first_and_under_its_own_name(place):
    write(place / "site/sitecustomize.py", "import sys\nprint('site', __name__)\nmark = 1\n")
    script = f"import sitecustomize; print(sitecustomize.mark)\n{TRAIN}"
    lines, _ = python(place, "-c", script, path=("site", "lib"))
    assert lines == ["site sitecustomize", "1", "executed", "armed", "trains True"]


def test_changes_of_the_next_sitecustomize_to_the_path_stay(place):
    write(place / "site/sitecustomize.py", "import sys\nsys.path.append('/added')\n")
    script = "import sys; print('/added' in sys.path, sys.path[1].endswith('bootstrap'))"
    assert python(place, "-c", script, path=("site",)) == (["True True"], "")


def test_an_error_of_the_next_sitecustomize_is_reported_as_ever_and_we_arm(place):
    write(place / "site/sitecustomize.py", "raise RuntimeError('theirs')")
    lines, error = python(place, "-c", TRAIN, path=("site", "lib"))
    assert lines == ["executed", "armed", "trains True"]
    assert "RuntimeError: theirs" in error


def test_a_missing_part_of_us_never_stops_an_interpreter(place):
    (place / "package/evenstep/agent/arming.py").unlink()
    lines, error = python(place, "-c", TRAIN)
    assert lines == ["executed", "trains True"]
    assert error.startswith("evenstep: cannot start: ")


def test_the_bootstrap_folder_holds_nothing_else():
    names = {path.name for path in (SOURCE / "bootstrap").iterdir()} - {"__pycache__"}
    assert names == {"sitecustomize.py"}


def test_the_bootstrap_imports_nothing_an_interpreter_has_not_loaded(place):
    script = "import sys; print(sorted(sys.modules))"
    with_us, _ = python(place, "-c", script)
    without, _ = python(place, "-E", "-c", script)
    assert set(eval(with_us[0])) - set(eval(without[0])) <= {"__future__", "sitecustomize"}


def test_an_action_is_called_at_once_for_a_module_that_is_there():
    called = []
    arming.arm(lambda: called.append(1), target="json")
    assert called == [1]


def test_waiting_twice_for_one_module_puts_one_finder_in_place(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = len(sys.meta_path)
    arming.arm(print, target="no.such.module")
    arming.arm(print, target="no.such.module")
    assert len(sys.meta_path) == before + 1


def test_an_action_may_stop_the_waiting_that_called_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    (tmp_path / "awaited_once.py").write_text("VALUE = 1\n")
    arming.arm(lambda: arming.disarm("awaited_once"), target="awaited_once")
    assert importlib.import_module("awaited_once").VALUE == 1


def test_after_a_detach_no_import_attaches_again(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    arming.arm(print, target="no.such.module")
    arming.arm(print, target="mpi4py.no_such")
    monkeypatch.setattr(arming, "OTHER_TARGETS", {"mpi4py.no_such": "mpi"})
    arming.disarm_all()
    awaited = {getattr(finder, "awaited", None) for finder in sys.meta_path}
    assert "no.such.module" in awaited
    assert not awaited & {"torch", "torch.distributed", "mpi4py.no_such"}


@pytest.mark.parametrize("fires", [False, True])
def test_who_is_asking_the_finders_misses_none_when_ours_goes(fires, monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    others = list(sys.meta_path)
    arming.arm(lambda: None, target="nobody.imports.this")
    ours = sys.meta_path[0]
    asking = iter(sys.meta_path)
    assert next(asking) is ours
    ours._fire() if fires else arming.disarm("nobody.imports.this")
    assert list(asking) == sys.meta_path == others


def test_a_loader_is_wrapped_if_it_executes_modules(monkeypatch):
    for loader in (SimpleNamespace(exec_module=print), SimpleNamespace(load_module=print)):
        found = SimpleNamespace(loader=loader)
        other = SimpleNamespace(find_spec=lambda *_, found=found: found)
        monkeypatch.setattr(sys, "meta_path", [other])
        arming.ArmingFinder("awaited", print).find_spec("awaited")
        assert (found.loader is loader) == hasattr(loader, "load_module")


@pytest.mark.parametrize("collects", [True, False])
def test_nothing_is_collected_while_it_arms_and_the_script_finds_its_collector_as_it_was(collects):
    seen = []
    try:
        (gc.enable if collects else gc.disable)()
        assert arming.call_without_collector(lambda: seen.append(gc.isenabled())) is None
        with pytest.raises(ZeroDivisionError):
            arming.call_without_collector(lambda: 1 / 0)
        assert (seen, gc.isenabled()) == ([False], collects)
    finally:
        gc.enable()
