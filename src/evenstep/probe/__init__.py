"""A preflight of a minute: what each rank, each link and the whole can do before a job starts.

Plan       what is measured, stage by stage                           rank.py, exchange.py
Board      where ranks post what they have measured                   outcome.py
Kernels    measurements of one rank, and between two steps of a job   kernels.py
Outcome    what the posts come to                                     outcome.py
Finding    who is slow, beyond what the noise allows                  findings.py
document   plain values: JSON, and the floors of a diagnosis          document.py
Scenario   of the machine that was probed                             scenario.py
"""
