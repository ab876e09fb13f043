"""REST: the same questions and answers as gRPC, for curl, scripts and pages.

Answers are the SDK's views as JSON, errors have one shape (`answers`), roles are in `api.roles`.
"""
