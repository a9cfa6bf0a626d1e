"""What a step reaches outside of model, optimizer and loaders: counters, queues, generators, other networks.

In come the functions of a training and its data; out goes a value of all that their steps change, for the
state. Objects stay the same objects here: only their contents are taken and put back.
"""
