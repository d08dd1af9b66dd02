"""Simulated runtimes, with a given speed and acceptance rate instead of models, on the real or a
virtual clock.

Their answers and figures are labelled as simulated. ``docs/simulated.md`` says what they leave out.
"""
