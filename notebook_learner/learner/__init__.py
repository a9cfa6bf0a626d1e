"""What trains: the builder, the Learner, the loop and its state."""
