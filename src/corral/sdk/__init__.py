"""What Python programs call."""

from corral import settings

settings.quiet_grpc()  # gRPC reads that when it is loaded, which what is in here does
