"""Which models a deployment has, how much memory they take, and which GPUs they are given."""
