"""Who may import whom, and what may live in a training process."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import evenstep
from tests.sources import nodes

ROOT = Path(evenstep.__file__).parent

#: docs/design.md, "Packages and the direction of imports". A package may always import itself.
MAY_IMPORT = {
    "errors": set(),
    "allreduce": {"errors"},
    "checkpoints": {"errors"},
    "documents": set(),
    "version": set(),
    "stores": set(),
    "values": {"errors"},
    "compiled": {"errors"},
    "lateness": set(),
    "words": {"errors", "trace"},
    "statistics": {"errors"},
    "trace": {"errors"},
    "pacing": {"errors"},
    "scenario": {"documents", "errors", "values", "words", "trace", "pacing"},
    "workers": {"errors"},
    "host": {"errors", "trace"},
    "agent": {
        "errors",
        "lateness",
        "values",
        "trace",
        "pacing",
        "host",
        "hooks",
        "attachment",
        "probe",
    },
    "hooks": {"errors", "compiled", "trace", "pacing", "host", "agent", "attachment", "stores"},
    "attachment": {"errors", "trace", "pacing", "host", "agent", "hooks"},
    "frameworks": {"errors", "trace", "agent", "hooks", "attachment"},
    "importers": {"allreduce", "errors", "values", "trace"},
    "diagnose": {
        "allreduce",
        "checkpoints",
        "documents",
        "errors",
        "statistics",
        "trace",
        "values",
        "words",
    },
    "simulate": {
        "allreduce",
        "checkpoints",
        "compiled",
        "documents",
        "errors",
        "words",
        "statistics",
        "trace",
        "pacing",
        "scenario",
        "workers",
        "report",
    },
    "report": {
        "allreduce",
        "documents",
        "errors",
        "scenario",
        "words",
        "statistics",
        "trace",
        "diagnose",
        "simulate",
        "reproduce",
    },
    "export": {"documents", "errors", "words", "trace", "diagnose", "report"},
    "watch": {"errors", "documents", "lateness", "words", "trace", "diagnose", "report"},
    "explain": {"allreduce", "checkpoints", "errors", "words", "trace", "simulate", "reproduce"},
    "reproduce": {
        "allreduce",
        "checkpoints",
        "documents",
        "errors",
        "words",
        "statistics",
        "trace",
        "pacing",
        "scenario",
        "simulate",
        "explain",
    },
    "doctor": {
        "errors",
        "documents",
        "compiled",
        "trace",
        "agent",
        "host",
        "importers",
        "report",
        "words",
    },
    "probe": {
        "stores",
        "allreduce",
        "errors",
        "documents",
        "words",
        "statistics",
        "trace",
        "host",
        "simulate",
        "scenario",
        "report",
    },
}
#: These sit on top of everything.
TOP = {"cli", "__init__", "__main__", "run"}
#: Modules a rank imports: standard library only. Of `trace`, only the writing side.
LIVE = {
    "version",
    "agent",
    "attachment",
    "compiled",
    "errors",
    "frameworks",
    "hooks",
    "host",
    "lateness",
    "pacing",
    "stores",
    "values",
    "__init__",
}

#: Of the probe, what runs inside a job.
IN_JOB = {ROOT / "probe" / "kernels.py"}
SOURCES = sorted(ROOT.rglob("*.py"))


def package_of(path):
    """The part of evenstep a file belongs to: `trace`, `errors`, `__init__`…"""
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imported(path):
    """Parts of evenstep that a file imports, anywhere in it, for types too."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are written in full"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            if top == "evenstep" and rest:
                yield rest.partition(".")[0]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_in_the_direction_of_the_design(path):
    package = package_of(path)
    if package in TOP:
        return
    known = set(MAY_IMPORT) | TOP
    wrong = (set(imported(path)) & known) - MAY_IMPORT[package] - {package, "version"}
    assert not wrong, f"{package} must not import {sorted(wrong)}"


def test_every_package_has_its_place_in_the_law():
    assert {package_of(path) for path in SOURCES} <= set(MAY_IMPORT) | TOP


def module_name(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def live_modules():
    """Modules that may be imported inside a training process."""
    for path in SOURCES:
        package = package_of(path)
        live = package in LIVE or path.parent == ROOT / "trace" / "spool" or path in IN_JOB
        if live and path.name != "sitecustomize.py":
            yield module_name(path)


BLOCKED = ("numpy", "duckdb", "rich", "jinja2", "torch", "hypothesis", "msgspec")
IMPORT_ALL = f"""
import importlib, sys
for name in {BLOCKED}:
    sys.modules[name] = None
before = set(sys.modules)
for name in sys.argv[1:]:
    importlib.import_module(name)
new = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(sorted(new - sys.stdlib_module_names - {{"evenstep"}}))
"""


def test_what_lives_in_a_training_process_needs_the_standard_library_only():
    environ = os.environ | {"PYTHONPATH": str(ROOT.parent), "EVENSTEP": "0"}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *live_modules()],
        env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("[]\n", "")
