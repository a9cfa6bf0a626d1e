"""The panel: a notebook widget that shows a learner and controls it.

events -> board, curves -> panel -> view -> the page (js/)
the page -> wire -> commands -> the learner

Input: events and the messages of pages. Output: pictures and numbers for the pages, and requests to a
learner. Pages are not trusted: `wire` checks every message against its list of commands.
"""
