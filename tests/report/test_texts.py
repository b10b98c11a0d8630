"""What texts say of given numbers, word for word."""

from types import SimpleNamespace

import pytest

from evenstep.cli import reproduce, simulate, strategies
from evenstep.diagnose.compare.result import MetricChange
from evenstep.report.terminal import comparison, scaling, sentences, terminal
from evenstep.report.terminal.style import table

MS = 1e6


def said(text):
    """Without no-break spaces."""
    return text.replace("\u00a0", " ")


# -- scaling ---------------------------------------------------------------------------------------


def point(ranks, value, step_ms, **more):
    return {
        "ranks": ranks, "ideal": 100.0 * ranks, "bandwidth_only": 90.0 * ranks,
        "throughput": {"value": value}, "efficiency": value / (100.0 * ranks),
        "effective_efficiency": value / (100.0 * ranks), "step_ns": {"value": step_ms * MS},
        "cv": {"value": 0.0125}, "p99_ns": {"value": 2 * step_ms * MS}, "goodput": None,
        "unit": "samples/s", "control": {}, **more,
    }  # fmt: skip


def predicted(*points, **more):
    return {
        "name": "", "scaling": "weak", "points": list(points), "limits": [], "control": {},
        "outlay": None, "peak": peak(), **more,
    }  # fmt: skip


def peak(**more):
    known = {"inside": False, "ranks": 16, "from_ranks": 8, "to_ranks": 16, "grown_ns": 30 * MS}
    return known | {"share": 0.75, "why": "waits grow", **more}


PREDICTED = """\
big: weak scaling, throughput in samples/s

ranks    ideal  bandwidth  predicted  per rank    step     CV     p99  useful
    8      800        720        800   100.0 %  100 ms  0.013  200 ms  90.0 %
1,600  1.6e+05   1.44e+05       1200     0.8 %  133 ms  0.013  266 ms  80.0 %

Throughput still rises at 1,600 ranks, the largest size here; a rank has 0.8 %
of what it has at 8. From 8 to 16 ranks: waits grow, 30 ms a step, 75.0 % of
what is lost. Bandwidth alone would allow 120.00 times the throughput predicted
there.

With pace on, x, as ratios to without:
ranks  throughput   cost
    8       1.500  0.500
1,600       1.250      -

To 1e+06 samples:
ranks  hours  GPU hours  cost  kWh
1,600     10    1.6e+04     -  5.5
Cheapest within 12 hours: 1,600 ranks.

 - a limit"""


def test_a_scaling_is_a_table_with_its_verdict_and_what_it_costs():
    control = {"throughput": 1.5, "joules_per_unit": None, "cost_per_unit": 0.5}
    size = {"ranks": 1600, "hours": 10.0, "rank_hours": 16e3, "cost": None, "kilowatt_hours": 5.5}
    document = predicted(
        point(8, 800.0, 100, goodput=0.9, control=control),
        point(1600, 1200.0, 133, goodput=0.8,
              control={**control, "throughput": 1.25, "cost_per_unit": None}),
        name="big", control=["pace on", "x"], limits=["a limit"],
        outlay={"target": 1e6, "sizes": [size], "deadline_hours": 12, "cheapest": 1600},
    )  # fmt: skip
    assert said("\n".join(scaling.page(document))) == PREDICTED
    document["outlay"] |= {"cheapest": None, "deadline_hours": None}
    assert "No size is fast enough." in scaling.page(document)
    assert [*scaling.page({"points": []})] == ["no simulation finished"]


def test_a_scaling_without_failures_and_costs_is_a_table_with_its_verdict():
    text = said("\n".join(scaling.page(predicted(point(8, 800.0, 100)))))
    assert text == (
        "scaling: weak scaling, throughput in samples/s\n\n"
        "ranks  ideal  bandwidth  predicted  per rank    step     CV     p99\n"
        "    8    800        720        800   100.0 %  100 ms  0.013  200 ms\n\n"
        "One size does not show how the job scales; give several with --ranks.\n"
    )


RISES = (
    "Throughput still rises at 16 ranks, the largest size here; a rank has 75.0 % of what it has "
    "at 8."
)
WHY = " From 8 to 16 ranks: waits grow"
MISSED = ". Bandwidth alone would allow 1.20 times the throughput predicted there."


