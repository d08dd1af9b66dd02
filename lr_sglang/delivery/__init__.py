"""The text of an answer for its client, while its tokens are written."""
