"""Runtimes that wait instead of computing, with a given speed and acceptance rate instead of
models, on the real or on a virtual clock. For tests and benchmarks; not installed.

A step is words of the pocket tokenizer, one token each. Its first eight words encode question,
position, version and meaning, so that a runtime needs no memory, and a judge reads from two texts
whether they agree. Draws follow from seed, question, position and version: whether a draft agrees
does not depend on timing, clock or process. Memory, network and the token layer are not simulated.

``python -m tests.simulated`` serves them over HTTP; ``transport.simulated_roles`` makes backends in
this process.
"""
