"""Which formats take a file for their own: the least that each is recognised by, and less."""

import pickle
from importlib import import_module

import pytest

from evenstep.importers.content import SourceFile
from evenstep.importers.opening import FORMATS

WATCHDOG = (
    "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, "
    "NumelIn=1, Timeout(ms)=600000) ran for 600030 milliseconds\n"
)
STATUS = (
    "[PG ID 0 PG GUID 0(default_pg) Rank 1] failure detected, last enqueued work: 9, last "
    "completed work: 8\n"
)
OPERATIONS = "dp_rank,stage,step,optype,start_ts,duration\n0,0,0,gc,0.0,1.0\n"
NCCL = "vm:7:8 [0] NCCL INFO Bootstrap : Using lo\n"
FILES = [
    ("a.json", b'\xef\xbb\xbf {"traceEvents": []}', {"kineto.kineto"}),
    ("a.json", b'[{"ph": "X", "name": "a"}]', {"kineto.kineto"}),
    ("a.json", b'{"schemaVersion": 1, "deviceProperties": [', {"kineto.kineto"}),
    ("a.json", b'{"schemaVersion": 1, "devices": [', set()),
    ("a.json", b'{"metadata":{"highres-ticks":true},"traceEvents":[]}', set()),
    ("a.json", b'{"traceEvents":[{"name":"Ascend Hardware"}]}', set()),
    ("a.txt", b'"traceEvents": [', set()),
    ("a.json", b'\n [{"ph": "B", "name": "NEGOTIATE_ALLREDUCE"}]', {"horovod"}),
    ("a.json", b'{"traceEvents": [{"name": "NEGOTIATE_ALLREDUCE"}]}', set()),
    ("a.json", b'[{"name": "ALLREDUCE"}]', set()),
    ("a.pb", b"\n\x12\x12\x10/host:metadata", {"xplane.xplane"}),
    ("a.pb", b"\n\x12\x12\x12/device:GPU:0", {"xplane.xplane"}),
    ("a.pb", b"\n" + b"\x12" * 30 + b"/host:CPU", set()),
    ("a.pb", b"\x12/host:CPU", set()),
    ("traces.otf2", b"\x00OTF2\x00", {"otf2.otf2"}),
    ("traces.def", b"\x00OTF2\x00", set()),
    ("traces.otf2", b"\x00" * 8 + b"OTF2", set()),
    ("a.sqlite", b"SQLite format 3\x00", {"nsys.nsys"}),
    ("a.sqlite", b" SQLite format 3\x00", set()),
    ("a", pickle.dumps({"entries": []}, protocol=2), {"flight_recorder.flight_recorder"}),
    ("a", pickle.dumps({"weights": []}, protocol=2), set()),
    ("a.json", b' {"pg_config": {}}', {"flight_recorder.flight_recorder"}),
    ("a.json", b'{"entries": []}', set()),
    ("a.log", WATCHDOG.encode(), {"flight_recorder.watchdog"}),
    ("a.log", STATUS.encode(), {"flight_recorder.watchdog"}),
    ("a.log", WATCHDOG.replace("timeout", "error").encode(), set()),
    ("a.log", b' {"header": {}, "coll_perf": {}}', {"nccl.inspector"}),
    ("a.log", b'{"header": {}, "dump_stats": {}}', {"nccl.inspector"}),
    ("a.log", b'{"header": {}, "perf": {}}', set()),
    ("a.csv", OPERATIONS.encode(), {"operations.operation_tables", "steps.step_tables"}),
    ("a.csv", OPERATIONS.replace("stage", "place").encode(), {"steps.step_tables"}),
    ("a.csv", b"rank,comm,seq,duration_us\n0,a,0,7\n", {"nccl.durations"}),
    ("a.csv", b"rank,op,seq,elapsed_ms\n0,a,0,7\n", {"nccl.durations"}),
    ("a.csv", b"rank,msg_size,latency_us\n0,8,7\n", {"nccl.durations"}),
    ("a.csv", b"rank,seq,latency_us\n0,8,7\n", set()),
    ("a.csv", b"comm,seq,duration_us\na,8,7\n", set()),
    ("a.csv", b"rank,comm,seq,step_duration_us\n0,a,0,7\n", set()),
    ("a.csv", b"rank,step,step_time_ms\n0,0,7\n", {"steps.step_tables"}),
    ("a.csv", b"rank,step,loss\n0,0,7\n", set()),
    ("a.csv", b"jobid,rank,elapsed\n0,0,7\n", set()),
    ("events.out", b"\x00" * 12 + b"\x1a\x0dbrain.Event:2", {"steps.step_tables"}),
    ("events.out", b"\x00" * 12 + b"\x1a\x0dbrain.Model:2", set()),
    ("a.log", b"iter 1: loss 2.0, time 12.5ms\niter 2: loss 1.9, time 12.5ms\n",
     {"steps.training_logs"}),
    ("a.log", b"iter 1: loss 2.0, time 12.5ms\niter two\n", set()),
    ("a.log", NCCL.encode(), {"nccl.debug"}),
    ("a.log", NCCL.replace("INFO", "DEBUG").encode(), set()),
    ("a.log", b"#  size  algbw   busbw\n", {"nccl.tests"}),
    ("a.log", b"# nThread 1 nGpus 8\n", {"nccl.tests"}),
    ("a.log", b'{"nccl_version": 1, "args": {}}', {"nccl.tests"}),
    ("a.log", b'{"nccl_version": 1}', set()),
]  # fmt: skip


@pytest.mark.parametrize(("name", "data", "formats"), FILES)
def test_a_file_is_recognised_by_its_format_and_by_those_that_go_behind(
    tmp_path, name, data, formats
):
    path = tmp_path / name
    path.write_bytes(data)
    found = set()
    for each in FORMATS:
        known = import_module(f"evenstep.importers.{each}").recognises(SourceFile(path, data))
        assert known in (True, False)
        found |= {each} if known else set()
    assert found == formats


def test_a_run_of_mlflow_is_recognised_by_its_description_beside_its_metrics(tmp_path):
    from evenstep.importers.steps import tensorboard

    (tmp_path / "run").mkdir()
    for name, head, known in (
        ("meta.yaml", b"artifact_uri: a\nrun_id: 1\n", True), ("meta.yaml", b"run_id: 1\n", True),
        ("meta.yaml", b"the_run_id: 1\n", False), ("other.yaml", b"run_id: 1\n", False),
    ):  # fmt: skip
        source = SourceFile(tmp_path / "run" / name, head)
        assert not tensorboard.is_run(source)
        (tmp_path / "run" / "metrics").mkdir()
        assert tensorboard.is_run(source) is known
        (tmp_path / "run" / "metrics").rmdir()
