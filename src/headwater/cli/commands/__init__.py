"""One file per command; each holds a plain function whose parameters are its arguments."""
