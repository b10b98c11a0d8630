"""What a file that no format recognises is, and what to give instead of it."""

from __future__ import annotations

import re

from evenstep.importers.content import SourceFile
from evenstep.importers.steps.step_tables import RANKS, STEPS
from evenstep.importers.tables import column_of, table_file

_PROFILE = "profile the run with torch.profiler (export_chrome_trace)"
_NSYS = "export the report with nsys export --type sqlite"
_DUMPS = "give its flight recorder's dumps (TORCH_NCCL_TRACE_BUFFER_SIZE=2000, nccl_trace_rank_*)"
#: What the head of such a file has, what it is, and what to do.
_KNOWN = (
    (rb"^(?:\xff\xfe|\xfe\xff|(?:[\t\n\r -~]\0){8})",
     "text in UTF-16", "write it as UTF-8 (iconv -f UTF-16 -t UTF-8)"),
    (rb"^(?:\xfd7zXZ|BZh|\x1f\x8b)", "compressed with xz or bzip2, or twice", "unpack it"),
    (rb"^version https://git-lfs", "a pointer of Git LFS", "fetch the file (git lfs pull)"),
    (rb"\bCorrId\b.*\bStrm\b|\bTime ?\(%\)[, ]{1,4}Total Time", "a table of nsys stats", _NSYS),
    (rb"\bSelf CPU (?:%|time total: )|\| +Mean duration \(s\)",
     "a profiler's table, which has sums and means only", _PROFILE),
    (rb"(?m)^Thread \w+ \((?:active|idle)|^(?:Current thread|Thread) 0x\w+ \(most recent",
     "a dump of a process's stacks, which names no call that others wait for", _DUMPS),
    (rb"\bDCGM_FI_|Clocks (?:Throttle|Event) Reasons|(?m:^# ?gpu +\w+ )|\bSCLK +MCLK",
     "of a monitor of devices, which has no steps", "give the job's log"),
    (rb"\bNot all ranks joining collective", "an analysis of flight recorders", _DUMPS),
    (rb'"Ascend Hardware"', "a trace of the Ascend profiler",
     "give the step_trace_time.csv that its analysis writes beside it"),
    (rb"\bcomm op: |\bComm\. Op\b",
     "a log of DeepSpeed's communication, without ranks and steps", _PROFILE),
    (rb"Watchdog caught collective operation timeout", "a log of a timeout that names no call",
     _DUMPS),
    (rb"waiting for remainder of ranks", "Horovod's word of a stall, without times: the ranks that "
     "it calls missing are waited for", "give its timeline (HOROVOD_TIMELINE)"),
    (rb"(?m)^Communicators\.\.\. ", "a report of NCCL's RAS, which names no call in the program",
     _DUMPS),
    (rb"# Avg bus bandwidth", "a log of nccl-tests without the names of its columns",
     "give it from its beginning"),
    (rb"(?m)^# OSU |^ *#bytes +#(?:rep|it)", "a result of the OSU, IMB or perftest benchmarks",
     "measure with nccl-tests"),
    (rb"(?m)^artifact_location: ", "an experiment of MLflow", "give the folder of one run"),
    (rb"^\d{13} [-+.\de]+(?: \d+)?\n", "a metric of MLflow",
     "give the folder of its run, which has a meta.yaml"),
    (rb"(?i)\b(?:samples|images|examples)/s(?:ec)?\b(?!\])", "a log of speeds without times of "
     "steps", "log with time stamps or seconds per step"),
    (rb'"log_history"', "a state of the Hugging Face Trainer, without times of steps",
     "give the log with its progress bar"),
)  # fmt: skip


def reason(source: SourceFile) -> str:
    """One sentence: what the file is, if that is known, and what to do; "" of an unknown file."""
    if source.path.suffix.lower() in (".nsys-rep", ".qdrep"):
        return f"{source.path} is a report of Nsight Systems: {_NSYS}"
    for head, what, mend in _KNOWN:
        if re.search(head, source.head):
            return f"{source.path} is {what}: {mend}"
    file = table_file(source)
    if file is not None and (column_of(file, RANKS) or column_of(file, STEPS)):
        names = ", ".join(name[:40] for name in file.names[:8])
        lacks = f"is a table ({names}) without a column that is known to be durations"
        return f"{source.path} {lacks}: name it, for example, step_time_ms"
    if b"\0" in source.head or not re.search(rb"(?i)\b(?:loss|epoch|train|step|rank)", source.head):
        return ""
    mend = "log these, or give a table with columns rank, step and step_time_ms"
    return f"{source.path} has no two steps with times that are known: {mend}"
