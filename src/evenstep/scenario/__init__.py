"""The input of a simulation: dataclasses that mirror one TOML file.

    Scenario   cluster, fabric, job, noise, neighbours; none contradicts  scenario.py, hardware.py,
               another                                                    parts.py
    schema     settings that document and check themselves                schema.py
    presets    TOML files by name                                         presets/

To add a field: with its unit, bounds and meaning in its dataclass; docs and `--fields` follow.
"""
