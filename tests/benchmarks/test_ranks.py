import pytest

from benchmarks import __main__ as command
from benchmarks.import_cost import foreign_modules
from benchmarks.ranks import JobError, environment, last_object, place, run_ranks


def test_the_result_is_the_last_object_said() -> None:
    assert last_object('noise\n{"a": 1}\n{"a": 2}\nwarning\n') == {"a": 2}


def test_a_job_without_a_result_shows_what_it_said() -> None:
    with pytest.raises(JobError, match="only words"):
        last_object("only words")


def test_a_launchers_variables_do_not_reach_what_is_measured(monkeypatch) -> None:
    monkeypatch.setenv("EVENSTEP_OUT", "somewhere")
    monkeypatch.setenv("RANK", "3")
    found = environment()
    assert "EVENSTEP_OUT" not in found
    assert "RANK" not in found


def test_every_rank_is_told_its_place() -> None:
    assert place(1, 4, 99)["RANK"] == "1"
    assert place(1, 4, 99)["WORLD_SIZE"] == "4"


def test_a_rank_that_fails_ends_the_job_with_its_words() -> None:
    with pytest.raises(JobError, match="no_such_job"):
        run_ranks("benchmarks.no_such_job", world=2, timeout_s=60)


def test_only_foreign_packages_are_foreign() -> None:
    names = ["json", "json.decoder", "evenstep.agent", "torch.library", "numpy.linalg", "rich"]
    assert foreign_modules(names) == ["numpy", "rich"]


@pytest.mark.parametrize(
    ("argv", "own", "rest"),
    [
        (["waits", "--steps", "9"], ["waits"], ["--steps", "9"]),
        (["--write", "waits", "memory"], ["--write", "waits", "memory"], []),
        (["waits", "--write"], ["--write", "waits"], []),
        (["--help"], ["--help"], []),
        ([], [], []),
    ],
)
def test_what_follows_a_name_is_its_own(argv, own, rest) -> None:
    assert command._split(argv) == (own, rest)
