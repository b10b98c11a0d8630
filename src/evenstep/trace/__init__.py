"""The data: what is recorded, its layout on disk, and the `Trace` that every analysis reads.

The nouns, in the order data flows through them:

    Spool      one rank's ring of records on disk, while it is written    spool/
    SpoolContents  a spool as arrays, whether its rank ended or died      reader.py
    Survey     index and rare records of a spool that stays on disk       spools.py
    Columns    named arrays of one length                                 columns.py, spooled.py
    Trace      every rank's columns, groups, names and limits             trace.py, loading.py
    Clocks     alignment of the hosts' clocks to one reference            clocks/
    Store      a trace as Parquet files, and SQL over them                store/

A record is 112 bytes and frozen (docs/layout.md). Times are on each rank's own monotonic clock
until `Clocks` aligns them. spool/ runs inside the training process and imports the standard library
only; the rest needs numpy.

To add a kind of record: a member of `Kind` or `Op` in spool/layout.py, a row in docs/layout.md.
"""
