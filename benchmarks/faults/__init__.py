"""Fault injection: runs are killed, their files damaged, their disk filled; then they have to go on."""
