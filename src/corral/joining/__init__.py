"""How a machine or a client comes to a controller: found, invited, recognised."""