@pytest.mark.parametrize(
    ("found", "text"),
    [({"inside": True, "ranks": 8},
      f"Throughput is highest at 8 ranks and falls beyond.{WHY}, 30 ms a step, 75.0 % of what is "
      f"lost{MISSED}"),
     ({"grown_ns": None}, f"{RISES}{WHY}{MISSED}"), ({"share": None}, f"{RISES}{WHY}{MISSED}"),
     ({"grown_ns": 0.1 * MS}, RISES),  # a thousandth of a step
     ({"grown_ns": 0.11 * MS},
      f"{RISES}{WHY}, 110 µs a step, 75.0 % of what is lost{MISSED}")],
)  # fmt: skip
def test_a_verdict_of_scaling_tells_where_it_peaks_and_why(found, text):
    document = predicted(point(8, 800.0, 100), point(16, 1200.0, 100), peak=peak(**found))
    assert said(scaling.verdict(document)) == text


def test_what_was_measured_at_sizes_is_a_table_with_notes():
    points = [
        {"ranks": ranks, "throughput": rate, "efficiency": share, "fitted": fitted}
        for ranks, rate, share, fitted in ((8, 80.0, 1.0, 80.5), (1600, 120.0, 0.0075, None))
    ]
    law = {
        "name": "USL", "contention": {"value": 0.05}, "coherency": {"value": 0.00012},
        "knee": {"value": 137.2, "low": 126.0, "high": 153.0},
        "peak": {"value": 2000.0, "low": 1700.0, "high": None},
    }  # fmt: skip
    found = {"points": points, "unit": "steps/s", "law": law, "recommended_ranks": 1024,
             "last_doubling": {"ranks": (800, 1600), "gain": 0.25}}  # fmt: skip
    assert said("\n".join(scaling.measured_table(found))) == (
        "ranks   throughput  efficiency      law\n    8   80 steps/s       100 %     80.5\n"
        "1,600  120 steps/s      0.75 %  unknown"
    )
    assert [*map(said, scaling.measured_notes(found))] == [
        "USL: contention 5 %, coherency 0.00012",
        "an added rank brings half as much as the first one from about 137 ranks (126 to 153)",
        "throughput is highest at about 2,000 ranks (1,700 to any number), extrapolated from 1,600 "
        "ranks",
        "from 800 to 1,600 ranks throughput grows by 25 %",
        "ranks worth using: 1,024",
    ]
    law |= {"knee": None, "peak": {"value": 1600.0}, "coherency": None}
    assert [*scaling.measured_notes({"points": points, "law": law})] == [
        "throughput is highest at about 1,600 ranks"
    ]
    assert [*scaling.measured_notes({"points": points, "law": None})] == []


# -- a simulation ----------------------------------------------------------------------------------


def result(**more):
    use = {"operation": "all_reduce", "algorithm": "ring", "bytes": 1e9, "size": 8}
    known = {
        "name": "", "ranks": 8, "nodes": 1, "steps": 20, "partial": False, "throughput": 123.456,
        "unit": "samples/s", "efficiency": 0.875, "mfu": None, "tflops_per_gpu": None,
        "step_time": SimpleNamespace(mean_ns=100 * MS, cv=0.0125, p50_ns=99 * MS, p99_ns=130 * MS),
        "shares": SimpleNamespace(
            compute=0.8, exposed_communication=0.1, wait=0.05, input=0.05, held=0.0
        ),
        "collectives": [
            SimpleNamespace(**use, alone_ns=alone * MS, busbw_gBps=gBps)
            for alone, gBps in ((5.0, 350.0), (4.0, 437.5))
        ],
        "links": [SimpleNamespace(link=f"l{n}", utilisation=0.5, capacity_gBps=50.0)
                  for n in range(4)],
        "convergence": None, "energy": None, "goodput": None, "pacing": None,
    }  # fmt: skip
    return SimpleNamespace(**{**known, **more})


