"""Reasoning steps: their tokens and text, the tree of drafted and target steps, and the trace of an
answer.
"""
