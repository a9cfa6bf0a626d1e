"""Everything that a step can change: captured, copied, kept, written down, checked and put back.

In come the parts of a training (model, optimizer, generators, the place in the data); out go a `State`, or
the parts of a checkpoint. A captured state is never changed afterwards: later steps write to copies.
"""
