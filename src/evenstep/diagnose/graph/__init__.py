"""One dependency graph of a run, and its replay in absolute times (max-plus)."""
