"""Lookahead reasoning on the step tree: one answer, its branches, its verdicts, and how far it
looks ahead.
"""
