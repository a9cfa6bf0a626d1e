"""The one list of commands that steer a run: the panel, `notebook-learner ctl` and another notebook speak it.

In come a command's name and its arguments, from a page, a socket or a typed line; out go a verb of whatever
trains, and one line of answer. Nothing here knows a Learner, a page or a socket: what is steered has the
verbs of `steered.Steered`.
"""
