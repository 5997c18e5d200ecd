"""Downloads one model from a hub of Hugging Face's protocol into a cache of its layout.

Independent of engines and torch; of Kubernetes it uses only the termination message file.
"""
