"""Progressive training: stages that change image size, batch size and learning rate."""
