"""The panel: a learner you can see and touch, in a notebook.

events -> board, curves -> panel -> view -> the page (js/)
the page -> wire -> commands -> the learner
"""
