"""Putting a learner together: collect, check everything at once, wire."""
