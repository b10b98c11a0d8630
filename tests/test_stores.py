"""A second client of a job's store, with stores that can be cloned and with older ones."""

from datetime import timedelta

import pytest

from evenstep.stores import second_client

torch = pytest.importorskip("torch")
from torch.distributed import FileStore, PrefixStore, TCPStore  # noqa: E402


class OldTcp:
    """What a TCPStore of torch 2.6 has: no `clone`, and where its server is."""

    def __init__(self, host, port, wait_for_workers=True):
        assert not wait_for_workers  # a second client is no rank
        self.host, self.port = host, port


class OldPrefix:
    def __init__(self, underlying):
        self.underlying_store = underlying


class OldFile:
    def __init__(self, path):
        self.path = path


def tcp():
    return TCPStore("localhost", 0, is_master=True, wait_for_workers=False)


@pytest.mark.parametrize("kind", ["tcp", "prefix", "file"])
def test_what_one_second_client_writes_another_reads(kind, tmp_path):
    base = FileStore(str(tmp_path / "store"), 1) if kind == "file" else tcp()
    first = PrefixStore("group", base) if kind == "prefix" else base
    second = second_client(first)
    other = second_client(second)
    second.set_timeout(timedelta(seconds=5))
    other.set("key", "value")
    assert second.get("key") == b"value"


def test_an_old_store_behind_prefixes_is_connected_to_once_more():
    first = OldTcp("somewhere", 29500, wait_for_workers=False)
    second = second_client(OldPrefix(OldPrefix(first)))
    assert second is not first
    assert (second.host, second.port) == ("somewhere", 29500)


def test_an_old_file_is_opened_again():
    assert second_client(OldFile("/tmp/store")).path == "/tmp/store"


def test_a_store_of_another_kind_has_no_second_client():
    with pytest.raises(AttributeError):
        second_client(object())
