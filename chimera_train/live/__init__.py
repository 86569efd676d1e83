"""What the gateway predicted beside what happened, and live traffic beside the training data."""
