"""The job: its program step by step, and what is recorded of it."""
