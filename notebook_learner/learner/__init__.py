"""The face: what users build and hold.

In comes what a user configures (`LearnerBuilder`), out comes a `Learner`, whose verbs are calls on `run`.
`wiring` checks the settings, makes the parts and joins them. Nothing here takes a step itself.
"""
