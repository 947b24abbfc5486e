"""The parts of ``pressure_sweep.py``: what to replay, one replay, all of them, verdict.

``workloads`` prepares sessions, ``study`` those of the first policy study, ``one_run``
replays them under one policy, ``crew`` does so on all cores, ``statistics`` and
``verdict`` judge, ``tables`` prints.
"""
