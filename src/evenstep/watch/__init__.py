"""A running job, watched from outside: terminal, page, alerts.

    SeenRank   the latest steps and facts of one spool                    spool.py
    Window     the latest steps as numbers, rank by rank                  window.py
    LiveRun    a run followed attempt after attempt                       run.py, tree.py, node.py
    LiveFinding what stands out now, by the rules of the diagnosis        findings.py
    Frame      one moment as plain values                                 frame.py
    LiveServer the page, on this machine, behind a token                  web.py, terminal.py

Limits. A look costs a fixed number of bytes per rank, whatever the run's length; the job notices
nothing.
"""
