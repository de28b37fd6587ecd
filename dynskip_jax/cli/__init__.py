"""The command line: which experiment or command runs, and with which flags."""
