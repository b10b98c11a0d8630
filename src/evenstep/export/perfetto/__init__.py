"""Perfetto's native format, TrackEvent, with our own encoder.

slices     slices, flows and instants of a run; lanes, nesting        slices.py
wire       protocol buffers, one message or many                      wire.py
document   the whole file                                             document.py
"""
