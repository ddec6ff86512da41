"""Tensors to hazards with torch: embeddings, backbones, heads, losses, training. Knows no file format of a cohort."""
