"""A preflight that measures the speed of ranks and links for a minute, before a job starts.

ProbeRank     the measurements of a rank, stage by stage              preflight.py
measurements  of one rank, also between steps of a job, and of pairs  measurements.py
Board         where ranks post their measurements                     outcome.py
ProbeResult   all measurements                                        outcome.py
ProbeFinding  ranks and links that are slower than noise explains     findings.py
document      JSON, text, and the floors of a diagnosis               document.py
scenario      a scenario of the probed cluster                        scenario.py
"""
