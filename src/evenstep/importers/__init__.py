"""Other tools' files as traces: found by their content, never by their name.

The nouns, in the order a file flows through them:

    Source     a file and its first bytes                                 content.py, compression.py
    TraceFormat recognises a source, and reads it                         content.py
    Content    the whole of a file, never more than its kind can have     content.py, tables.py
    Draft      a trace in the making, gathered file by file               draft.py
    Trace      what `opening.load` gives, with what it cannot tell in its limits

The formats: kineto/, nsys/, flight_recorder/, nccl/, operations/, steps/.

Limits. Nothing of a file is executed; every reader is bounded in bytes, depth, count and time.

To add a format: a module with a `FORMAT`, named in `opening.FORMATS`.
"""
