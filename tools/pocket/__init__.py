"""The making of the pocket models: synthetic problems, a tokenizer, training, and the measurements
of their card.
"""
