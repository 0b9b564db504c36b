"""What a broker and its clients promise, run on the virtual broker and on a real one."""
