"""The report of an evaluation: one HTML page with tables, plots, limits and a model card."""
