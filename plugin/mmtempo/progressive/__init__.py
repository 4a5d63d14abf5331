"""Progressive training: stages that change size, batch and learning rate."""
