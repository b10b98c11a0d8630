"""torch: collectives, phases and steps from the dispatcher and the process groups."""
