"""What a person or a scheduler runs; the only place that composes the other packages."""
