"""The laws of the house: no new loop, small folders, names used once, a budget that shrinks."""

import ast
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import evenstep
from tests.sources import nodes, tree

ROOT = Path(evenstep.__file__).parent
MODULES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in ROOT.rglob("*.py")
}
MOST_FILES = 20
#: Lists of like things, which may be longer.
LISTS = {"cli", "diagnose/modes", "scenario/presets"}
MOST_OF_A_PREFIX = 3
#: Lines a package may have. Raised only with a reason beside it.
BUDGET = {
    "agent": 6634,  # the token between hosts and on storage, one store client a node,
    # intervals of lateness, and windows that end with a step's first collective came;
    # what an action did is written when it is ended; events of compiled hooks reach the account;
    # a step marked beside an optimizer counts once; a file closed by the job is not ours any more,
    # nor is the account that compiled code reads; collections that are called are told apart;
    # a step's end is paid from its first instruction; a rank that hangs in it has a store; frames
    # of a running thread are read with the collector off; a stop is told from waiting for a lock;
    # what a step cost us, which hooks told before, is priced by samples of its own time; the place
    # of an exception that a loader's worker raised is told, and the line that called sys.exit;
    # whether batches come from workers is a fact, and live lines count waits for a core;
    # checkpoints that stop training are told live, the script's line before its packages';
    # a sample that waited for the interpreter's lock counts for those due meanwhile; the line of
    # a bare SystemExit is told, and the step in which a call was left out; calls that the ring has
    # lost have cost as much
    "attachment": 534, "cli": 4695, "compiled": 220,  # what needs no package
    # is listed without any; a rank that raised is told before its libraries have ended, and who
    # left first before those that lost it; a command that failed before it attached is told;
    # a folder's only run is opened; reading and projecting tell their time left; what a stopped
    # self-test started is ended; a job at a standstill is watched as it is diagnosed; where a fatal
    # signal struck is told, and a start of which no rank attached; who lost a peer is not the first
    "diagnose": 16186,  # ends of all-to-alls tell no clock and no idleness, and what a device
    # has yet to do no evaluation; a comparison says from where to where a culprit moved;
    # no device begins what its host has yet to issue, in a replay too;
    # a run's first work on one is at least since its host began, and slow steps reach behind their
    # last operation;
    # kernels held by their queue are told from compute that waits; a device that lags by its last
    # kernel alone is idle; ranks of one program are late together; dumps tell what a queue hid;
    # gathers that hosts hold back, waits in a circle, roots that wait, files that are cut; work
    # that one rank hides is like that of places alike; waiting that no finding has is told; deaths
    # on hosts whose wall clocks disagree are in order; messages of gloo meet; an exchange of two
    # ranks is no pipeline; members of a ring leave one after another; a wait tells of one message
    # only; who computes more waits more for a core; what acts already is known to the remedies;
    # messages run in the order of their stream; drivers tell for how long devices work; a thread
    # that holds the interpreter's lock is named; prefetched gathers come as compute does; noise
    # that lasts for some steps has errors of its own; who is late for one barrier is late though
    # early for another; links slow for a part; steps of more than one kind, loaders by epochs;
    # sizes that differ, and what ended a rank, are told with their lines;
    # steps that start up alone are left out; hosts' issues by profiles; slow hosts issue as others;
    # batches wait for a core, long ones with those of their tensor group; short runs tell of
    # contention and of one slow step; drift stands out of what the others change; work between
    # two gathers; ranks without times of devices; a call that is missing until the end; a drift
    # costs what it has risen by, and work that grows on all ranks; ranks without a common clock;
    # links are told from all that crosses them; messages are transfers; gathers issued one ahead,
    # streams beside compute, pauses that devices hide; steps of devices from end to end; a forward
    # that a pipeline tries names no place; a stopped process holds up what is in flight
    "doctor": 1809,
    "explain": 640,  # rows of software that is not modelled are marked
    "export": 1353,  # a full disk leaves no part of an export; alerts are
    # posted here
    "frameworks": 533,  # an observed engine or model is not kept alive; one maker of callbacks
    "hooks": 4684,  # batches of messages on devices; compiled code ends a step and
    # hooks functions of Python; a call is compared with none and with one passed on, in turns;
    # whether a loader has workers; forwards of DDP wait for buffers
    "host": 1605,  # what the processes that ranks have started ask of the cores
    "pacing": 1590,
    "probe": 1608,  # children that were started end when a later one cannot start
    "report": 2889,  # steps that grow longer are told, also of a run that is healthy; and a number
    # neither better nor worse has no word in a comparison; steps of one rank alone are told; runs
    # of different scripts are no curve; what cannot be told has a verdict of its own
    "reproduce": 1333,  # what a gather of ZeRO-3 took in 2021; many steps at once
    "scenario": 1254,  # a layout that a kind of work does not have is refused, a field without
    # effect is told, of failures, prices and repairs too, and what contradicts itself, and
    # neighbours of a job that they cannot slow
    "simulate": 8429,  # other schedules and hybrid shards are calibrated, interleaved stages and
    # accumulation too; rings lie side by side on nodes of unequal size, on cards of their own;
    # announced seconds count rates to be solved; links of one size are calibrated;
    # waits last until the last entry, barriers and priorities are recorded; jobs without neighbours
    # pass no room of theirs; averages of a run that was cut short count as often as they ran
    "statistics": 756,  # tails of noise came from diagnose; pulses' chance over all periods
    "importers": 10159,  # XPlane, OTF2 and TensorBoard's files came in; calls in order, shards;
    # operations of a table by any name; partial reads of tables and timelines are said; groups that
    # no profile states follow from who leaves together; durations of a flight recorder's dumps;
    # calls of a table of durations that run behind others; calls of a dump lie where the rounds of
    # its watchdog leave them room; windows of a rank are joined; rings that have wrapped; profiles
    # of kernels without their launches; logs of more trainers; timers of Megatron-LM and DeepSpeed;
    # tables with a column per worker or a row per metric, JSON of any nesting; what a file is that
    # is known but not read; marks of a profile that overlap; progress bars, and what each kind of
    # log's times are the mean of; tags of more launchers, clocks of resumed runs, tables of
    # monitors and benchmarks, which are none of steps; workers told by where they run, comments
    # above tables and quoted numbers; lines of a watchdog, stamped lines of any loop; bare times
    # that are a clock, rows of warm-up; a communicator's kernels in order; durations by name in any
    # line of a log, waits for data in it, tables of the Ascend profiler; any number with a step's
    # unit, times on lines of their own, numbers of samples, latencies;
    # when a profile's hosts issued calls, and were blocked
    "trace": 5862,  # what facts of a spool must look like is checked where they are read;
    # attempts without a trace are told;
    # which operations of a table follow which, and how it reduces, stands here for both; an event
    # table is a class of its own, in memory or on disk; whether a spool's process lives is one rule
    # and so is whether a descriptor is still ours; rows are numbered and grouped by their keys
    # here; groups that share a name are told apart by their ranks; unlike calls make a step where
    # their repeating is no chance; ends sooner than on the device bound no clock;
    # the place of a frame is one rule, and a store keeps a profile's hosts; how far files are read
    # is reported, and how many parts of a store are written; a rank's place has a shape; the line
    # of a clock's offset, and the largest and smallest values at places, are found here for all;
    # behind a spool lies what Python says of a fatal signal
    "watch": 1684,  # the live page's words are made here, no longer by a script of its own; a
    # preempted attempt is called so; a copy of a spool beside it is the same rank; turns
    # are counted beyond the latest rank's own mean; a standstill is diagnosed, and left again;
    # what ranks report of their pacing is read here, for cli too
    "workers": 279,
}  # fmt: skip
WHOLE = 75_919


