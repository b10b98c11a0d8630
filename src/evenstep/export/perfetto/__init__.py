"""Perfetto's own format, TrackEvent, by our own small encoder.

Slices     what a rank did, as columns: slices, flows, instants       slices.py, flows.py
Tracks     where slices lie: those of a track nest                    tracks.py
Wire       protocol buffers, one message or many                      wire.py
document   the file, written whole                                    document.py
"""
