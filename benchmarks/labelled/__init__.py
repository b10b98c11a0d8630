"""Traces whose cause is known: what the diagnosis is judged by."""
