"""Other numbers of ranks: scaling seen, and forecasts."""
