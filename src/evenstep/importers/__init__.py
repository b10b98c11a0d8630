"""Read other tools' files as traces; formats are recognised by content, not by file name.

The nouns, in the order a file flows through them:

    SourceFile  a file and its first bytes                                content.py, compression.py
    TraceFormat recognises a source, and reads it                         content.py
    Content     the bytes, lines or columns of a file, bounded            content.py, tables.py
    Draft       a trace being assembled, file by file                     draft.py
    Trace       the result of `opening.load`, with its limits in words

Nothing in a file is executed; every reader is bounded in bytes, depth, count and time.

To add a format: a module that is a `TraceFormat`, named in `opening.FORMATS`.
"""
