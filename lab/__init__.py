"""Real processes on an emulated fabric: what a controller does to jobs that really run.

The nouns, in the order data flows through them:

    Scenario   what is asked: one TOML file                               scenario.py, faults.py
    Arm        a controller under comparison, and its turn                arms.py
    Board      which block is on, for every process to see                board.py
    Tier       how jobs and links are made real                           tier.py, fair/, tcp/, mpi/
    RankHost   recorder and pacers in a rank that the laboratory drives   rank_host.py
    Campaign   blocks in turn, until all are done or time is up           run.py
    Steps      step times of every job, labelled with their block         steps.py
    Outcome    gain and CV of every arm, with intervals                   outcome.py
    Prediction the same scenario in the simulator                         prediction.py
"""
