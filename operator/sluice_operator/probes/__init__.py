"""What no watch tells and has to be asked: engines and downloads over HTTP; kinds of the cluster."""
