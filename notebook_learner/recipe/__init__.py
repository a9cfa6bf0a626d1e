"""What made a run, as plain JSON: hyper-parameters, data, source text, versions, hardware, own values.

A learner comes in, and one JSON text goes out, which checkpoints and `artifacts.h5` hold. Nothing that the
user wrote is run here: no sample is asked for, and no environment variable and no output of a cell is read.
"""
