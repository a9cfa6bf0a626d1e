"""What runs in other processes: a rank, and a run that goes on without its kernel.

In come messages (`ranks.shipping`, `ranks.ticket`), out go answers, or checkpoints and logs in the run's own
directory. The rooms below name these files as data and never import them; nothing here has a face or a page.
"""
