"""`sluice top`: services, pools and engines as a live table."""
