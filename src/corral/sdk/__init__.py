"""What Python programs call."""

import os

# gRPC reads these when it is loaded, which what is in here does. Set here and not by `settings`: a
# client that travels with a user's function must be importable without anything installed.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
