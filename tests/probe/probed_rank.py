"""A rank of a probe with a fault in it: `-m tests.probe.probed_rank FAULT RANK -- arguments`."""

import os
import sys
import time

from evenstep.cli.main import main
from evenstep.probe import measurements

#: Added to each matrix product of the slow rank: many times its length, also on a busy machine.
PAUSE_S = 0.2


def slow(torch, a, b, out):
    torch.mm(a, b, out=out)
    time.sleep(PAUSE_S)


def die(device):
    os._exit(7)


fault, rank, _, *arguments = sys.argv[1:]
if os.environ["RANK"] == rank:
    if fault == "slow":
        measurements.multiply = slow
    elif fault == "die":
        measurements.memory_copy = die
sys.exit(main(arguments))
