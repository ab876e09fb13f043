"""How job process, supervisor and agent speak to each other."""
