"""Every page of the admin: one list of them, a store large enough to slow them down, and what they cost a load."""
