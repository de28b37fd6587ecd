"""What a user reads on the screen, and how a command ends."""
