"""The speed-up of lookahead reasoning: the paper's formulas, their extension to slow judges, and a
planner.

``docs/theory.md`` has the formulas with their conditions, and the derivation of the extension.
"""