PLAIN_RESULT = """\
simulation: 8 ranks on 1 node, 20 steps
  throughput   123.5 samples/s, 87.5 % of compute alone
  step time    100 ms on average, CV 0.013, median 99 ms, p99 130 ms
  time spent   compute 80.0 %, exposed communication 10.0 %, waiting for others
               5.0 %, input 5.0 %
  all_reduce   1 GB among 8 ranks by ring: 4 ms to 5 ms alone, bus bandwidth 350
               GB/s
  busiest link l0: 50.0 % of 50 GB/s
  busiest link l1: 50.0 % of 50 GB/s
  busiest link l2: 50.0 % of 50 GB/s
"""


def test_a_simulation_is_told_in_lines():
    assert said(simulate.render(result())) == PLAIN_RESULT


ALL = """\
mine: 8 ranks on 1 node, 20 steps, interrupted
  throughput   123.5 samples/s, 87.5 % of compute alone, 400 TFLOP/s a GPU, MFU
               40.0 %
  step time    100 ms on average, CV 0.013, median 99 ms, p99 130 ms
  time spent   compute 70.0 %, exposed communication 0.0 %, waiting for others
               0.0 %, input 10.0 %, pacing 20.0 %
  staleness    2.5 updates on average, p99 7; largest stable step size 0.31 of
               that of fresh gradients (a quadratic; says nothing about
               accuracy)
  exchange     every 4 steps; models differ in between
  gradients    12.5 % are discarded
  energy       12.5 J a sample, cost 0.002 a sample, 15 J and 0.003 with
               failures and checkpoints
  over weeks   90.0 % of the time is useful work (111.1 samples/s), 1.5
               interruptions a day
               lost: checkpoints 4.0 %, repeated work 6.0 %
               a checkpoint every 1,200 s
  pacing       it pays
"""


def test_a_simulation_is_told_with_all_that_was_asked_of_it():
    age = SimpleNamespace(mean=2.5, p99=7.0)
    shares = SimpleNamespace(compute=0.7, exposed_communication=0, wait=0, input=0.1, held=0.2)
    weeks = {"useful": 0.9, "interruptions_per_day": 1.5, "writing": 0.04, "lost": 0.06,
             "restarting": 0.0, "waiting": 0.0, "slowed": 0.0,
             "checkpoint_interval_ns": 1.2e12}  # fmt: skip
    energy = {"joules_per_unit": 12.5, "cost_per_unit": 0.002, "joules_per_useful_unit": 15.0,
              "cost_per_useful_unit": 0.003}  # fmt: skip
    found = result(
        name="mine", partial=True, collectives=[], links=[], shares=shares, mfu=0.4,
        tflops_per_gpu=400.0, goodput=weeks, energy=energy, pacing={"verdict": "it pays"},
        convergence=SimpleNamespace(
            staleness=age, stable_step_share=0.31, local_steps=4, discarded_share=0.125
        ),
    )  # fmt: skip
    assert said(simulate.render(found)) == ALL


@pytest.mark.parametrize("calibrated", [True, False])
def test_an_expected_error_says_of_what_it_is(calibrated):
    error = SimpleNamespace(median=0.05, worst=0.2, rows=12, kind="ddp", calibrated=calibrated)
    how = "calibrated on other rows" if calibrated else "with nothing calibrated"
    text = " ".join(said(simulate.off_by(error)).split())
    assert text == f"error 5.0 % (median), 20.0 % at worst, of 12 measured rows of kind ddp, {how}"
    assert simulate.off_by(None).endswith("there is no measured system like this one\n")


# -- a comparison ----------------------------------------------------------------------------------


def change(**more):
    known = {"metric": "step_time", "unit": "ns", "baseline": 100 * MS, "value": 150 * MS,
             "difference": 50 * MS, "low": 40 * MS, "high": 60 * MS, "relative": 0.5,
             "relative_low": 0.4, "relative_high": 0.6, "verdict": "worse"}  # fmt: skip
    return MetricChange(**{**known, **more})


@pytest.mark.parametrize(
    ("more", "text"),
    [({}, "+50 % (+40 to +60)"),
     ({"relative": None}, "50 ms"), ({"relative_low": None}, "50 ms"),
     ({"relative_high": None}, "50 ms"),
     ({"unit": "1", "relative": None, "difference": 0.05, "low": -0.01, "high": 0.11},
      "+5.0 pt (-1.0 to +11)")],
)  # fmt: skip
def test_a_change_is_told_in_percent_or_in_points(more, text):
    assert said(comparison.difference(change(**more))) == text


