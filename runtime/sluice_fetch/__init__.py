"""Downloads one model into a cache with Hugging Face's layout, from a hub with Hugging Face's
protocol or from a bucket.

Independent of engines and torch; of Kubernetes it uses only the termination message file.
"""
