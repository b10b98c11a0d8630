"""Perfetto's own format, TrackEvent, by our own small encoder.

Slices     what a rank did, as columns: slices, flows, instants       slices.py
layout     where slices lie: those of a track nest; arrows            layout.py
Wire       protocol buffers, one message or many                      wire.py
document   the file, written whole                                    document.py
"""