def test_numbers_of_two_runs_are_absolute_or_ratios():
    assert [*map(said, comparison.values(change(), normalised=False))] == ["100 ms", "150 ms"]
    assert comparison.values(change(), normalised=True) == ("1", "1.5")
    assert comparison.values(change(baseline=0.0), normalised=True) == ("1", "unknown")
    rate = change(unit="steps/s", baseline=10.0, value=5.0)
    for units, shown in ((True, ["10 steps/s", "5 steps/s"]), (False, ["10", "5"])):
        found = comparison.values(rate, normalised=False, units=units)
        assert [*map(said, found)] == shown


@pytest.mark.parametrize(
    ("value_ns", "text"), [(0.4, "0"), (1.0, "+1 ns"), (-2 * MS, "-2 ms"), (2 * MS, "+2 ms")]
)
def test_a_change_of_a_time_has_its_sign_and_whole_nanoseconds(value_ns, text):
    assert said(comparison.change_of(value_ns)) == text


def test_a_table_is_aligned_to_the_right_but_where_asked():
    rows = [["a", "bbb"], ["cc", "d"]]
    assert table(rows) == [" a  bbb", "cc    d"]
    assert table(rows, left=(1,), gap="|") == [" a|bbb", "cc|d  "]


# -- sentences of a run ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "text"),
    [(111 * MS, ["steps grow longer: 100 ms in the first quarter of the run, 111 ms in the last"]),
     (109 * MS, [])],
)  # fmt: skip
def test_growth_is_told_from_a_tenth_on(last, text):
    found = sentences.growth({"first_ns": 100 * MS, "last_ns": last})
    assert [*map(said, found)] == text
    assert [*sentences.growth(None)] == []


@pytest.mark.parametrize(
    ("shares", "period", "text"),
    [({"wait": 0.06, "compute": 0.88, "network": 0.06}, 12.5,
      "steps are bound by own work in 88 %, by waiting in 6 %, by network in 6 % of them, with 3 "
      "changes; the pattern repeats every 12.5 steps"),
     ({"wait": 0.06, "compute": 0.94}, None,
      "steps are bound by own work in 94 %, by waiting in 6 % of them, with 3 changes"),
     ({"wait": 0.04, "compute": 0.96}, 12.5, None)],
)  # fmt: skip
def test_what_bounds_steps_is_told_where_it_changes(shares, period, text):
    found = {"shares": shares, "changes": 3, "period_steps": period}
    assert [*map(said, sentences.regimes(found))] == [text] * (text is not None)


def test_blame_names_those_that_most_is_waited_for():
    culprits = [{"rank": rank, "share": share} for rank, share in
                ((3, 0.3), (1, 0.1), (4, 0.1), (5, 0.1), (2, 0.1))]  # fmt: skip
    found = {"rank_seconds": 12.0, "culprits": culprits, "drift": 0.5}
    assert [*map(said, sentences.blame(found))] == [
        "of 12 s of waiting, most is for rank 3 (30 %), rank 1 (10 %), rank 4 (10 %), rank 5 "
        "(10 %)",
        "from start to end of the run 50 % of the waiting moves to other ranks",
    ]
    found = {"rank_seconds": 12.0, "culprits": [{"rank": 3, "share": 0.5}], "drift": 0.49}
    assert [*map(said, sentences.blame(found))] == ["of 12 s of waiting, no rank causes most"]
    assert [*sentences.blame({"culprits": [{"rank": 3, "share": 0.09}]})] == []
    delay = {"rank": 3, "delay_ns": 80 * MS, "step": 7, "rank_seconds_lost": 2.0}
    for more, text in (
        ({"victims_count": 1, "steps_to_decay": None}, "1 rank loses 2 s"),
        ({"victims_count": 1200, "steps_to_decay": 1},
         "1,200 ranks lose 2 s together, gone after 1 step"),
    ):  # fmt: skip
        [shown] = sentences.blame({"culprits": [], "largest_delay": {**delay, **more}})
        assert said(shown) == f"largest delay: rank 3 is 80 ms late in step 7; {text}"


