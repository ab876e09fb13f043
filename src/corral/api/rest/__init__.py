"""REST: the same questions and answers as gRPC, for curl, scripts and pages.

Each module here holds the routes of one subject. Answers are the views of the SDK as JSON; errors
have one shape (`answers`); every route has its role in `api.roles`.
"""
