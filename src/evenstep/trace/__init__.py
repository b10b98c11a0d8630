"""The data: what is recorded, how it lies on disk, and the `Trace` that everybody reads.

The nouns, in the order data flows through them:

    Spool      one rank's ring of records on disk, while it is written    spool/
    SpoolContents  a spool as arrays, whether its rank ended or died      reader.py
    Survey     one look through a spool that stays on disk                spools.py
    Columns    named arrays of one length                                 columns.py, spooled.py
    Trace      every rank's columns, groups, names and limits             trace.py, loading.py
    Clocks     one time line out of many clocks                           clocks/
    Store      the same as Parquet files, and SQL over them               store/

Limits. A record is 112 bytes and frozen (docs/layout.md); times are each rank's own monotonic clock
until `Clocks` has placed them. What lives in a training process is spool/, of the standard library
alone; the rest needs numpy.

To add a kind of record: a member of `Kind` or `Op` in spool/layout.py, a row in docs/layout.md.
"""
