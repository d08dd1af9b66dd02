"""What a reasoning step is: its tokens and text, the tree of drafted and written steps, and the record of an answer."""
