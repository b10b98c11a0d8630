"""Hostile inputs for everything that reads what others may have written: a few of many."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.errors import EvenstepError, TraceError
from evenstep.importers.opening import load
from evenstep.trace.reader import read_spool
from evenstep.trace.spool.layout import HEADER, HEADER_TEXT_OFFSET
from tests.fuzz.subjects import BY_NAME
from tests.trace.small_run import write_run

ROOT = Path(__file__).parents[2]
INPUTS = 1_500


def test_no_input_brings_a_reader_down():
    """Numbered: `python -m tests.fuzz.trial NUMBER 1` tries one again."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.fuzz.trial", "0", str(INPUTS)],
        stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | {"EVENSTEP": "0"},
    )  # fmt: skip
    assert done.returncode == 0
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"inputs": INPUTS}]


@pytest.fixture(scope="module")
def spool():
    """A rank's trace, and its records as they are."""
    return BY_NAME["spool"].seeds()[0]


def rows(table):
    return {repr(row.tolist()) for row in table}


def test_a_spool_torn_anywhere_holds_only_what_was_written(spool, tmp_path):
    path = tmp_path / "rank-00001.spool"
    path.write_bytes(spool)
    whole = read_spool(path)
    records, summaries = rows(whole.records), rows(whole.summaries)
    places = {*range(0, 8192, 16), *range(512), *range(0, len(spool), 4093), *edges(spool)}
    for length in sorted(places, reverse=True):
        os.truncate(path, length)
        try:
            torn = read_spool(path)
        except TraceError:
            continue
        assert rows(torn.records) <= records
        assert rows(torn.summaries) <= summaries


def edges(spool):
    """Every byte of the first records, and around the regions' ends."""
    fields = HEADER.unpack_from(spool)
    begins = (fields[5], fields[7], fields[9])
    return {place + by for place in begins for by in range(-64, 640)}


def test_a_header_with_any_bit_turned_invents_nothing(tmp_path):
    run = write_run(tmp_path)
    path = run / "attempt-000" / "rank-00001.spool"
    spool, records = path.read_bytes(), rows(read_spool(path).records)
    with path.open("r+b") as file:
        for bit in range(8 * (HEADER_TEXT_OFFSET + 120)):
            at, mask = divmod(bit, 8)
            file.seek(at)
            file.write(bytes([spool[at] ^ 1 << mask]))
            file.flush()
            try:
                assert rows(read_spool(path).records) <= records
                if bit % 16 == 0:
                    diagnose(load(run))
            except EvenstepError:
                pass
            file.seek(at)
            file.write(spool[at : at + 1])
