"""Many simulations: sweeps, scaling, decisions."""
