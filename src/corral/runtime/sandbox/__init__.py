"""What a job's process may do: applied before anything of the job runs."""
