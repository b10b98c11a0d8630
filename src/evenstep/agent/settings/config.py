"""All settings, in one table: the fields of `Config`.

A value comes from an argument of `attach()` or a command, else from the environment, else from
`evenstep.toml` (in the current folder, or named by EVENSTEP_CONFIG), else it is the default. A
field `pace_mode` is written `pace.mode` in the file and EVENSTEP_PACE_MODE in the environment.
EVENSTEP=0 is a kill switch: it overrides all other sources.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import Field
from pathlib import Path
from typing import Any, NamedTuple

from evenstep import values
from evenstep.agent.settings import selection
from evenstep.agent.settings.selection import Selection
from evenstep.errors import ConfigError
from evenstep.values import setting

FILE = "evenstep.toml"
#: Variables of evenstep that are not settings.
OTHER_VARIABLES = frozenset(
    {"EVENSTEP_CONFIG", "EVENSTEP_RUN_ID", "EVENSTEP_ATTEMPT", "EVENSTEP_IMPORT_LIMIT_GB"}
    | {"EVENSTEP_METRICS_TOKEN"}
)
#: Tables of the file: `pace_mode` is `mode` in [pace].
TABLES = ("pace", "record")
#: A shorter name of the setting that is changed most.
ALIASES = {"pace": "pace.mode"}


class Config:
    """The settings of one process, each valid. No dataclass: to make that takes each rank 2 ms."""

    enabled: bool = setting(
        True, values.SWITCH, "observe this process; EVENSTEP=0 switches evenstep off for good"
    )
    out: Path | None = setting(
        None, values.PATH, "the run's folder; by default one in ./evenstep-runs, named by its start"
    )
    ring_bytes: int = setting(
        16_000_000, values.byte_size(65_536), "size of a rank's ring of records"
    )
    summary_bytes: int = setting(
        16_000_000, values.byte_size(65_536), "bound of a rank's per-step summaries"
    )
    spool: str = setting(
        "auto", values.choice(("auto", "mmap", "buffered")), "how a rank writes its trace"
    )
    compiled: bool = setting(
        True, values.SWITCH,
        "record by kernels compiled for this torch, where a launcher built them",
    )  # fmt: skip
    share: bool = setting(
        True, values.SWITCH, "one small message per rank and window, to name the late rank live"
    )
    stacks: bool = setting(
        True,
        values.SWITCH,
        "look a few times a minute, when it stands still, and when a fatal signal strikes, at "
        "where the training thread is: file, line and function",
    )
    sample_period_s: float = setting(
        1.0, values.number(0.05, 3600.0), "seconds between samples of clocks, power and counters"
    )
    probe_every: int | None = setting(
        None, selection.COUNT,
        "measure this rank's machine for 20 ms after every so many steps; by default never",
    )  # fmt: skip
    samples_per_step: int | None = setting(
        None, selection.COUNT, "samples a rank handles per step, where the loader does not show it"
    )
    verdict: bool = setting(True, values.SWITCH, "print the verdict when the run ends")
    log_level: str = setting(
        "warning", values.choice(("debug", "info", "warning", "error")), "what evenstep itself says"
    )
    act: str = setting(
        "off", selection.ACTIONS, "what may be done about the job, each thing only while it pays"
    )
    link_group: str = setting(
        "host", selection.LINK,
        "the jobs that take turns: those of one name on a host, or at one `evenstep link`",
    )  # fmt: skip
    pace_mode: str = setting(
        "observe", values.choice(("off", "observe", "on")), "observe decides and records only"
    )
    pace_controller: str = setting(
        "slack", values.choice(("slack", "paper")),
        "the rule that proposes delays; paper is the published one, for comparison",
    )  # fmt: skip
    pace_objective: str = setting(
        "throughput", values.choice(("throughput", "stability")),
        "what pacing must improve to stay on",
    )  # fmt: skip
    pace_threshold: float = setting(
        0.03, values.share(1.0), "imbalance, as a share of the step, below which nothing is paced"
    )
    pace_max_delay: float = setting(
        0.10, values.share(0.5), "longest delay, as a share of the median step"
    )
    pace_stability_cost: float = setting(
        0.006, values.share(0.1), "throughput the objective `stability` may cost"
    )
    pace_sharing: bool = setting(
        False, values.SWITCH,
        "ranks pace together, by rank 0's plan and the slowest rank's work, not each alone",
    )  # fmt: skip
    pace_ranks: str | None = setting(
        None, selection.RANKS, "the ranks that may be held; the others only decide and record"
    )
    pace_nodes: str | None = setting(None, selection.NODES, "the same by the names of nodes")
    pace_partitions: str | None = setting(
        None, selection.NAMES, "the same by partitions of the cluster"
    )
    pace_first_nodes: int | None = setting(
        None, selection.COUNT_OR_ALL, "the same by nodes, counted from the first"
    )
    record_ranks: str | None = setting(
        None, selection.RANKS, "the ranks that are observed; evenstep leaves the others alone"
    )
    record_nodes: str | None = setting(None, selection.NODES, "the same by the names of nodes")
    record_partitions: str | None = setting(
        None, selection.NAMES, "the same by partitions of the cluster"
    )
    record_first_nodes: int | None = setting(
        None, selection.COUNT_OR_ALL, "the same by nodes, counted from the first"
    )

    def __init__(
        self,
        *,
        sources: Mapping[str, str] | None = None,
        warnings: tuple[str, ...] = (),
        **found: Any,
    ) -> None:
        """The defaults but for what was `found`, by field; `sources` are its origins, by name."""
        vars(self).update({row.field: row.default for row in TABLE.values()} | found)
        self.sources: Mapping[str, str] = sources or {}
        self.warnings = warnings

    def part(self, table: str) -> Selection:
        """The part of the job that is paced ("pace") or observed ("record")."""
        return Selection(*(getattr(self, f"{table}_{name}") for name in Selection._fields))


class Setting(NamedTuple):
    """A setting as a row of the table."""

    name: str  # as in evenstep.toml
    field: str
    variable: str
    default: Any
    kind: values.ValueKind
    doc: str


def _table() -> dict[str, Setting]:
    rows = {}
    for key, item in vars(Config).items():
        if not isinstance(item, Field):
            continue
        table, _, rest = key.partition("_")
        name = f"{table}.{rest}" if table in TABLES else key
        variable = "EVENSTEP" if name == "enabled" else f"EVENSTEP_{key.upper()}"
        kind, doc = item.metadata["kind"], item.metadata["meaning"]
        rows[name] = Setting(name, key, variable, item.default, kind, doc)
    return rows


TABLE = _table()


def load(
    arguments: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Config:
    """Load the settings of this process. Raises `ConfigError` naming the setting and its source."""
    environ = os.environ if environ is None else environ
    path = Path(environ.get("EVENSTEP_CONFIG") or (folder or Path.cwd()) / FILE)
    written: Mapping[str, object] = {}
    if path.exists() or environ.get("EVENSTEP_CONFIG"):
        written = _read(path)
    return resolve(arguments or {}, environ, written, path)


def resolve(
    arguments: Mapping[str, object],
    environ: Mapping[str, str],
    written: Mapping[str, object],
    path: Path = Path(FILE),
) -> Config:
    """Merge the settings of three sources, the first one taking precedence; pure.

    An argument of None counts as not given.
    """
    given: dict[str, tuple[object, str]] = {}
    for key, value in _flat(written).items():
        given[_setting_named(key, f"{path}")] = (value, f"in {path}")
    short = [(name, f"EVENSTEP_{alias.upper()}") for alias, name in ALIASES.items()]
    for key, variable in short + [(row.name, row.variable) for row in TABLE.values()]:
        if environ.get(variable):
            given[key] = (environ[variable], f"from {variable}")
    for key, value in arguments.items():
        if value is not None:
            given[_setting_named(key, "the arguments")] = (value, "given as an argument")
    if values.is_off(environ.get("EVENSTEP", "")):
        given["enabled"] = (False, "from EVENSTEP")
    found = {
        TABLE[key].field: TABLE[key].kind.checked(value, f"{key} {source}")
        for key, (value, source) in given.items()
    }
    sources = {key: source for key, (_, source) in given.items()}
    return Config(**found, sources=sources, warnings=_unknown_variables(environ))


def describe(config: Config | None = None) -> list[dict[str, Any]]:
    """The table as JSON-able rows; with a configuration, also its values and sources."""
    rows = []
    for row in TABLE.values():
        entry: dict[str, Any] = {
            "name": row.name, "variable": row.variable, "default": row.default, "expects":
            row.kind.expects, "meaning": row.doc,
        }  # fmt: skip
        if config is not None:
            value = getattr(config, row.field)
            entry["value"] = str(value) if isinstance(value, Path) else value
            entry["source"] = config.sources.get(row.name, "default")
        rows.append(entry)
    return rows


def _read(path: Path) -> dict[str, object]:
    from evenstep.trace.spool.files import read_toml

    try:
        return read_toml(path)
    except OSError as error:
        raise ConfigError(f"cannot read the settings in {path}: {error.strerror}") from error


def _flat(written: Mapping[str, object]) -> dict[str, object]:
    """Tables of the file as dotted names."""
    flat: dict[str, object] = {}
    for key, value in written.items():
        if isinstance(value, Mapping):
            flat.update({f"{key}.{inner}": inside for inner, inside in value.items()})
        else:
            flat[key] = value
    return flat


def _setting_named(key: str, place: str) -> str:
    """The setting that a key names. Raises `ConfigError`, with the nearest one, for others."""
    name = ALIASES.get(key, key)
    if name not in TABLE:
        name = next((row.name for row in TABLE.values() if row.field == key), "")
    if name:
        return name
    near = values.nearest(key, (*TABLE, *ALIASES), least=0.5)
    hint = f"did you mean {near!r}?" if near else "`evenstep env --json` lists all"
    raise ConfigError(f"there is no setting {key!r} (in {place}); {hint}")


def _unknown_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """A warning for each EVENSTEP_ variable that is not known."""
    known = {row.variable for row in TABLE.values()} | OTHER_VARIABLES
    known |= {f"EVENSTEP_{alias.upper()}" for alias in ALIASES}
    unknown = sorted(name for name in environ if name.startswith("EVENSTEP_") and name not in known)
    pairs = ((name, values.nearest(name, known, least=0.7)) for name in unknown)
    return tuple(f"{n} sets nothing" + f"; did you mean {near}?" * bool(near) for n, near in pairs)
