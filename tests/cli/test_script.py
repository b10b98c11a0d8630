"""`python -m evenstep.run`: a script as if Python itself had been given it."""

import subprocess
import sys

import pytest


@pytest.fixture
def observed(environ, tmp_path):
    """Run `python -m evenstep.run …`; the finished process."""

    def run(*arguments, **variables):
        return subprocess.run(
            [sys.executable, "-m", "evenstep.run", *arguments], cwd=tmp_path,
            env=environ | variables, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


@pytest.fixture
def script(tmp_path):
    """A script in a folder of its own, with a neighbour to import."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src/neighbour.py").write_text("")
    path = tmp_path / "src/train.py"
    path.write_text(
        "import neighbour, sys\nif __name__ == '__main__': print(sys.argv, __file__)\n"
        "print(type(sys.meta_path[0]).__name__)\nsys.exit(5)\n"
    )
    return path


def test_a_script_sees_its_own_arguments_folder_and_exit_code(observed, script):
    done = observed("src/train.py", "--lr", "1")
    assert done.stdout == "['src/train.py', '--lr', '1'] src/train.py\nArmingFinder\n"
    assert (done.returncode, done.stderr) == (5, "")


def test_a_module_can_be_run_as_well(observed, script, tmp_path):
    script.rename(tmp_path / "train.py")
    (tmp_path / "neighbour.py").write_text("")
    done = observed("-m", "train", "x")
    assert done.stdout.startswith(f"['{tmp_path / 'train.py'}', 'x']")
    assert done.returncode == 5


def test_the_kill_switch_holds(observed, script):
    assert "ArmingFinder" not in observed("src/train.py", EVENSTEP="0").stdout


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_without_a_script_it_says_how_to_use_it(observed, arguments):
    done = observed(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: python -m evenstep.run")


@pytest.mark.parametrize("safe", ["", "1"])  # the variable is of Python 3.11
def test_a_script_imports_from_where_it_would_without_us(observed, environ, tmp_path, safe):
    (tmp_path / "path.py").write_text("import sys\nprint(sys.path)\n")
    plain = subprocess.run(
        [sys.executable, "path.py"], cwd=tmp_path, env=environ | {"PYTHONSAFEPATH": safe},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert observed("path.py", PYTHONSAFEPATH=safe).stdout == plain.stdout


def test_a_script_that_is_not_there_is_named(observed):
    done = observed("none.py")
    assert done.returncode == 2
    assert "no script 'none.py'" in done.stderr
