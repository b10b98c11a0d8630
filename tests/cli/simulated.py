"""Small simulated runs for the commands that read them."""

from evenstep.cli.main import main

SCENARIO = """
name = "small"
[cluster]
nodes = 2
gpus_per_node = 2
nics_per_node = 2
nic_gBps = 50
[work]
forward_ms = 30
backward_ms = 60
optimizer_ms = 5
gradient_bytes = "50MB"
buckets = 2
samples_per_rank = 16
[[noise]]
kind = "normal"
sigma = 0.01
[run]
steps = 60
"""
SLOW = '[[noise]]\nkind = "slow"\nranks = "3"\nfactor = 1.3\n'


def simulate(folder, *, slow=False, seed=0, over_by=None):
    """A run of four ranks on two nodes; rank 3 may compute 1.3 times slower, until a step."""
    scenario = folder.with_suffix(".toml")
    noise = SLOW if slow else ""
    noise += f"last_step = {over_by}\n" if over_by else ""
    scenario.write_text(SCENARIO.replace("[run]", f"{noise}[run]\nseed = {seed}"))
    assert main(["simulate", str(scenario), "--out", str(folder)]) == 0
    return folder
