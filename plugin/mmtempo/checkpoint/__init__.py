"""Asynchronous, crash-safe checkpoints: content, folder, writer, resume and safe loading."""
