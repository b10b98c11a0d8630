"""Sources compiled once: what is found, what is refused, and what is said where nothing can be."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import evenstep
from evenstep import compiled
from evenstep.compiled import LibrarySource, build, find

C = "long twice(long x) { return 2 * x; }\n"
CPP = '#include <atomic>\nextern "C" long twice(long x) { std::atomic<long> y{x}; return 2 * y; }\n'

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture
def environ(tmp_path):
    return {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "twice.c"
    path.write_text(C)
    return LibrarySource(path)


@pytest.fixture
def folder(environ):
    path = Path(environ["XDG_CACHE_HOME"]) / "evenstep"
    path.mkdir(parents=True, mode=0o700)
    return path


@needs_compiler
@pytest.mark.parametrize(("suffix", "text"), [(".c", C), (".cpp", CPP)])
def test_a_source_becomes_a_library_that_loads(tmp_path, environ, suffix, text):
    path = tmp_path / f"twice{suffix}"
    path.write_text(text)
    built = build(LibrarySource(path), environ)
    assert ctypes.CDLL(str(built.path)).twice(21) == 42
    assert built.reason == ""


@needs_compiler
def test_what_was_built_is_found_and_not_built_again(source, environ):
    first = build(source, environ)
    made = first.path.stat().st_mtime_ns
    assert build(source, environ) == first == find(source, environ)
    assert first.path.stat().st_mtime_ns == made
    assert list(first.path.parent.glob("*.so")) == [first.path]


def test_nothing_is_found_before_it_was_built(source, environ):
    assert find(source, environ) == (None, "twice.c has not been compiled for this machine")


@needs_compiler
@pytest.mark.parametrize(
    "other", [{"flags": ("-DX=1",)}, {"against": ("torch 2.13.0",)}], ids=["flags", "against"]
)
def test_other_flags_and_another_torch_are_another_library(source, environ, other):
    first = build(source, environ)
    second = LibrarySource(source.path, **other)
    assert find(second, environ).path is None
    assert build(second, environ).path != first.path


@needs_compiler
def test_another_text_is_another_library(source, environ):
    first = build(source, environ).path
    source.path.write_text(C.replace("2 * x", "3 * x"))
    assert ctypes.CDLL(str(build(source, environ).path)).twice(2) == 6
    assert ctypes.CDLL(str(first)).twice(2) == 4


@needs_compiler
def test_what_another_compiler_made_is_found_but_built_again(source, environ, tmp_path):
    first = build(source, environ).path
    wrapper = tmp_path / "mine"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("cc")} "$@"\n')
    wrapper.chmod(0o755)
    environ["CC"] = f"{wrapper} -g0"
    assert find(source, environ).path == first
    assert build(source, environ).path != first


def test_without_a_compiler_the_reason_names_where_it_was_looked_for(source, environ):
    environ["PATH"] = "/nonexistent"
    assert build(source, environ).reason == "there is no compiler: neither CC nor cc, gcc, clang"


@needs_compiler
def test_what_the_compiler_said_is_the_reason(source, environ):
    source.path.write_text("this is no C\n")
    built = build(source, environ)
    assert built.path is None
    assert "cannot compile twice.c" in built.reason
    assert "error:" in built.reason
    assert not list(Path(environ["XDG_CACHE_HOME"], "evenstep").glob("[!.]*"))


@needs_compiler
def test_a_compiler_that_never_ends_is_given_up(source, environ, tmp_path, monkeypatch):
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(compiled, "TIMEOUT_S", 0.2)
    assert "took more than" in build(source, environ | {"CC": str(slow)}).reason


@needs_compiler
def test_many_builders_at_once_leave_one_whole_library(source, environ):
    builders = [threading.Thread(target=build, args=(source, environ)) for _ in range(6)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
    found = find(source, environ).path
    assert list(found.parent.glob("*.so")) == [found]
    assert ctypes.CDLL(str(found)).twice(4) == 8


@needs_compiler
def test_a_library_that_others_can_write_is_refused(source, environ):
    path = build(source, environ).path
    path.chmod(0o722)
    assert "can be written by others" in find(source, environ).reason
    assert "can be written by others" in build(source, environ).reason


@needs_compiler
def test_a_planted_link_is_not_followed(source, environ, tmp_path):
    path = build(source, environ).path
    elsewhere = path.rename(tmp_path / "evil.so")
    path.symlink_to(elsewhere)
    assert "is not a file of its own" in find(source, environ).reason
    assert build(source, environ).path is None


def test_a_folder_that_others_can_write_is_left_for_the_next(source, environ, folder, monkeypatch):
    folder.chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(folder.parent))
    assert "can be written by others" in find(source, environ).reason


@needs_compiler
def test_without_a_writable_home_the_temporary_folder_serves(source, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "file").write_text("")
    environ = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path / "file")}
    path = build(source, environ).path
    assert path.parent == tmp_path / f"evenstep-{os.geteuid()}"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert find(source, environ).path == path


def test_the_wheel_carries_every_native_source(tmp_path):
    builder = pytest.importorskip("hatchling.builders.wheel")
    root = Path(evenstep.__file__).parents[2]
    shipped = {
        file.distribution_path for file in builder.WheelBuilder(str(root)).recurse_included_files()
    }
    sources = {
        str(path.relative_to(root / "src"))
        for suffix in ("c", "cpp", "h")
        for path in (root / "src").rglob(f"*.{suffix}")
    }
    assert sources
    assert sources <= shipped


def test_looking_for_a_library_starts_no_process(source, environ):
    code = (
        "import subprocess, sys; from pathlib import Path\n"
        "subprocess.Popen = None\n"
        "from evenstep.compiled import LibrarySource, find\n"
        "print(find(LibrarySource(Path(sys.argv[1]))).reason)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(source.path)],
        env=os.environ | environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "has not been compiled" in done.stdout
