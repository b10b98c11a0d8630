"""Writes `configuration.md` from the one table of settings: `python docs/configuration.py`."""

from __future__ import annotations

from pathlib import Path

from evenstep.agent.settings import config

PAGE = Path(__file__).with_suffix(".md")

HEAD = """\
# Configuration

Every setting has a default that suits most jobs; the ones people change are `out` and `pace`. A
value is taken from the first of these that has one:

1. an argument: `evenstep.attach(out="/shared/my-run")`, or `--out` and `--pace` of a command
2. the environment: `EVENSTEP_OUT=/shared/my-run`
3. `evenstep.toml` in the current folder, or the file that `EVENSTEP_CONFIG` names
4. the default

`EVENSTEP=0` switches evenstep off whatever else is set. A value that cannot be is refused in one
sentence naming the setting and where it came from; training goes on unobserved.

```toml
# evenstep.toml
out = "/shared/runs/llama"
ring_bytes = "64MB"

[pace]
mode = "observe"
max_delay = "5%"
```

`evenstep env --json` prints all settings with the values in force and where each came from.

| setting | variable | default | must be | meaning |
| --- | --- | --- | --- | --- |
"""

FOOT = """
## A part of the job

`pace.ranks`, `pace.nodes`, `pace.partitions` and `pace.first_nodes` say which ranks pacing may
hold; the others decide and record as in mode `observe`. `record.…` says in the same way which ranks
are observed at all. Of several that are given all must hold; none is the whole job.

Nodes are written as Slurm writes them, `gpu0[01-16],login1`. They are known by their host name, its
first part, and what `SLURMD_NODENAME` or `NODE_NAME` call them. The partition is that of
`SLURM_JOB_PARTITION`. The same options exist on the command line (`--pace-ranks 0-7,16`), and while
a job runs (`evenstep ctl`).
[Recipes](recipes.md#a-part-of-the-job-first).

## Short forms

As arguments of `attach()` dots become underscores: `evenstep.attach(pace_mode="on")`. The short
forms `pace` and `EVENSTEP_PACE` mean `pace.mode`.

Two more variables name a run where no launcher does: `EVENSTEP_RUN_ID`, the same on every rank, and
`EVENSTEP_ATTEMPT`, one more for every restart.
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
