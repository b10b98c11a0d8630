"""A running job, watched: terminal, page, alerts."""
