"""One runtime as the rest of the package sees it: requests over HTTP, their cancellation, its slots, its tokens."""
