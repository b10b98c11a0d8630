"""Checks whether a host is fit for distributed training; nothing is changed.

    Host        `/proc`, `/sys`, environment, drivers, packages           host.py
    Check       observation, why it matters, how to fix it                check.py, checks.toml
    Examination all checks in order, their summary, as text               examination.py

The checks: processors, kernel, limits, network, pcie, gpus, topology, variables, versions. To add
one, write a function that takes a `Host` and yields `Check`s, list it in examination.py, and put
the texts of its failures in checks.toml.
"""
