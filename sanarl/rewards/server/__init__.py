"""The reward service: one process that speaks HTTP, and one process a scorer.

    app (endpoints) -> intake (a body into a file, checked as it comes) -> board (jobs) -> workers -> store (results)

Nothing here imports torch; that is for the scorers' processes (``worker.py`` and what it calls).
"""
