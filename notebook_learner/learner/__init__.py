"""What users build and hold: `LearnerBuilder` and `Learner`.

`LearnerBuilder` takes the user's settings and gives a `Learner`, whose verbs are calls on `run`. `wiring`
checks the settings, makes the parts and joins them. Nothing here takes a step itself.
"""
