"""The part of mpi4py that hooks replace, of a world of four that answers at once."""

from __future__ import annotations

from types import SimpleNamespace

from evenstep.hooks.mpi import calls

ANYBODY, ANY_TAG, NOBODY = -1, -2, -3
REFUSED = object()  # an argument that MPI does not take


class Status:
    """Of a message that has come from rank 2 of its communicator with tag 9."""

    source, tag = 2, 9

    def Get_source(self):  # noqa: N802
        return self.source

    def Get_tag(self):  # noqa: N802
        return self.tag


class Group:
    def __init__(self, ranks):
        self.ranks = ranks

    def Get_size(self):  # noqa: N802
        return len(self.ranks)

    def Translate_ranks(self, ranks, _):  # noqa: N802
        return [self.ranks[rank] for rank in ranks]

    def Free(self):  # noqa: N802
        self.ranks = ()


def small_mpi():
    """A module like `mpi4py.MPI`, with classes of its own; `made` lists the calls it has got."""
    made = []

    class RefusedError(Exception):
        pass

    def call(name, answer):
        def method(owner, *args, **kwargs):
            """Of MPI."""
            made.append((name, args, kwargs))
            if any(one is REFUSED for one in args):
                raise RefusedError(name)
            return answer(owner)

        method.__name__ = name
        return method

    class Request:
        def __init__(self, handle=0):
            self.handle = handle

    def ended(request):
        made.append(request)
        return mpi.result

    for name in ("Wait", "wait", "Test", "test", "Free"):
        setattr(Request, name, call(name, lambda request: ended(request.handle)))
    for name in ("all", "any", "some"):
        for full in (f"Wait{name}", f"Test{name}", f"wait{name}", f"test{name}"):
            setattr(Request, full, classmethod(call(full, lambda _: mpi.result)))

    class Comm:
        def __init__(self, handle=1, ranks=(3, 2, 1, 0), name="small"):
            self.handle, self.ranks, self.name = handle, ranks, name

        def Get_group(self):  # noqa: N802
            return Group(self.ranks)

        def Is_inter(self):  # noqa: N802
            return False

        def Get_name(self):  # noqa: N802
            return self.name

        def Get_size(self):  # noqa: N802
            return len(self.ranks)

        def Get_rank(self):  # noqa: N802
            return 3

    for name in (*calls.BLOCKING, *calls.BLOCKING_MESSAGES):
        setattr(Comm, name, call(name, lambda _, name=name: f"of {name}"))
    for name in (*calls.NONBLOCKING, *calls.NONBLOCKING_MESSAGES):
        setattr(Comm, name, call(name, lambda _: Request(mpi.handle)))
    for name in ("Dup", "Split"):
        setattr(Comm, name, call(name, lambda _: Comm(mpi.handle)))
    Comm.Free = call("Free", lambda _: None)
    intra = type("Intracomm", (Comm,), {"Create_group": call("Create_group", lambda _: Comm(8))})
    mpi = SimpleNamespace(
        Comm=Comm, Intracomm=intra, Topocomm=type("Topocomm", (intra,), {}),
        Intercomm=type("Intercomm", (Comm,), {"Merge": call("Merge", lambda _: Comm(9))}),
        Cartcomm=type("Cartcomm", (intra,), {}), Request=Request, Status=Status,
        Exception=RefusedError, PROC_NULL=NOBODY, ANY_SOURCE=ANYBODY, ANY_TAG=ANY_TAG,
        COMM_NULL=None, UNDEFINED=-9, COMM_WORLD=Comm(0, (0, 1, 2, 3), "MPI_COMM_WORLD"),
        made=made, result=None, handle=5,
        Is_initialized=lambda: mpi.initialized, Is_finalized=lambda: mpi.finalized,
        initialized=True, finalized=False, Get_library_version=lambda: "Small 1\nbuilt\0",
        Init=lambda: "started", Init_thread=lambda: "started",
    )  # fmt: skip
    return mpi