def test_checkpoints_and_asynchrony_are_told_where_they_change_something():
    found = {"reset": 2, "amplified": 1, "unchanged": 1200}
    assert [*sentences.checkpoints(found)] == [
        "checkpoints and restarts: the run is steadier after 2 of 1,203 and less steady after 1 of "
        "1,203"
    ]
    assert [*sentences.checkpoints({"unchanged": 3})] == []
    stale = {"steps_per_round": 8.0, "staleness": {"mean": 1.5, "p95": 3.0, "max": 4.0}}
    assert [*map(said, sentences.asynchrony(stale))] == [
        "ranks synchronize every 8 steps, not always",
        "updates are 1.5 steps stale on average, 3 at p95, 4 at most",
    ]
    regular = {"steps_per_round": 8.0, "regular_rounds": True}
    assert [*sentences.asynchrony(regular)] == ["ranks synchronize every 8 steps"]


def test_ports_are_compared_over_nodes():
    ports = [{"node": node, "port": "p0", "sent_gBps": rate}
             for node, rate in (("a", 5.0), ("", 2.5), ("b", None))]  # fmt: skip
    assert [*map(said, sentences.ports(ports))] == [
        "ports of network adapters send 2.5 to 5 GB/s; least: port p0 of the node"
    ]
    assert [*sentences.ports(ports[:1])] == []


PACED = {
    "held_ranks": [1, 2], "held_share": 0.25, "held_mean_ns": 5 * MS, "lost_at_most": 0.01,
    "effect": None, "verdicts": {"kept": 1, "off": 1}, "ranks": [1, 2],
}  # fmt: skip


def test_pacing_is_told_with_whom_it_delayed_and_what_came_of_it():
    delayed = "pacing delayed ranks 1 and 2 in 25 % of the paced ranks' steps, by 5 ms on average"
    lost, result = (
        "the delays cost at most 1 % of their time",
        "result of its trials: kept (1 rank), off (1 rank)",
    )
    assert [*map(said, sentences.pacing(PACED))] == [delayed, lost, result]
    alone = {**PACED, "lost_at_most": None, "verdicts": {"kept": 2}}
    assert [*map(said, sentences.pacing(alone))] == [delayed, "result of its trials: kept"]
    nobody = [*sentences.pacing({**PACED, "held_ranks": []})]
    assert nobody[0] == "pacing delayed no rank: none was early often enough, or the trial ended it"
    kind = {"ranks": [1], "step_mean_ns": 100 * MS, "step_cv": 0.02, "held": 0.03, "wait": 0.1}
    beside = {"paced": kind, "unpaced": {**kind, "ranks": [2], "wait": None}}
    assert [*map(said, sentences.pacing({**PACED, "beside": beside, "part": "half"}))][:2] == [
        "only rank 1 may be paced, as chosen (half); rank 2 only decided and recorded",
        "paced ranks: steps of 100 ms, CV 0.02, delayed 3 % of the time, waiting 10 %; unpaced "
        "ranks: steps of 100 ms, CV 0.02, delayed 3 % of the time",
    ]


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [(0.001, 0.02, "it gains here"), (0.0, 0.02, "no effect can be told"),
     (-0.02, 0.0, "no effect can be told"), (-0.02, -0.001, "it costs here"),
     (None, None, "too few for an interval; run longer")],
)  # fmt: skip
def test_an_effect_of_pacing_is_one_beyond_its_interval(low, high, says):
    effect = {"pairs": 4, "gain": 0.01, "low": low, "high": high}
    [text] = [one for one in sentences.pacing({**PACED, "effect": effect}) if "4 pairs of" in one]
    assert says in text
    assert ("+1.0 % (95 % interval" in text) is (low is not None)


