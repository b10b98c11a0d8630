"""Stands for srun on one machine: starts SLURM_NTASKS tasks and passes SIGUSR1 on to them."""

import os
import signal
import subprocess
import sys

command = sys.argv[1:]
while command[0].startswith("-"):
    command = command[1:]
command += os.environ.get("LAST_ARGUMENTS", "").split()  # evenstep is not told of them
tasks = []
signal.signal(signal.SIGUSR1, lambda number, _: [task.send_signal(number) for task in tasks])
for rank in range(int(os.environ["SLURM_NTASKS"])):
    place = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_NODEID": "0"}
    tasks.append(subprocess.Popen(command, env=os.environ | place))
sys.exit(max(abs(task.wait()) for task in tasks))
