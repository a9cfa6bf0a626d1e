"""Which batch comes next, exactly: the cursor, and how it walks each kind of loader.

In come the user's loader and a place in it (epoch, batch, the state of each random generator); out come the
next batch and its place. Nothing here knows a model: the cursor reads a loader, and never changes it.
"""
