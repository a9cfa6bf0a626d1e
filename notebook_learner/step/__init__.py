"""One batch through the model, and from its loss to new weights.

In come a batch, the model, the optimizer and the schedule; out go the step's output and changed weights. A
step reads no value back from the device, so that no step waits for it.
"""
