"""NCCL's own service, played by a server of ours that speaks the documented lines."""

import json
import socket
import threading
from types import SimpleNamespace

import pytest

from evenstep.host.sources.nccl_ras import NcclRas, RasError, address, ask, summarize
from evenstep.host.sources.source import SourceUnavailable

WELL = {"init_state": 0, "async_error": 0, "abort_flag": False}


def rank(number, *, calls=12, **status):
    return {
        "rank": number, "host": "gpu012", "pid": 7, "status": WELL | status,
        "collective_counts": {"AllReduce": calls, "Broadcast": 1},
    }  # fmt: skip


HEALTHY = {"nccl_version": "2.28.3", "communicators": [{"size": 2, "ranks": [rank(0), rank(1)]}]}


class Service(threading.Thread):
    """Answers each client as NCCL does: a line for a line, the status, and then the end."""

    def __init__(self, status, replies=()):
        super().__init__(daemon=True)
        self.status, self.replies, self.heard = status, dict(replies), []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.place = self._listener.getsockname()

    def run(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, client.makefile("rwb") as stream:
                for line in stream:
                    word = line.decode().strip()
                    self.heard.append(word)
                    if word.endswith("STATUS"):
                        stream.write(self.status)
                        break
                    usual = "SERVER PROTOCOL 2" if word.startswith("CLIENT") else "OK"
                    stream.write(self.replies.get(word, usual).encode() + b"\n")
                    stream.flush()

    def close(self):
        self._listener.close()


@pytest.fixture
def serve():
    services = []

    def start(status, replies=()):
        text = status if isinstance(status, bytes) else json.dumps(status).encode()
        services.append(Service(text, replies))
        services[-1].start()
        return services[-1]

    yield start
    for service in services:
        service.close()


def test_the_conversation_is_that_of_the_protocol(serve):
    service = serve(HEALTHY)
    assert ask(service.place)["nccl_version"] == "2.28.3"
    assert service.heard == [
        "CLIENT PROTOCOL 2", "TIMEOUT 2", "SET FORMAT json", "VERBOSE STATUS",
    ]  # fmt: skip


def test_an_nccl_that_knows_no_json_is_one_sentence(serve):
    service = serve(HEALTHY, {"SET FORMAT json": "ERROR: Unknown command"})
    with pytest.raises(RasError, match="SET FORMAT json"):
        ask(service.place)


@pytest.mark.parametrize("answer", [b"", b"{", b"[1]", b"\xff"])
def test_an_answer_that_is_none_is_one_sentence(serve, answer):
    with pytest.raises(RasError):
        ask(serve(answer).place)


def test_nobody_there_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        place = closed.getsockname()
    with pytest.raises(RasError, match="refused"):
        ask(place)


def test_a_healthy_job_has_nothing_to_say():
    found = summarize(HEALTHY)
    assert (found.communicators, found.ranks, found.in_words()) == (1, 2, "")


def test_who_is_missing_fails_or_is_behind_is_named():
    ranks = [rank(0), rank(1, calls=9), rank(2, async_error=6)]
    missing = [{"rank": 3, "host": "gpu013"}]
    found = summarize({"communicators": [{"ranks": ranks, "missing_ranks": missing}]})
    assert found.missing == ("rank 3 on gpu013",)
    assert found.failing == ("rank 2 on gpu012",)
    assert found.behind == ("rank 1 on gpu012: 9 AllReduce of 12",)
    assert found.in_words() == "rank 3 on gpu013 does not answer; rank 2 on gpu012 fails"


def test_what_is_in_progress_does_not_fail():
    assert not summarize({"communicators": [{"ranks": [rank(0, init_state=7)]}]}).failing


@pytest.mark.parametrize("status", [{}, {"communicators": None}, {"communicators": [1, {}]}])
def test_what_is_not_said_is_well(status):
    assert summarize(status).in_words() == ""


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({}, ("localhost", 28028)),
        ({"NCCL_RAS_ADDR": "10.0.0.1:9"}, ("10.0.0.1", 9)),
        ({"NCCL_RAS_ADDR": "[::1]:9"}, ("::1", 9)),
    ],
)
def test_where_it_listens(given, place):
    assert address(given) == place


@pytest.fixture
def on_cuda(monkeypatch):
    cuda = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True))
    monkeypatch.setitem(__import__("sys").modules, "torch", cuda)


def test_one_process_of_a_node_samples_it(serve, on_cuda):
    host, port = serve(HEALTHY).place
    source = NcclRas({"NCCL_RAS_ADDR": f"{host}:{port}", "LOCAL_RANK": "0"})
    source.open()
    assert {name: value for name, _, value in source.read()} == {
        "nccl.ranks_missing_count": 0, "nccl.ranks_failing_count": 0, "nccl.ranks_behind_count": 0,
    }  # fmt: skip
    assert source.read() == []  # asked rarely


@pytest.mark.parametrize("environ", [{"LOCAL_RANK": "1"}, {"NCCL_RAS_ENABLE": "0"}])
def test_the_others_do_not_ask(environ, on_cuda):
    with pytest.raises(SourceUnavailable) as refused:
        NcclRas(environ).open()
    assert not refused.value.may_come


@pytest.mark.parametrize("local", ["0", "1"])  # one reason of all ranks is one limit
def test_a_job_without_cuda_is_not_asked_about(local):
    with pytest.raises(SourceUnavailable, match="CUDA"):
        NcclRas({"LOCAL_RANK": local}).open()
