"""What is configured: options, the app's settings, secrets in files, optional parts of the distribution."""
