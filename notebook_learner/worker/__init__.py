"""What runs in other processes: a rank, and a run that goes on without its kernel.

Messages come in (`ranks.shipping`, `ranks.detached_process`). Answers go out, or checkpoints and logs in
the run's own directory. The packages below name these files as data and never import them. Nothing here has
public names or a page.
"""
