"""How an environment for a job is made, with an agent or without one."""
