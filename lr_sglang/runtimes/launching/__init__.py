"""Starting SGLang servers: their flags, waiting until they are ready, watching and
stopping them.
"""
