"""Facts of the host: processors, devices, control groups, limits, and counters that are sampled.

    Locality   where a rank runs, and how far its parts are apart         locality.py, pci.py
    ResourceUse       what the operating system did to a process in a step       resources.py
    cgroup     how much processor time may be used, and was held back     cgroup.py
    Source     a counter sampled in the background                        sources/

Standard library only: both the agent and the doctor look here. What cannot be read is None, never
an error.
"""
