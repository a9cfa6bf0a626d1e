"""A training on one device: the loop, and what turns and restores it.

In come a step, a cursor, a state and a bound (so many steps, a position, a condition); out go events, and the
reason why the loop stopped. Nothing here knows a Learner, a notebook or a page: other threads reach the loop
by `control` alone, between two steps.
"""
