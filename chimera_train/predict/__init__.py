"""What is evaluated at run time, without torch, transformers, pandas or scikit-learn."""