def test_actions_are_told_with_their_gain_and_reason():
    known = {"action": "gc", "word": "kept", "acted_steps": 12, "pairs": 4, "reason": "it pays"}
    told = [
        {**known, "gain": 0.05, "low": 0.04, "high": 0.06},
        {**known, "of": "all", "note": "off", "gain": -0.05, "low": -0.06, "high": -0.04,
         "reason": None},
        {"action": "gc", "word": "kept", "pairs": 1, "gain": 0.05},
        {"action": "gc", "word": "kept"},
    ]  # fmt: skip
    assert [*map(said, sentences.describe_actions({"acted": told}))] == [
        "gc: kept; active in 12 steps; a step is shorter by 5 % (4 to 6 %), from 4 pairs of "
        "blocks; it pays",
        "gc, all: off; active in 12 steps; a step is longer by 5 % (4 to 6 %), from 4 pairs of "
        "blocks",
        "gc: kept; a step is shorter by 5 %, no interval yet, from 1 pair of blocks",
        "gc: kept",
    ]
    assert [*sentences.describe_actions({})] == []


def test_stragglers_are_told_by_their_parts_the_slowest_first():
    found = {
        "blocking_slowdown": 1.25, "launch_slowdown": 1.1, "ms": {"Ms": 0.5}, "mw": {"Mw": 0.25},
        "blocking_decompose_by_stage": {f"{n}": 1.2 - n / 100 for n in range(5)},
        "blocking_decompose_by_dp_rank": {"0": 1.1},
    }  # fmt: skip
    assert [*map(said, sentences.stragglers(found))] == [
        "slowdown 1.25 ×: the step over one with every operation at its usual time; 1.1 × from "
        "work that was not recorded",
        "of the slowdown, 50 % disappears with a usual last stage (M_S) and 25 % with usual "
        "slowest workers (M_W)",
        "slowdown by stage: 0 1.2 ×, 1 1.19 ×, 2 1.18 ×, 3 1.17 × …",
        "slowdown by data-parallel rank: 0 1.1 ×",
    ]
    assert [*sentences.stragglers({"blocking_slowdown": None})] == []


# -- a decision ------------------------------------------------------------------------------------


def option(name, by="the agent", sets=(), *, training=False):
    return SimpleNamespace(name=name, training=training, by=by, sets=sets)


def margin(**more):
    known = {"crosses": None, "note": "", "tried": 0.5, "value": None, "now": 0.1}
    return SimpleNamespace(**{**known, **more})


def decided():
    """The table of two options, the second of which changes what is trained."""
    shared = {"unit": "samples/s", "joules_per_unit": None}
    rows = [
        SimpleNamespace(
            **{**shared, "joules_per_unit": 2.5}, option=option("as it is"), throughput=1000.0,
            cv=0.05, p99_ns=130 * MS, staleness=0.0,
            margins={"noise": margin(), "ranks": margin(crosses="efficiency", value=512.0)},
        ),
        SimpleNamespace(
            **shared, throughput=1205.0, cv=0.025, p99_ns=110 * MS, staleness=3.5,
            option=option("local", "the script", ("strategy.kind=diloco", "strategy.x=2"),
                          training=True),
            margins={"noise": margin(note="has none"),
                     "ranks": margin(crosses="cv", value=0.1)},
        ),
    ]  # fmt: skip
    return SimpleNamespace(
        scenario=SimpleNamespace(name="", ranks=8, run=SimpleNamespace(steps=100)), rows=rows,
        limits=SimpleNamespace(
            excess=lambda row: ["staleness at most 1"] if row.staleness else [],
            edges=SimpleNamespace(cv=0.1, efficiency=0.8),
        ),
        choice=SimpleNamespace(row=rows[1], reason="It gains 20 %."), notes=["a note"],
    )  # fmt: skip


DECISION = """\
scenario: 8 ranks, 100 steps each

                               samples/s    gain     CV       p99  stale  J each
  as it is                          1000   +0.0%  0.050    130 ms      0     2.5
 *local                             1205  +20.5%  0.025    110 ms    3.5
    breaks staleness at most 1
  * what is trained differs from waiting for every gradient

  margins (CV at most 0.1, efficiency at least 0.8);
  limited by e: efficiency, c: CV
                                    noise       ranks
  as it is                         > 50 %       512 e
  local                                 -   crossed c
 - noise: has none

recommended: local, applied by the script
  It gains 20 %.
  --set strategy.kind=diloco --set strategy.x=2
 - a note
"""


def test_a_decision_is_a_table_of_options_with_their_margins_and_advice():
    assert said(strategies.render(decided())) == DECISION


