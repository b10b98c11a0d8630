"""Files that appear whole, and files that are read only where they are ours."""

import os
from contextlib import suppress

import pytest

from evenstep.errors import SpoolError
from evenstep.trace.spool.files import appearing, claim, read_own, write_whole


def test_a_file_appears_whole_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "file"
    for text in ("one", "two"):
        write_whole(path, text)
        assert path.read_text() == text
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_name_that_is_taken_stays_unless_it_may_be_replaced(tmp_path):
    path = tmp_path / "file"
    write_whole(path, b"one", replace=False)
    with pytest.raises(FileExistsError):
        write_whole(path, b"two", replace=False)
    assert path.read_bytes() == b"one"
    assert len(list(tmp_path.iterdir())) == 1


def test_without_hard_links_a_name_is_taken_all_the_same(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(1, "not permitted")

    monkeypatch.setattr(os, "link", refuse)
    test_a_name_that_is_taken_stays_unless_it_may_be_replaced(tmp_path)


def test_what_is_broken_off_never_appears(tmp_path):
    with suppress(KeyError), appearing(tmp_path / "file") as file:
        file.write(b"half")
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_a_link_in_a_files_place_is_replaced_and_not_written_through(tmp_path):
    target = tmp_path / "target"
    target.write_text("mine")
    (tmp_path / "file").symlink_to(target)
    write_whole(tmp_path / "file", "new")
    assert (target.read_text(), (tmp_path / "file").read_text()) == ("mine", "new")


def test_scratch_names_cannot_be_guessed(tmp_path):
    with appearing(tmp_path / "file") as one, appearing(tmp_path / "file") as other:
        assert one.fileno() != other.fileno()
        assert len({each.name for each in tmp_path.iterdir()}) == 2


def test_one_claims_a_name_in_a_folder_that_is_made_for_it(tmp_path):
    folder = tmp_path / "run" / "attempt"
    first, again, other = (claim(folder / name) for name in ("one", "one", "two"))
    assert first is not None
    assert again is None
    assert other not in (None, first)
    for descriptor in (first, other):
        os.close(descriptor)
    with pytest.raises(SpoolError, match="cannot create"):
        claim(folder)
    with pytest.raises(SpoolError, match="writable folder"):
        claim(folder / "one" / "two")


def test_only_a_plain_file_of_ones_own_is_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345678")
    assert read_own(path, 8) == b"12345678"
    with pytest.raises(OSError, match="more than 7 bytes"):
        read_own(path, 7)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(path)
    for name in ("pipe", "link", "."):
        with pytest.raises(OSError, match=r"plain file|symbolic links"):
            read_own(tmp_path / name, 8)
    path.chmod(0o666)
    with pytest.raises(PermissionError, match="everybody can write it"):
        read_own(path, 8)
