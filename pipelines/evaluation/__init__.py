"""How good risks are, with death competing and follow-up that ends: metrics, references, intervals."""
