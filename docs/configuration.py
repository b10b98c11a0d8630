"""Writes `configuration.md` from the one table of settings: `python docs/configuration.py`."""

from __future__ import annotations

from pathlib import Path

from evenstep.agent.settings import config

PAGE = Path(__file__).with_suffix(".md")

HEAD = """\
# Configuration

Every setting has a default that suits most jobs; most users change only `out` and `pace`. A value
comes from the first of these sources that has one:

1. an argument: `evenstep.attach(out="/shared/my-run")`, or `--out` and `--pace` of a command
2. the environment: `EVENSTEP_OUT=/shared/my-run`
3. `evenstep.toml` in the current folder, or the file that `EVENSTEP_CONFIG` names
4. the default

`EVENSTEP=0` disables evenstep, whatever else is set. An invalid value is refused with one sentence
that names the setting and its source; training continues without recording.

```toml
# evenstep.toml
out = "/shared/runs/llama"
ring_bytes = "64MB"

[pace]
mode = "observe"
max_delay = "5%"
```

`evenstep env --json` prints all settings with the values in force and the source of each.

| setting | variable | default | must be | meaning |
| --- | --- | --- | --- | --- |
"""

FOOT = """
## A part of the job

`pace.ranks`, `pace.nodes`, `pace.partitions` and `pace.first_nodes` select the ranks that pacing
may delay; the others decide and record as in mode `observe`. `record.…` selects the ranks that are
recorded in the same way. A rank must match all selections given; without any, the whole job is
selected.

Nodes are written as in Slurm, `gpu0[01-16],login1`. A node matches by its host name, the first
part of it, `SLURMD_NODENAME` or `NODE_NAME`. The partition is `SLURM_JOB_PARTITION`. The same
options exist on the command line (`--pace-ranks 0-7,16`) and for running jobs (`evenstep ctl`);
see [recipes](recipes.md#a-part-of-the-job-first).

## Short forms

Arguments of `attach()` have underscores for dots: `evenstep.attach(pace_mode="on")`. `pace` and
`EVENSTEP_PACE` are short for `pace.mode`.

Two more variables identify a run if the launcher does not: `EVENSTEP_RUN_ID`, the same on every
rank, and `EVENSTEP_ATTEMPT`, which increases by one with every restart.
"""


def page() -> str:
    """The whole page."""
    return HEAD + "".join(map(row, config.describe())) + FOOT


def row(setting: dict[str, object]) -> str:
    """One setting as a row of the table."""
    cells = (
        f"`{setting['name']}`",
        f"`{setting['variable']}`",
        shown(setting["default"]),
        setting["expects"],
        setting["meaning"],
    )
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |\n"


def shown(default: object) -> str:
    """A default as one would write it."""
    if default is None:
        return "none"
    if isinstance(default, bool):
        return "`on`" if default else "`off`"
    return f"`{default}`"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"Wrote {PAGE}")
