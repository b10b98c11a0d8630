"""Many independent tasks: processes of this machine, or a Ray cluster.

An engine takes tasks that know nothing of each other and gives answers as they come (engines.py);
Ray is asked for by address or started here (ray_engine.py).
"""
