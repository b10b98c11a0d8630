"""A reader of Perfetto traces of our own, from the format's description: fields by number."""

from collections import defaultdict


def fields(data):
    """(number, value) of every field of a message: int for numbers, bytes for the rest."""
    at = 0
    while at < len(data):
        key, at = number(data, at)
        kind = key & 7
        if kind == 0:
            value, at = number(data, at)
        elif kind == 1:
            value, at = data[at : at + 8], at + 8
        else:
            assert kind == 2
            length, at = number(data, at)
            value, at = data[at : at + length], at + length
        yield key >> 3, value


def number(data, at):
    value = place = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << place
        at, place = at + 1, place + 7
        if byte < 0x80:
            return value, at


def message(data):
    """Lists of values by field number."""
    found = defaultdict(list)
    for key, value in fields(data):
        found[key].append(value)
    return found


class Reader:
    """Slices, instants and arrows of a trace, as its viewer puts them together."""

    def __init__(self, data):
        self.names, self.processes, self.tracks = {}, {}, {}
        self.slices, self.instants = [], []
        self.begins, self.arrives = {}, {}  # slice by arrow
        self.open = defaultdict(list)
        for key, packet in fields(data):
            assert key == 1
            self._packet(message(packet))

    def _packet(self, packet):
        for body in packet[12]:
            for entry in message(body)[2]:
                entry = message(entry)
                self.names[entry[1][0]] = entry[2][0].decode()
        for body in packet[60]:
            self._descriptor(message(body))
        for body in packet[11]:
            self._event(packet[8][0], message(body))

    def _descriptor(self, track):
        name = track[2][0].decode() if track[2] else ""
        if track[3]:
            self.processes[track[1][0]] = message(track[3][0])[6][0].decode()
        self.tracks[track[1][0]] = (track[5][0] if track[5] else None, name)

    def _event(self, time, event):
        track = event[11][0]
        name = self.names[event[10][0]] if event[10] else (event[23] or [b""])[0].decode()
        if event[9][0] == 1:
            one = {"track": track, "name": name, "start": time, "end": None}
            one["depth"] = len(self.open[track])
            self.open[track].append(one)
            self.slices.append(one)
            self.begins.update((bytes(flow), one) for flow in event[47])
            self.arrives.update((bytes(flow), one) for flow in event[48])
        elif event[9][0] == 2:
            self.open[track].pop()["end"] = time
        else:
            self.instants.append({"track": track, "name": name, "time": time})

    def rank(self, one):
        """Name of the process a slice or an instant belongs to."""
        parent, _ = self.tracks[one["track"]]
        return self.processes[parent] if parent else ""

    def on(self, track):
        """Slices of tracks of this name."""
        return [one for one in self.slices if self.tracks[one["track"]][1] == track]
