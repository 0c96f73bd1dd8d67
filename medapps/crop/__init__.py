"""What a device carries: crops, their files and their numbers. Never imports torch."""
