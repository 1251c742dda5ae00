"""An example of what others add to Weft: a backend, and a conversion target."""
