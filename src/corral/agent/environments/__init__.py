"""What jobs import: virtual environments, and the kit that every runner has."""
