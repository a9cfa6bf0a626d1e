"""The commands that control a run: the panel, `notebook-learner ctl` and another notebook all use this list.

A command's name and arguments come from a page, a socket or a typed line. The result is a call of one method
of the learner, and one line of answer. This package does not know the Learner class, pages or sockets: it
uses only the methods in `steered.Steered`.
"""
