"""What is asked of a simulation: dataclasses that mirror one TOML file.

    Scenario   cluster, fabric, job, noise, neighbours                    scenario.py, hardware.py
    schema     settings that document and check themselves                schema.py, fields.py
    consistency what contradicts itself, found before anything is built   consistency.py
    presets    TOML files by name                                         presets/

To add a field: with its unit, bounds and meaning in its dataclass; docs and `--fields` follow.
"""
