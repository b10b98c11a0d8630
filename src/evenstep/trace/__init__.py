"""The data: record layout, spool, Trace, clocks, identity of a run."""
