"""What a run leaves behind: records, the folder they are in, and the figures made of them."""
