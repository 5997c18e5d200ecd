"""Downloads one model from a hub of Hugging Face's protocol, or from a bucket, into a cache of the
hub's layout.

Independent of engines and torch; of Kubernetes it uses only the termination message file.
"""
