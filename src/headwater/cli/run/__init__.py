"""What `headwater run`, `dev` and `plan` show, and the processes that they start."""
