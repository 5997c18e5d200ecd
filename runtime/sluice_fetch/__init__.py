"""Downloads one model from a hub of Hugging Face's protocol into a cache of its layout.

Knows nothing of engines, torch or Kubernetes beyond the file for a termination message.
"""
