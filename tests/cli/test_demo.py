"""Parts of `evenstep demo` without its jobs."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from evenstep.cli import demo


@pytest.mark.parametrize(("code", "fails"), [(0, False), (1, False), (2, True), (-9, True)])
def test_a_page_with_findings_is_a_page_and_one_that_failed_is_none(
    monkeypatch, tmp_path, capsys, code, fails
):
    monkeypatch.setattr(
        demo.subprocess, "run", lambda command, **_: SimpleNamespace(returncode=code)
    )
    if fails:
        with pytest.raises(subprocess.CalledProcessError) as raised:
            demo._write_report(tmp_path)
        assert raised.value.returncode == code
    else:
        assert demo._write_report(tmp_path) == tmp_path / "report.html"
    assert capsys.readouterr().out.startswith("\n$ evenstep diagnose")


def test_what_is_printed_within_goes_to_standard_error_and_what_was_before_does_not():
    """Also what was not flushed, and what a child prints."""
    script = (
        "import os, sys\n"
        "from evenstep.cli.demo import _output_to_stderr\n"
        "print('before')\n"
        "with _output_to_stderr():\n"
        "    print('within')\n"
        "    os.system('echo child')\n"
        "print('after')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "before\nafter\n"
    assert sorted(done.stderr.split()) == ["child", "within"]
