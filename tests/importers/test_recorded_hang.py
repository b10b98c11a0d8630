"""Dumps that torch itself wrote, and what torch's own analyzer says of the same dumps."""

import copy
from types import SimpleNamespace

import pytest
from torch.distributed.flight_recorder import fr_trace

from evenstep.diagnose.engine import diagnose
from tests.forks import start
from tests.importers.hanging_job import ABSENT, HUNG_S, RANKS, STEPS
from tests.importers.recorded_ring import dump, entry, in_flight, read, write


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The dumps of a real job that hung."""
    folder = tmp_path_factory.mktemp("job")
    job = start("tests.importers.hanging_job", folder, TORCH_FR_BUFFER_SIZE="64")
    _, error = job.communicate()
    assert job.returncode == 0, error
    paths = sorted(folder.glob("fr_rank_*"))
    assert len(paths) == RANKS
    return read(paths)


def test_a_real_hang_is_laid_to_the_rank_that_did_not_come(recorded):
    (finding,) = diagnose(recorded).findings
    assert (finding.mode, finding.where.ranks) == ("hang", [ABSENT])
    assert f"all_reduce {STEPS + 1} for" in finding.observation
    assert finding.evidence[0].measured >= HUNG_S * 1e9


def test_the_line_of_the_program_is_named(recorded):
    (finding,) = diagnose(recorded).findings
    assert "called in rank_main (hanging_job.py:" in finding.observation


def test_a_ring_of_gloo_holds_what_was_called(recorded):
    sizes = recorded.events.bytes_in[recorded.events["rank"] == ABSENT]
    assert sizes.tolist() == [4000] * STEPS  # 1,000 float32


def torch_says(dumps: dict[int, dict]) -> set[int]:
    """The ranks that torch's analyzer names in the last collective."""
    details = {
        f"rank_{rank}": {"host_name": "", "rank": rank, **copy.deepcopy(value)}
        for rank, value in dumps.items()
    }
    options = SimpleNamespace(
        just_print_entries=False, allow_incomplete_ranks=True, mismatch_cap=10, verbose=False
    )
    last = fr_trace.build_db(details, options, "2.10").collectives[-1]
    return set(last.missing_ranks or ()) | set(last.mismatch_collectives or ())


@pytest.mark.parametrize(
    "odd", [[], [in_flight(1, "nccl:broadcast")], [in_flight(1, input_sizes=[[8]])]]
)
def test_torchs_analyzer_names_the_same_rank(tmp_path, odd):
    usual = dump([entry(0), in_flight(1)], world=3)
    dumps = {0: usual, 1: dump([entry(0), *odd], world=3), 2: usual}
    (finding,) = diagnose(read(write(tmp_path, dumps))).findings
    assert set(finding.where.ranks) == torch_says(dumps) == {1}


def test_the_odd_one_is_named_where_torch_takes_the_first_rank_for_the_rule(tmp_path):
    usual = dump([entry(0), in_flight(1)], world=3)
    dumps = {0: dump([entry(0), in_flight(1, "nccl:broadcast")], world=3), 1: usual, 2: usual}
    (finding,) = diagnose(read(write(tmp_path, dumps))).findings
    assert torch_says(dumps) == {1, 2}
    assert finding.where.ranks == [0]
