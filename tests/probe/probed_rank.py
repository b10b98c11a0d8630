"""A rank of a probe with a fault in it: `probed_rank.py FAULT RANK -- arguments of evenstep`."""

import os
import sys
import time

from evenstep.cli.main import main
from evenstep.probe import kernels

PAUSE_S = 0.05  # added to each matrix product of the slow rank: several times its own length


def slow(torch, a, b, out):
    torch.mm(a, b, out=out)
    time.sleep(PAUSE_S)


def die(device, budget_ns):
    os._exit(7)


fault, rank, _, *arguments = sys.argv[1:]
if os.environ["RANK"] == rank:
    if fault == "slow":
        kernels.multiply = slow
    elif fault == "die":
        kernels.copy = die
sys.exit(main(arguments))