def imports(name):
    """Modules of ours that a module imports, for types and inside functions too."""
    for node in nodes(MODULES[name]):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def loops(graph):
    """Strongly connected sets of more than one module (Kosaraju and Sharir)."""
    order, seen = [], set()

    def visit(start, edges, found):
        stack = [(start, iter(edges[start]))]
        seen.add(start)
        while stack:
            rest = stack[-1][1]
            after = next((one for one in rest if one not in seen), None)
            if after is None:
                found.append(stack.pop()[0])
            else:
                seen.add(after)
                stack.append((after, iter(edges[after])))

    for name in graph:
        if name not in seen:
            visit(name, graph, order)
    back = defaultdict(set)
    for name, targets in graph.items():
        for target in targets:
            back[target].add(name)
    seen.clear()
    for name in reversed(order):
        if name not in seen:
            found = []
            visit(name, back, found)
            if len(found) > 1:
                yield sorted(found)


def test_the_search_for_loops_finds_one():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}
    assert list(loops(graph)) == [["b", "c"]]


def test_modules_import_each_other_in_one_direction():
    graph = {name: {one for one in imports(name) if one in MODULES} - {name} for name in MODULES}
    assert list(loops(graph)) == []


FOLDERS = sorted({path.parent for path in MODULES.values() if path.name != "sitecustomize.py"})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_folder_is_small_and_repeats_no_prefix(folder):
    names = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
    place = str(folder.relative_to(ROOT))
    if place not in LISTS:
        assert len(names) <= MOST_FILES
    prefixes = Counter(name.partition("_")[0] for name in names if "_" in name)
    assert [prefix for prefix, times in prefixes.items() if times > MOST_OF_A_PREFIX] == []


