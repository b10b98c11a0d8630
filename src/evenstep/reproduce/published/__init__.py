"""Published measurements, from stated inputs: few rows fitted, the rest predicted."""
