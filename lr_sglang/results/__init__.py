"""The results of a run: records, their folder, and the figures made of them."""
