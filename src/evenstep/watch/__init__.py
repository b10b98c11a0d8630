"""Live view of a running job, from its files: terminal, page.

    SpoolTail   the latest steps and facts of one spool                   spool.py
    RankWindow  the latest steps as numbers, per rank                     run.py
    LiveRun     a run followed from attempt to attempt                    run.py, tree.py
    LiveFinding current findings, by the rules of the agent               findings.py
    Frame       the state of the run as plain values                      frame.py
    LiveServer  the page, on localhost, behind a token                    web.py, terminal.py

Limits. A refresh reads a fixed number of bytes per rank, whatever the run's length, and never
disturbs the job.
"""
