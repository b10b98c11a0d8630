"""Scenario to trace: what a job will do on a fabric, at a size, with a strategy.

The nouns, in the order data flows through them:

    Network    links as arrays (capacity, latency) and routes as CSR      fabric/network.py
    Placement  which GPU each rank has                                    fabric/placement.py
    Pattern    a collective as rounds of messages between ranks           fabric/collectives.py
    Flow       a pattern laid on the network: links, bytes, latencies     fabric/flows.py
    Graph      one step of the work as operations of each kind of rank    job/graph.py, program.py
    Noise      factors and delays of every rank and step                  fabric/noise.py
    World      all jobs on all links: when each operation is over         wires/world.c, world.py
    Engine     feeds our job to the world, step by step, and reads it     job/engine.py
    Other      another job on the same links                              job/neighbours.py
    Recorder   rows of a step become records: a `Trace`, a run folder     job/recording.py
    Result     what a person wants to know of the run                     result.py
    Unsynchronised  how stale gradients are where nobody waits for them   job/strategies.py
    Table      every strategy, algorithm and layout, and which to take    study/decision.py

Time is a float64 of nanoseconds since the job's start (exact to a tenth of a picosecond over a
day) and rounded once, when it is recorded. A gigabyte per second is a byte per nanosecond, so
capacities need no conversion.

How messages move. A collective is a list of rounds. In a round a rank sends and receives what its
pattern says; it begins the next round when all of that is delivered. A message leaves when its
source is in the round; where ranks fold into halving-doubling, its target, too. It takes the
latencies of its links plus its bytes over its rate; rates are max-min fair over the links, and
everything that is on them at a moment shares them: all collectives of the job, its messages between
stages, other jobs. There is no other model. A collective that shares no link with anything has its
ends worked out at once, and of a ring of which few messages can meet others only those are
followed; both are the same.

A calm job, one without noise and neighbours, begins as it comes out of its own steps, so all steps
are alike; where it never settles, its ranks begin each step together. Neighbours that can touch
neither the job nor anybody who does are left out.

To add to it: a fabric is a builder in `fabrics.BUILDERS`; an algorithm a function in
`collectives.ALGORITHMS`; a kind of work a function in `program.PROGRAMS`; a noise a function in
`noise.SOURCES`; a strategy a `Pace` (`strategies.pace_of`) or operations of the graph. A preset is
a TOML file in `scenario/presets/`, which scenarios name in `preset`.
"""
