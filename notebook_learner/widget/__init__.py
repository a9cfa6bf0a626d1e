"""The panel: a learner you can see and touch, in a notebook.

events -> board, curves -> panel -> view -> the page (js/)
the page -> wire -> commands -> the learner

In come events, and the messages of pages; out go pictures and numbers for the pages, and requests to a
learner. A page is never believed: every message is checked against the list in `wire`.
"""
