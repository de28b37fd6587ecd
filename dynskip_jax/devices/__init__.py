"""Where programs run: one device, several, several processes; their memory, and compiled programs."""
