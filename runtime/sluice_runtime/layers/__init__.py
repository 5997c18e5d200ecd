"""Parts that the architectures in `model` are made of: plain functions and values over tensors."""
