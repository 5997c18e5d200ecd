"""What no watch reports and has to be asked: engines, downloads, and which kinds the cluster
has."""
