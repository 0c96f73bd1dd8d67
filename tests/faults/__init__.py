"""Faults on purpose: kills, signals, full disks, two writers, bad inputs and flipped bytes."""
