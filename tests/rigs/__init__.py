"""What only developers run: soaks, measurements of the admin, a simulator of Hydra networks; tests beside them."""
