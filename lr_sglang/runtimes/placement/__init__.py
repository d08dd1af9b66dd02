"""Which models a deployment has, how much memory they need, and which GPUs they get."""
