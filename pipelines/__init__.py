"""Tables to tables with polars: import, split, vocabulary, sequences, outcomes, evaluation. Knows no network."""
