"""A run that goes on without its kernel: handed over to a process of its own, and taken back.

`handing` is what `learner.detach()` and `learner.take_back()` do, `starting` the process as this one sees it,
`ticket` what goes over, and `serving` what runs there.
"""