def test_a_public_class_has_a_name_of_its_own():
    found = Counter(
        node.name
        for path in MODULES.values()
        for node in tree(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, times in found.items() if times > 1] == []


#: Words of a dialect: a public function says what it does, a class what it is.
NO_NAMES = {
    "said", "told", "others", "together", "opened", "seen", "heard", "kept", "beside", "given",
}  # fmt: skip
#: Still there: none may be added.
KNOWN_NAMES = {("neighbours", "others"), ("program", "together")}


def test_public_names_are_nouns_of_the_field_and_verbs():
    found = {
        (path.stem, node.name)
        for path in MODULES.values()
        for node in tree(path).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name.lower() in NO_NAMES
    }
    assert found <= KNOWN_NAMES


def factors(node, power=1):
    """Of a product or quotient: each factor, with 1 above the line and -1 below."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        yield from factors(node.left, power)
        yield from factors(node.right, power if isinstance(node.op, ast.Mult) else -power)
    else:
        yield ast.unparse(node), power


def closed_forms(code):
    """Lines that say 2(n - 1)/n or 2 log2(n), in whatever order."""
    for node in code:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
            parts = list(factors(node))
            above = [part for part, power in parts if power == 1]
            if {"2", "2.0"} & set(above) and (
                any(f"{part} - 1" in above for part, power in parts if power == -1)
                or any("log2(" in part for part in above)
            ):
                yield node.lineno


@pytest.mark.parametrize(
    "form",
    ["2 * (n - 1) / n", "s / t * 2 * (a.n - 1) / a.n", "2 * s * (n - 1) / (b * n)",
     "2 * np.log2(n) * a"],
)  # fmt: skip
def test_the_search_for_closed_forms_finds_one(form):
    assert list(closed_forms(ast.walk(ast.parse(form))))


def test_closed_forms_of_an_all_reduce_stand_in_one_module():
    found = {name for name, path in MODULES.items() if list(closed_forms(nodes(path)))}
    assert found <= {"evenstep.allreduce"}


def test_every_package_keeps_to_its_budget():
    lines = Counter()
    for path in MODULES.values():
        lines[path.relative_to(ROOT).parts[0]] += path.read_text().count("\n")
    over = {name: lines[name] for name, most in BUDGET.items() if lines[name] > most}
    assert over == {}
    assert sum(lines.values()) <= WHOLE
