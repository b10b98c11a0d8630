"""Attaching to a training process: on top of the hooks, below the frameworks."""


def arm(stack: str) -> None:
    """A stack ("torch", "mpi" or "jax") was imported: attach once it knows the ranks."""
    from evenstep.attachment import agent

    agent.arm(stack)
