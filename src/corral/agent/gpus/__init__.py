"""The GPUs of this machine, as their driver tells of them."""
