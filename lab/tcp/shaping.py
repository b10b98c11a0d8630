"""A link's speed and buffer, in the words of `tc`. Pure: lines for `tc -batch`."""

from __future__ import annotations

from dataclasses import dataclass

from evenstep.errors import ConfigError

FRAME_BYTES = 1514  # an Ethernet frame of the usual size, without its check sum
_BURST_S = 0.0005  # a bucket this long smooths less than any queue worth looking at


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How fast one direction of a link is, and what waits in front of it.

    Raises `ConfigError` naming the field that cannot be.
    """

    gbps: float
    buffer_bytes: int
    shaper: str = "tbf"
    queue: str = "bfifo"

    def __post_init__(self) -> None:
        if not 0.0001 <= self.gbps <= 100:
            raise ConfigError(f"gbps of a link must be from 0.0001 to 100, found {self.gbps!r}")
        if self.buffer_bytes < 2 * FRAME_BYTES:
            raise ConfigError(
                f"buffer_bytes must be at least {2 * FRAME_BYTES}, two frames, "
                f"found {self.buffer_bytes!r}"
            )

    @property
    def bits_per_second(self) -> int:
        """The rate as `tc` takes it."""
        return round(self.gbps * 1e9)

    @property
    def burst_bytes(self) -> int:
        """How much may pass at once: half a millisecond, two frames at least."""
        return max(2 * FRAME_BYTES, round(self.bits_per_second / 8 * _BURST_S))


def lines(device: str, shape: Shape) -> list[str]:
    """What shapes everything that leaves by a device."""
    rate, burst = f"{shape.bits_per_second}bit", f"{shape.burst_bytes}b"
    if shape.shaper == "htb":
        shaper = [
            f"qdisc add dev {device} root handle 1: htb default 1",
            f"class add dev {device} parent 1: classid 1:1 htb rate {rate} burst {burst} "
            f"cburst {burst} quantum {FRAME_BYTES}",
        ]
    else:
        # tbf's own limit stands above the queue that is put inside it, so that the latter decides.
        limit = shape.buffer_bytes + shape.burst_bytes
        shaper = [
            f"qdisc add dev {device} root handle 1: tbf rate {rate} burst {burst} limit {limit}b"
        ]
    return [*shaper, f"qdisc add dev {device} parent 1:1 handle 10: {_queue(shape)}"]


def _queue(shape: Shape) -> str:
    if shape.queue == "bfifo":
        return f"bfifo limit {shape.buffer_bytes}b"
    if shape.queue == "pfifo":
        return f"pfifo limit {max(2, shape.buffer_bytes // FRAME_BYTES)}"
    # Floyd and Jacobson 1993: marking begins at a quarter, the upper mark is three times as high.
    low = max(FRAME_BYTES, shape.buffer_bytes // 4)
    burst = (2 * low + 3 * low) // (3 * 1000) + 1
    return (
        f"red limit {shape.buffer_bytes}b min {low}b max {3 * low}b avpkt 1000 burst {burst} "
        f"probability 0.1 bandwidth {shape.bits_per_second}bit"
    )


def changes(device: str, shape: Shape) -> list[str]:
    """What gives a device shaped like this before another speed and buffer."""
    return [row.replace(" add ", " change ", 1) for row in lines(device, shape)
            if "root handle 1: htb" not in row]  # fmt: skip
