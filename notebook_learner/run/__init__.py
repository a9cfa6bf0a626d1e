"""A training on one device: the loop, the state that a step can change, and what turns and restores them.

In come a model, an optimizer, batches and a bound (so many steps, a position, a condition); out go events,
and the reason why the loop stopped. Nothing here knows a Learner, a notebook or a page: other threads reach
the loop by `control` alone, between two steps.
"""
