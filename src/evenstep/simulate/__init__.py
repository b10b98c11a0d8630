"""Scenario to trace: what a job will do on a fabric, at a size, with a strategy.

The nouns, in the order data flows through them:

    Scenario   what is asked: dataclasses that mirror one TOML file       scenario.py, hardware.py,
                                                                          schema.py, consistency.py
    Network    links as arrays (capacity, latency) and routes as CSR      network.py, fabrics.py
    Machines   what is where in each machine, and how fast it is          machines.py
    Placement  which GPU each rank has                                    placement.py
    Pattern    a collective as stages of messages between ranks           collectives.py
    Flow       a pattern laid on the network: time, bytes per link        flows.py, rings.py
    Wire       when collectives end, from when their ranks enter          wire.py, groups.py
    Program    one step of the work as compute and collectives            program.py
    Noise      factors and delays of every rank and step                  noise.py
    Timeline   other jobs on the same links                               neighbours.py
    Engine     runs the program step by step: fast, or `exact`            engine.py, exact.py
    Recording  rows of a step become records: a `Trace`, a run folder     recording.py
    Learning   coflows put right by a run's first steps                   learning.py
    Rehearsal  a collective carried out once, exactly, to know its length rehearsal.py
    Archive    where a recording is kept                                  archive.py
    Result     what a person wants to know of the run                     result.py
    Updates    how stale gradients are where nobody waits for them        staleness.py
    Table      every strategy, algorithm and layout, and which to take    decision.py
    Margin     how much more an option bears before it is unstable        margin.py

Time is a float64 of nanoseconds since the job's start (exact to a tenth of a picosecond over a
day) and rounded once, when it is recorded. A gigabyte per second is a byte per nanosecond, so
capacities need no conversion.

How messages move, in both engines. A collective is a list of rounds. In a round a rank sends and
receives what its pattern says; it begins the next round when all of that is delivered. A message
leaves when its source is in the round; where ranks fold into halving-doubling, its target, too. It
takes the latencies of its links plus its bytes over its rate; rates are max-min fair over the
links. `exact` simulates every message. The fast engine takes a collective as one coflow: each hop
has the time it takes under the collective's own load, and the collective ends at
max over ranks of (entry + longest chain of hops from there). Where no link is shared this is the
exact result. Where one is, it is exact for equal messages that start together. With late ranks
it was off by more than 1 % of a step in a third of random small scenarios, so the fast engine, too,
takes message by message as long as a run has at most `rehearsal.MOST_OF_RUN` of them. In longer
runs of jobs as small, coflows are put right by what the first steps showed (`learning`). In larger
ones, small collectives are rehearsed message by message once, and what a late rank leaves to the
others of a small ring is taken into account (`skew`). What remains is seldom above 1 % for rings,
but up to 10 % for trees, halving-doubling and direct exchanges of ranks out of step, and 20 % for
parameter servers.

A calm job, one without noise and neighbours, begins as it comes out of its own steps, so all steps
are alike; where it never settles, its ranks begin each step together.

Limits. One job's collectives share one stream: two partitions' do not overlap. Groups of a
partition are one coflow where they begin together or neighbours are there, else one coflow each.
The exact engine keeps collectives of one call apart from those of the next.

To add to it: a fabric is a builder in `fabrics.BUILDERS`; an algorithm a function in
`collectives.ALGORITHMS`; a kind of work a function in `program.PROGRAMS`; a noise a function in
`noise.SOURCES`; a strategy a `Pace` (`strategies.pace_of`) or a `Wire` (`simulation`). A preset is
a TOML file in `presets/`, which scenarios name in `preset`.
"""
