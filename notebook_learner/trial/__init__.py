"""Steps that are taken to find something out, and taken back to the bit.

In come a replica that stands still and a question (another learning rate, one step more, a look at its
gradients); out goes an answer as a value. Nothing here may leave a trace in the run.
"""
