"""A job of two ranks: every kind of call once, then a loop in which rank 1 is late."""

import sys
import time

import numpy as np
from mpi4py import MPI

import evenstep

LATE_S = float(sys.argv[1])
comm = MPI.COMM_WORLD
other = 1 - comm.rank
row, answer = np.ones(8, "f4"), np.zeros(8, "f4")
wide = np.zeros(16, "f4")

with evenstep.span("blocking"):
    comm.Allreduce(row, answer)
    comm.Allreduce(MPI.IN_PLACE, answer, op=MPI.MAX)
    comm.Bcast([row, MPI.FLOAT], root=1)
    comm.Reduce(row, answer, MPI.SUM, 1)
    comm.Allgather(row, wide)
    comm.Barrier()
with evenstep.span("pickled"):
    comm.allreduce(3)
    comm.bcast({"any": "thing"}, root=1)
    comm.barrier()
with evenstep.span("later"):
    MPI.Request.Waitall([comm.Iallreduce(row, answer), comm.Ibarrier()])
with evenstep.span("groups"):
    for _ in range(2):
        part = comm.Split(comm.rank, 0)
        part.Allreduce(row, answer)
        whole = comm.Dup()
        whole.Allreduce(row, answer)
        part.Free()
        whole.Free()
with evenstep.span("messages"):
    if comm.rank:
        comm.Send(row, 0, tag=5)
        comm.send("text", dest=0, tag=6)
    else:
        comm.Recv(answer, source=1, tag=5)
        comm.recv()
    comm.Sendrecv(row, other, 7, answer, other, 7)
    requests = [comm.Irecv(answer, MPI.ANY_SOURCE, MPI.ANY_TAG), comm.Isend(row, other, 8)]
    MPI.Request.Waitall(requests)
    comm.Send(row, MPI.PROC_NULL)
with evenstep.span("refused"):
    for refused in (
        lambda: MPI.COMM_NULL.Barrier(), lambda: comm.Send(row, "a rank"),
        lambda: comm.Bcast(row, root="a rank"), lambda: comm.Isend(row, []),
    ):  # fmt: skip
        try:
            refused()
        except (MPI.Exception, TypeError):
            comm.Barrier()

for _ in range(40):
    time.sleep(0.004 + LATE_S * (comm.rank == 1))
    comm.Allreduce(row, answer)
    comm.Ibarrier().Wait()

mine = [cls.__dict__[name] for cls, name in ((MPI.Comm, "Allreduce"), (MPI.Request, "Wait"))]
evenstep.detach()
restored = [cls.__dict__[name] for cls, name in ((MPI.Comm, "Allreduce"), (MPI.Request, "Wait"))]
changed = all(a is not b for a, b in zip(mine, restored, strict=True))
# One write: the ranks share a pipe, and an unbuffered print writes in pieces.
sys.stdout.write(f"restored {changed} {answer[0]:.1f}\n")
sys.stdout.flush()
