"""Trace to findings: one module per failure mode, and the engine that ranks them."""
