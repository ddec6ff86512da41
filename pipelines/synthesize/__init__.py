"""A made-up population whose true hazards are known: what a model has learned can be held against the truth.

`build_world` makes the parameters, `draw_people` and `draw_first_ages` let people live in it, `synthesize_cohort`
writes a cohort and its `truth/` folder; `pipelines/true_risks.py` computes the risks that follow from that truth.
"""
