"""Passes over other data than the training's: to measure, and to keep what the model says.

In come batches and the loop's model; out go blocks of metric values, or outputs on the host. The training
stands afterwards as it stood before, to the bit.
"""
