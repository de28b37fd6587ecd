"""Fault injection: kill runs, damage their files, or fill their disk, and check that they recover."""
