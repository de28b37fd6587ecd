"""Run on one device, several devices or several processes; memory and compilation cache."""