def test_a_decision_has_the_settings_that_the_agent_can_apply():
    table = decided()
    assert strategies.settings(table) == (
        "# local: recommended for this scenario\n# It gains 20 %.\n"
        "# Applied by the script, not by the agent, which only observes:\n"
        '#   strategy.kind=diloco\n#   strategy.x=2\n\n[pace]\nmode = "observe"\n'
    )
    sets = ("strategy.imbalance=0.1", "strategy.kind=paced")
    row = SimpleNamespace(option=option("pacing", strategies.AGENT, sets))
    table.choice = SimpleNamespace(row=row, reason="It pays.")
    table.scenario.name = "mine"
    assert strategies.settings(table) == (
        '# pacing: recommended for mine\n# It pays.\n\n[pace]\nmode = "on"\nthreshold = 0.1\n'
    )


@pytest.mark.parametrize(
    ("axis", "value", "text"),
    [("ranks", 511.6, "512"), ("oversubscription", 2.5, "2.5:1"), ("noise", 0.125, "12.5 %")],
)
def test_a_margin_is_in_the_unit_of_its_axis(axis, value, text):
    assert strategies._amount(axis, value) == text


# -- what if ---------------------------------------------------------------------------------------


def answer(**more):
    known = {"spec": "no rank is late", "gain": 0.2, "low": 0.1, "high": 0.3, "reason": "",
             "step_ns_before": 100 * MS, "step_ns_after": 80 * MS, "method": "replay"}  # fmt: skip
    return SimpleNamespace(**{**known, **more})


def test_answers_are_told_below_each_other():
    loss = {"gain": -0.1, "low": -0.2, "high": -0.05, "step_ns_after": 110 * MS}
    long = "y" * 50
    answers = [
        answer(), answer(spec="x", **loss), answer(spec=long, gain=None, reason="no steps"),
        answer(spec="z", low=None, high=None),
    ]  # fmt: skip
    assert said(terminal.render_answers(answers, width=80)) == (
        "What if\n"
        " no rank is late  gives back 20 % of step time (10 to 30 %); 100 ms becomes\n    80 ms\n"
        " x                costs 10 % of step time (5 to 20 %); 100 ms becomes 110 ms\n"
        f" {long}\n"
        "                  cannot be told: no steps\n"
        " z                gives back 20 % of step time; 100 ms becomes 80 ms\n"
        " by replay"
    )
    assert terminal.render_answers([]) == ""


# -- numbers of a run ------------------------------------------------------------------------------


def measured(limits=(), **summary):
    return SimpleNamespace(summary=summary, limits=list(limits))


def test_the_step_time_is_told_in_full_or_in_brief():
    time = {"mean_ns": 100 * MS, "p50_ns": 99 * MS, "p99_ns": 130 * MS, "cv": 0.05}
    rate = {"value": 10.0, "unit": "steps/s"}
    one = measured(step_time=time, throughput=rate, ranks=8, steps=1)
    assert said(terminal.step_time(one)) == (
        "step 100 ms mean · 99 ms p50 · 130 ms p99 · CV 5 % · 10 steps/s · 8 ranks, 1 step"
    )
    many = measured(["steps were inferred"], step_time=time, ranks=8, steps=60)
    assert said(terminal.step_time(many, brief=True)) == (
        "step 100 ms mean, 130 ms p99 · 8 ranks, 60 inferred steps"
    )
    assert terminal.step_time(measured(ranks=1, steps=0), brief=True) == "1 rank, 0 steps"
    assert terminal.step_time(measured(ranks=1, steps=2)).startswith("step unknown mean · unknown")


def test_communication_is_told_with_what_hides_it():
    device = {"idle": 0.2, "busy": 0.8, "compute": 0.5, "communication": 0.25, "copy": 0.05}
    whole = measured(
        device={**device, "hidden": 0.6}, communication_to_compute=0.5, rank_hours_wasted=1.5
    )
    assert said(terminal._communication(whole)) == (
        "devices busy 80 % (compute 50 % · communication 25 % · copies only 5 %), idle 20 % · "
        "compute hides 60 % of the communication · communication : compute 0.5 · 1.5 rank-hours "
        "lost"
    )
    for exposed, hidden, text in (
        (0.2, 0.1, "compute hides communication for 10 % of step time"), (0.0, 0.0, ""),
    ):  # fmt: skip
        found = measured(overlapped_communication=hidden, shares={"exposed_communication": exposed})
        assert said(terminal._communication(found)) == text


