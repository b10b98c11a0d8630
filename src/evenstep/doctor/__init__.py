"""Is this host fit for distributed training? Read, judged and explained; nothing is changed.

    Host       `/proc`, `/sys`, environment, drivers, packages            host.py
    Check      what was found, why it matters, how to mend it             check.py, checks.toml
    Examination all checks in order, what they come to, as text           examination.py

The checks: processors, kernel, limits, network, pcie, gpus, topology, variables, versions. To add
one: a function that takes a `Host` and yields `Check`s, named in examination.py; what it says of
what is wrong stands in checks.toml.
"""
