"""The API process: OpenAI and native routes over one engine process.

Imports no torch. Started by `launch`, talks to the engine over `transport`.
"""
