"""Facts of the host: processors, devices, control groups, limits, and counters that are sampled.

    locality     the place of a rank, and distances between its devices   locality.py
    ResourceUse  a process's use of resources in a step                   resources.py
    cgroup       quota and throttling of processor time                   sources/cpu.py
    Source       counters sampled in the background                       sources/

Standard library only, for the agent and the doctor. A value that cannot be read is None, never an
error.
"""
