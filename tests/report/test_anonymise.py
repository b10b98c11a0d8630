"""Nothing private is left in what is made of an anonymised trace, and no number has changed."""

import base64
import gzip
import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.export.anonymise import anonymise_trace, scrubber
from evenstep.export.perfetto.document import encode
from evenstep.report.page import html
from evenstep.report.terminal import brief
from evenstep.trace.spool.layout import Phase
from tests.diagnose.synthetic import MS, World

HOSTS = ("gpu-a17.hpc.acme.example", "gpu-b03.hpc.acme.example")
PRIVATE = ("gpu-a17", "gpu-b03", "acme", "mallory", "/scratch", "secret_model", "10.1.2.3")
FOLDER = "/scratch/mallory/runs/secret_model-7"


@pytest.fixture(scope="module")
def trace():
    made = World(ranks=4, ranks_per_node=2).slow(3, Phase.BACKWARD, 20 * MS).trace()
    ranks = {
        rank: replace(info, identity={**info.identity, "hostname": HOSTS[rank // 2]})
        for rank, info in made.ranks.items()
    }
    run = {
        "run_id": "secret_model-7", "command": ["python", "/home/mallory/secret_model.py"],
        "cwd": FOLDER, "hostname": HOSTS[0], "environment": {"MASTER_ADDR": "10.1.2.3"},
        "log": {"note": f"written by mallory on {HOSTS[1]} into {FOLDER}/out.log"},
    }  # fmt: skip
    limits = [f"{FOLDER}/attempt-000/rank-00009.spool is cut short", "GPU-A17 answered late"]
    return replace(made, ranks=ranks, run=run, limits=limits)


@pytest.fixture(scope="module")
def hidden(trace):
    found, scrub = anonymise_trace(trace, [Path(FOLDER)])
    return found, scrub.value(diagnose(found))


@pytest.mark.parametrize("word", PRIVATE)
def test_no_private_word_is_left_in_a_diagnosis(hidden, word):
    assert word not in json.dumps(hidden[1].to_json()).lower()


@pytest.mark.parametrize("word", PRIVATE)
def test_no_private_word_is_left_in_a_timeline(hidden, word):
    assert word.encode() not in encode(*hidden)[0].lower()


def test_no_private_word_is_left_in_a_page_or_markdown(hidden):
    trace, diagnosis = hidden
    page = html.render(diagnosis, trace)
    packed = gzip.decompress(base64.b64decode(re.findall(r'id="columns">([^<]+)<', page)[0]))
    for text in (
        page.lower(),
        packed.decode("latin-1").lower(),
        brief.markdown(diagnosis).lower(),
    ):
        assert [word for word in PRIVATE if word in text] == []
    assert "node-1" in page
    assert "rank 3" in page


@pytest.mark.parametrize("word", PRIVATE)
def test_no_private_word_is_left_in_the_ranks(hidden, word):
    assert word not in str([asdict(info) for info in hidden[0].ranks.values()]).lower()


def test_the_findings_are_the_same_but_for_the_names(trace, hidden):
    openly, secretly = diagnose(trace), hidden[1]
    assert [f.severity for f in openly.findings] == [f.severity for f in secretly.findings]
    assert openly.findings[0].where.nodes == [HOSTS[1]]
    assert secretly.findings[0].where.nodes == ["node-1"]
    assert "node-1" in secretly.findings[0].cause


def test_ranks_of_one_host_stay_together(trace, hidden):
    assert [info.node for info in hidden[0].ranks.values()] == ["node-0"] * 2 + ["node-1"] * 2
    clocks = {info.clock for info in hidden[0].ranks.values()}
    assert len(clocks) == len({info.clock for info in trace.ranks.values()})


def test_the_records_are_untouched(trace, hidden):
    for name in ("enter_ns", "exit_ns", "bytes_in"):
        assert np.array_equal(trace.events[name], hidden[0].events[name])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4,130 samples/s on 8 GPUs/node", "4,130 samples/s on 8 GPUs/node"),
        ("see /etc/hosts, please", "see (path), please"),
        ("~/runs/x and ../y.txt", "(path) and (path)"),
        (r"C:\Users\x\run.bat", "(path)"),
        ("https://host.example/x?y=1 is down", "(path) is down"),
        ("10.0.0.12 and fe80:0:0:0:1:2:3:4", "(address) and (address)"),
        ("[fe80::1ff:fe23:4567:890a%eth0]:29500, 2001:db8::5", "[(address)%eth0]:29500, (address)"),
        (
            "at 12:30:45 in std::vector of 0000:3b:00.0",
            "at 12:30:45 in std::vector of 0000:3b:00.0",
        ),
        ("rank-00001.spool is damaged", "(path) is damaged"),
        ("someone@example.org", "(address)"),
        ("step 12/40 took 1.2.3", "step 12/40 took 1.2.3"),
    ],
)
def test_paths_and_addresses_are_found_by_their_form(trace, text, expected):
    assert scrubber(trace).text(text) == expected


def test_a_name_inside_a_longer_word_is_left_alone(trace):
    run = {**trace.run, "environment": {"USER": "al"}}
    scrub = scrubber(replace(trace, run=run))
    assert scrub.text("al called all_reduce") == "(user) called all_reduce"
