"""Parts of which the architectures in `model` are made: plain functions and values over tensors."""
