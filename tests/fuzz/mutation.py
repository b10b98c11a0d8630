"""Changes that keep a file's shape: of a value in JSON, of a line in text, of bits in the rest.

All of it follows from a `random.Random`, so that an input is a subject's name and a number.
"""

import json
from random import Random

DEEP = 3_000
NUMBERS = (
    *("0", "-1", "1", "255", "65536", "2147483648", "-9223372036854775808", "18446744073709551616"),
    *(
        "1e308",
        "1e400",
        "-1e-320",
        "nan",
        "inf",
        "NaN",
        "1048575",
        "999999999999",
        "9" * 400,
        "0x7f",
    ),
)
VALUES = (
    *(None, True, False, 0, -1, 1 << 20, 1 << 31, 1 << 62, 1 << 63, 1 << 64, 10**30, -(1 << 63)),
    *(
        0.5,
        -0.0,
        1e308,
        float("inf"),
        float("nan"),
        "",
        "0",
        "x" * 3_000,
        "\x1b[31m\n\0",
        "../../etc",
    ),
    *([], {}, [[]], {"": None}, [0] * 500, {"a": {"a": {"a": 1}}}, list(range(300)), "1" * 5_000),
)
WORDS = (
    b"\0",
    b"\xff\xfe",
    b"\x1b[2J",
    b"(" * 50,
    b"[" * DEEP,
    b"{" * 500,
    b"a." * 500,
    b"A" * 4_000,
)
EDGES = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x7FFFFFFF,
    0xFFFFFFFF,
    (1 << 63) - 1,
    (1 << 64) - 1,
)


def mutated(seed: bytes, random: Random) -> bytes:
    """The seed after one change, or several."""
    data = seed
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        data = _once(data, random)
    return data


def _once(data: bytes, random: Random) -> bytes:
    start = data.lstrip()[:1]
    if start in (b"{", b"[") and random.random() < 0.7:
        changed = _json(data, random)
        if changed is not None:
            return changed
    if b"\n" in data[:4096] and b"\0" not in data[:4096] and random.random() < 0.7:
        return _lines(data, random)
    return _bytes(data, random)


def _json(data: bytes, random: Random) -> bytes | None:
    lines = data.split(b"\n")
    at = random.randrange(len(lines)) if len(lines) < 200 and _is_json(lines[0]) else None
    try:
        document = json.loads(data if at is None else lines[at])
    except (ValueError, RecursionError):
        return None
    places = list(_places(document))
    if not places:
        return None
    holder, key = random.choice(places)
    _change(holder, key, random)
    changed = json.dumps(document).encode()
    if at is None:
        return changed
    return b"\n".join([*lines[:at], changed, *lines[at + 1 :]])


def _is_json(line: bytes) -> bool:
    return line.startswith(b"{") and line.rstrip().endswith(b"}")


def _places(value: object):
    """Every place of a value in a document: what holds it, and under which key."""
    pairs = value.items() if isinstance(value, dict) else ()
    pairs = enumerate(value) if isinstance(value, list) else pairs
    for key, part in list(pairs):
        yield value, key
        yield from _places(part)


def _change(holder, key, random: Random) -> None:
    way = random.random()
    if way < 0.6:
        holder[key] = random.choice(VALUES)
    elif way < 0.75:
        del holder[key]
    elif way < 0.85 and isinstance(holder, list):
        holder += [holder[key]] * random.choice((1, 20))
    elif way < 0.95 and isinstance(holder, dict):
        holder[random.choice(list(holder))] = holder[key]
    else:
        holder[key] = [holder[key]]


def _lines(data: bytes, random: Random) -> bytes:
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    words = lines[at].split(b" ")
    word = random.randrange(len(words))
    way = random.randrange(8)
    if way == 0:
        del lines[at]
    elif way == 1:
        lines[at:at] = [lines[at]] * random.choice((1, 3, 100))
    elif way == 2:
        other = random.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    elif way == 3:
        words[word] = random.choice(NUMBERS).encode()
    elif way == 4:
        words[word] = random.choice(WORDS)
    elif way == 5:
        words[word:word] = [words[word]] * random.choice((1, 500))
    else:
        cells = lines[at].split(b",")
        cells[random.randrange(len(cells))] = random.choice(NUMBERS).encode()
        words = [b",".join(cells)]
    if way >= 3 and lines:
        lines[at] = b" ".join(words)
    return b"\n".join(lines)


def _bytes(data: bytes, random: Random) -> bytes:
    if not data:
        return bytes([random.randrange(256)])
    changed = bytearray(data)
    places = (random.randrange(len(changed)) for _ in range(30))
    at = next((place for place in places if changed[place]), 0)  # most of a spool is empty
    at = at if random.random() < 0.6 else at % 256  # headers are where the sizes stand
    way = random.randrange(7)
    if way < 2:
        changed[at] ^= 1 << random.randrange(8)
    elif way == 2:
        width = random.choice((1, 2, 4, 8))
        changed[at : at + width] = (random.choice(EDGES) % (1 << 8 * width)).to_bytes(
            width, "little"
        )
    elif way == 3:
        del changed[at:]
    elif way == 4:
        del changed[at : at + random.choice((1, 8, 64, 4096))]
    elif way == 5:
        length = random.choice((1, 8, 64, 1024))
        changed[at:at] = changed[at : at + length] * random.choice((1, 2, 50))
    else:
        changed[at:at] = random.choice(WORDS)
    return bytes(changed)
