"""What is read and written by Django's connections: named statements, counts, samples."""
