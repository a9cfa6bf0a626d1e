"""Passes over other data than the training's: to measure metrics, and to keep the model's outputs.

They take batches and the loop's model, and give blocks of metric values, or outputs on the host. Afterwards
the training is where it was before, bit for bit.
"""
