"""One batch through the model, and from its loss to new weights.

The package takes a batch, the model, the optimizer and the schedule. It gives the step's output, and changes
the weights. A step reads no value back from the device, so it never waits for the device.
"""
