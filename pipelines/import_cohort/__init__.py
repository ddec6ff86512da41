"""Tables of any origin become a cohort, with an account of every row.

An importer (`from_*.py`) reads its source into a `DeliveredCohort`; `finish_import` cleans it by rules that are data,
writes the cohort and reports. What breaks a contract is listed in full, file by file, before anything is written.
"""