def test_goodput_is_told_with_what_it_is_lost_to_the_most_first():
    lost = {"init": 0.02, "lost_work": 0.08, "other": 0.0}
    found = measured(goodput={"share": 0.9, "elapsed_s": 3600.0, "lost": lost})
    assert said(terminal.goodput(found)) == (
        "goodput 90 % of 3,600 s; lost to lost work 8 %, initialization 2 %"
    )
    whole = measured(goodput={"share": 1.0, "elapsed_s": 60.0, "lost": {}})
    assert said(terminal.goodput(whole)) == "goodput 100 % of 60 s"
    assert terminal.goodput(measured()) == ""


# -- the figure of table 1 -------------------------------------------------------------------------


def test_a_panel_has_sizes_by_their_doublings_and_values_from_zero():
    found = reproduce._panel([1, 2, 8], {"a": [10, 20, 40]})
    width, height = 460 - 62 - 16, 300 - 42 - 40
    across = [62.0, round(62 + width / 3, 1), 444.0]
    assert found["ticks"] == list(zip(across, [1, 2, 8], strict=True))
    heights = [round(258 - value / 42 * height, 1) for value in (10, 20, 40)]
    points = zip(across, heights, strict=True)
    assert found["lines"] == {"a": " ".join(f"{x},{y}" for x, y in points)}
    assert found["grid"] == [(258.0, "0"), (203.5, "10"), (149.0, "21"), (94.5, "32"), (40.0, "42")]
    alone = reproduce._panel([4], {"a": [0.5]})
    assert (alone["ticks"], alone["grid"][-1]) == ([(62.0, 4)], (40.0, "0.53"))


def test_a_family_has_a_panel_of_throughput_with_the_ideal_and_one_of_its_scatter():
    rows = [
        {"nodes": nodes, **{arm: {"throughput": 90.0 * nodes, "cv": 0.2}
                            for arm in ("baseline", "paper", "token")},
         "published": {"nodes": nodes, "baseline": 100.0 * nodes, "coordinated": 110.0 * nodes,
                       "baseline_cv": 0.1, "coordinated_cv": 0.05}}
        for nodes in (2, 4)
    ]  # fmt: skip
    rate, scatter = reproduce._panels({"family": "BERT", "rows": rows})
    assert (rate["title"], scatter["title"]) == (
        "BERT: throughput, samples/s", "BERT: CV of step time",
    )  # fmt: skip
    arms = ["printed baseline", "printed coordination", "baseline", "paper", "token"]
    assert (list(rate["lines"]), list(scatter["lines"])) == (["ideal", *arms], arms)
    assert rate["lines"]["ideal"] == rate["lines"]["printed baseline"] == "62.0,163.6 444.0,69.3"
    assert scatter["lines"]["printed coordination"] == "62.0,206.1 444.0,206.1"


def test_timelines_are_beside_each_other_on_one_scale():
    def span(begin, end, rank=0, job=0):
        return {"begin": begin, "end": end, "rank": rank, "job": job, "kind": "compute"}

    before, after = reproduce._timelines(
        "BERT",
        {"nodes": 2, "steps": 3, "controller": "pacing", "after": [span(0, 4)],
         "before": [span(0, 5), span(5, 10, rank=1), span(0, 2, job=1)]},
        328,
    )  # fmt: skip
    shared = {"y": 328, "until": 10, "foot": 116, "height": 134,
              "lanes": [("rank 0", 40), ("rank 1", 60), ("tenant 1", 80)]}  # fmt: skip
    assert before == shared | {
        "title": "BERT: 2 nodes, without pacing", "column": 0,
        "spans": [(62.0, 40, 191.0, "compute"), (253.0, 60, 191.0, "compute"),
                  (62.0, 80, 76.4, "compute")],
    }  # fmt: skip
    assert after == shared | {
        "title": "3 steps with pacing",
        "column": 1,
        "spans": [(62.0, 40, 152.8, "compute")],
    }
