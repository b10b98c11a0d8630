"""What is asked of a simulation: dataclasses that mirror one TOML file."""
