"""What lookahead reasoning can gain: the paper's formulas, ours for a judge that takes time, and a planner.

``docs/theory.md`` has the formulas in print, with their conditions and the derivation of what is ours.
"""
