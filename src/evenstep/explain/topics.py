"""Every quantity that can be explained, by what it is about."""

from __future__ import annotations

from evenstep.explain import communication, efficiency, operation, waiting
from evenstep.explain.topic import Topic

TOPICS: tuple[Topic, ...] = (
    communication.ALLREDUCE,
    communication.BUSBW,
    communication.COMPRESSION,
    communication.RANK_ORDER,
    efficiency.EFFICIENCY,
    efficiency.OVERLAP,
    waiting.SLOWEST,
    waiting.BACKUP,
    waiting.LOCAL_SGD,
    waiting.STALENESS,
    waiting.CONTENTION,
    operation.CHECKPOINT,
    operation.FAILURES,
    operation.GOODPUT,
    operation.ENERGY,
)
BY_NAME = {topic.name: topic for topic in TOPICS}
