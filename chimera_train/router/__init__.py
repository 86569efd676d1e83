"""The semantic router: which model will answer a question correctly, learned from traces."""
