"""What no watch tells and has to be asked: engines and downloads, and the cluster for its kinds."""
