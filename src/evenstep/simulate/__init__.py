"""Scenario to trace: what a job will do on a fabric, at a size, with a strategy."""
