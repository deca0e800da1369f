"""The part of the package that runs only inside a component. Owns the border to the host."""
