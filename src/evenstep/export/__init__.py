"""Traces and verdicts for other tools."""
