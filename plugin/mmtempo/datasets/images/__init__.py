"""Read and decode image files, with errors that name the file."""
