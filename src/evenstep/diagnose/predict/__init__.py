"""What a run would take with a change, or at other numbers of ranks."""
