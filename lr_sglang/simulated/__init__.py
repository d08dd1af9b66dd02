"""Simulated runtimes: a given speed and acceptance in place of models, on the real clock and on a virtual one.

Their answers and figures are labelled as simulated. ``docs/simulated.md`` says what they simulate, and what not.
"""
