"""Everything that a step can change: captured, copied, kept, written to disk, checked and put back.

The package takes the parts of a training (model, optimizer, generators, the place in the data), and gives a
`State` or the parts of a checkpoint. A captured state never changes afterwards: later steps write to copies.
"""
