"""Files: length logs in, plan files out. Files become arrays here; what the arrays mean is known elsewhere."""
